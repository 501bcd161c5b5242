"""Which replicas of an application there are, and which of them a front may use. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from telephony_tts.runtime.clock import NS_PER_S

ANNOUNCE_S = 1.0
"""A replica says so often that it is there."""
EXPIRY_NS = 5 * NS_PER_S
"""A replica that has not said so for this long is forgotten."""
SETTLE_NS = round(2.5 * NS_PER_S)
"""A new table is not told before this age: the replicas may not have announced themselves yet."""
NAMESPACE = "telephony_tts"


def directory_name(app: str) -> str:
    """The name of the actor that holds the table of an application."""
    return f"{app} replicas"


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    """A replica: where its engine server is, and the token that it demands. `model` tells one model from another."""

    id: str
    address: str
    token: str
    engine: str
    model: str

    def plain(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Any) -> ReplicaEntry:
        """Raises ValueError if a field is missing or no text."""
        names = [item.name for item in fields(cls)]
        if not isinstance(plain, dict) or any(not isinstance(plain.get(name), str) for name in names):
            raise ValueError("a replica's entry is wrong")
        return cls(**{name: plain[name] for name in names})


class ReplicaTable:
    """The replicas that announced themselves lately."""

    def __init__(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._entries: dict[str, tuple[ReplicaEntry, int]] = {}
        self.version = 0
        """Another number when the list is another one."""

    def announce(self, entry: ReplicaEntry, now_ns: int) -> None:
        known = self._entries.get(entry.id)
        if known is None or known[0] != entry:
            self.version += 1
        self._entries[entry.id] = entry, now_ns

    def leave(self, replica_id: str) -> None:
        if self._entries.pop(replica_id, None) is not None:
            self.version += 1

    def current(self, now_ns: int) -> list[ReplicaEntry] | None:
        """The replicas that are there, in the order in which they came. None while the table is new."""
        for replica_id, (_, seen_ns) in list(self._entries.items()):
            if now_ns - seen_ns > EXPIRY_NS:
                self.leave(replica_id)
        if now_ns - self._begun_ns < SETTLE_NS:
            return None
        return [entry for entry, _ in self._entries.values()]


def usable(entries: Sequence[ReplicaEntry], model: str | None) -> tuple[list[ReplicaEntry], list[ReplicaEntry]]:
    """(the replicas with the same model, those with another one). A caller must not hear two models.

    `model`: the one that is demanded; None is that of most replicas, and among equals that of the first one.
    """
    if not entries:
        return [], []
    wanted = model or Counter(entry.model for entry in entries).most_common(1)[0][0]
    return (
        [entry for entry in entries if entry.model == wanted],
        [entry for entry in entries if entry.model != wanted],
    )
