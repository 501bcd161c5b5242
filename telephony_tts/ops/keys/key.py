"""API keys: who may use the server, and how much of it.

A key is named, has limits, and can be changed while the server runs. A token of `server.tokens` is a key without a name
and without limits.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

_DAY_S = 86_400

Use = Mapping[str, Mapping[str, float]]
"""What another process of this server counts: "calls" and "chars", each by the name of the key; "day" has the day.
Arms of experiments have entries too (`Experiments.counts`)."""


@dataclass(frozen=True, slots=True)
class Key:
    """A named key, or one without a name, which has no limits. None is no limit.

    `calls` counts calls and HTTP requests at once, `chars_per_day` the characters of a day (UTC). `voices` are the only
    ones that its calls may speak with, beside its own; `lexicons` those that its bots may name; `experiments` those
    that its calls may take part in. A voice may be written with its engine, "hibari/heart".
    """

    name: str = ""
    digest: bytes = field(default=b"", repr=False)
    calls: int | None = None
    chars_per_day: int | None = None
    voices: tuple[str, ...] | None = None
    lexicons: tuple[str, ...] | None = None
    experiments: tuple[str, ...] | None = None
    supervises: bool = False
    """Whether people with it may listen to calls, end them and play recordings."""
    media_legs: bool = True
    """Whether it may be a media leg: a PBX, a carrier or the bridge."""

    @property
    def media_refusal(self) -> str | None:
        """Why no media leg may have it. None if one may."""
        return None if self.media_legs else f"key {self.name} may not be a media leg (media_legs in keys.file)"

    def allows_voice(self, engine: str, voice: str) -> bool:
        return self.voices is None or voice in self.voices or f"{engine}/{voice}" in self.voices

    def allows_lexicon(self, name: str) -> bool:
        return self.lexicons is None or name in self.lexicons

    def allows_experiment(self, name: str) -> bool:
        return self.experiments is None or name in self.experiments


NO_KEY = Key()
"""The client of a server without keys, with a token without a name, or let in by a carrier's signature."""


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token).digest()


class CharacterUse:
    """How many characters each key has used today. They count on when the keys are read again."""

    def __init__(self, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self._day = 0
        self._chars: dict[str, int] = {}
        self.of_others: Callable[[], Iterable[Use]] = lambda: ()
        """What the other processes of this server count."""

    def spend(self, key: Key, n_chars: int) -> str | None:
        """Count characters of a key. Returns why it may not use them; then they are not counted."""
        if not key.name:
            return None
        today = self.today()
        n_used = today.get(key.name, 0)
        if key.chars_per_day is not None:
            n_elsewhere = sum(
                use["chars"].get(key.name, 0) for use in self.of_others() if use["day"].get("day") == self._day
            )
            if n_used + n_elsewhere + n_chars > key.chars_per_day:
                return (
                    f"key {key.name} may use {key.chars_per_day} characters a day (UTC), and has used "
                    f"{n_used + n_elsewhere}"
                )
        today[key.name] = n_used + n_chars
        return None

    def today(self) -> dict[str, int]:
        """The characters of this day, by key."""
        day = int(self._unix_s() // _DAY_S)
        if day != self._day:
            self._day, self._chars = day, {}
        return self._chars

    @property
    def day(self) -> int:
        return self._day


class KeyRing:
    """All keys of a server. Without any, everyone may use it."""

    def __init__(
        self,
        tokens: Iterable[str] = (),
        named: Iterable[Key] = (),
        unix_s: Callable[[], float] = lambda: 0.0,
        supervisor_tokens: Collection[str] = (),
    ) -> None:
        """`supervisor_tokens` are some of `tokens`."""
        self._unnamed = [
            Key(digest=digest_of(token.encode()), supervises=token in supervisor_tokens) for token in tokens
        ]
        self._named: dict[str, Key] = {}
        self.characters = CharacterUse(unix_s)
        self.replace(named)

    def replace(self, named: Iterable[Key]) -> None:
        """Use these named keys from now on. A call goes on with the key that it has."""
        self._named = {key.name: key for key in named}

    @property
    def is_open(self) -> bool:
        return not self._unnamed and not self._named

    def find(self, token: bytes) -> Key | None:
        """The key of a token. None if no key has it.

        Every key is compared, so the time taken does not tell which one was nearly right.
        """
        if self.is_open:
            return NO_KEY
        digest, found = digest_of(token), None
        for key in (*self._unnamed, *self._named.values()):
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def named(self, name: str) -> Key | None:
        """The key of this name; "" is a key without a name."""
        return self._named.get(name) if name else NO_KEY
