"""The other processes of a server with several front processes, as the transport needs them (docs/processes.md).

All fronts accept connections on one port, and each call belongs to one of them, which has claimed the call's id. A
connection that came to another front is moved to that one: its socket, and the bytes that were read from it.
`telephony_tts.fronts` implements `Fronts`. A server with one process has none.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.runtime.metrics import MetricFamilies

MAX_MOVED_BYTES = 1 << 18
"""The most bytes of a peer that move with its socket. A start message of a media leg is less than a kilobyte."""

MAX_MOVES = 4
"""How often a connection may be moved. The owner of a call can change while the connection is under way."""

_LENGTHS = struct.Struct("!III")


class ClaimFailed(TelephonyTTSError):
    """A call's id cannot be claimed, so no front may begin the call."""

    code = "busy"
    retryable = True


class FrontGone(Exception):
    """The front that should get a connection has ended. The connection was not moved."""


class FrontSilent(FrontGone):
    """The front that should get a connection does not answer: it is stopped, or hangs. The connection was not moved."""


@dataclass(frozen=True, slots=True)
class FrontLoad:
    """What one front does. All fronts together are held to the limits of the server.

    `n_calls` has no HTTP requests, `n_requests` has only them. `n_arriving` media legs have not named their call yet,
    `n_sockets` is the number of WebSocket connections. `awaits_media`: a call waits for its media leg. `is_able`: it
    can begin a call now. `is_draining`: it takes no more calls.
    """

    n_calls: int = 0
    n_requests: int = 0
    n_arriving: int = 0
    n_sockets: int = 0
    awaits_media: bool = False
    is_able: bool = False
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class MovedSocket:
    """What another front needs to go on with a connection.

    stage "request": the connection is new there. `read` are the bytes of its request so far.
    stage "leg": the handshake was answered and checked here, and the call became known only then. `head` is the
    request, `read` the bytes behind it that were parsed here, and `unread` those that were not.

    `key` is the name of its key, if it has one: it may have come in a message.

    `local` and `remote` are the addresses of the connection, for a socket that cannot tell them itself.
    """

    stage: Literal["request", "leg"]
    n_moves: int
    local: tuple[str, int]
    remote: tuple[str, int]
    read: bytes = field(repr=False)
    head: bytes = field(default=b"", repr=False)
    unread: bytes = field(default=b"", repr=False)
    may_begin: bool = False
    key: str = ""

    def packed(self) -> bytes:
        """As bytes, for `unpacked`."""
        facts = asdict(self)
        parts = [facts.pop(name) for name in ("head", "read", "unread")]
        return b"".join([_LENGTHS.pack(*map(len, parts)), *parts, json.dumps(facts).encode()])


def unpacked(data: bytes) -> MovedSocket:
    """The opposite of `MovedSocket.packed`. Raises ValueError for other bytes."""
    try:
        lengths = _LENGTHS.unpack_from(data)
        parts, at = [], _LENGTHS.size
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        facts: dict[str, Any] = json.loads(data[at:])
        for name in ("local", "remote"):
            host, port = facts[name]
            facts[name] = (str(host), int(port))
        if facts["stage"] not in ("request", "leg") or type(facts["n_moves"]) is not int:
            raise ValueError("a stage or a count is wrong")
        if type(facts["may_begin"]) is not bool:
            raise ValueError("may_begin is neither true nor false")
        if not isinstance(facts.get("key", ""), str):
            raise ValueError("the name of a key is no text")
        head, read, unread = parts
        return MovedSocket(head=head, read=read, unread=unread, **facts)
    except (struct.error, UnicodeDecodeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"these {len(data)} bytes are no moved socket: {error}") from error


class Fronts(Protocol):
    """The other fronts of this server. A front is named by a text such as "1.4": its number, and how often a front of
    this number was started."""

    @property
    def name(self) -> str:
        """Of this front."""

    def owner(self, call_id: str) -> str | None:
        """The front that has claimed the call, which may be this one. None: nobody. Raises ClaimFailed."""

    def claim(self, call_id: str) -> str | None:
        """Claim the call for this front until `release`. Each claim needs its release. Returns the other front that has
        claimed it before. Raises ClaimFailed if the claim cannot be written."""

    def release(self, call_id: str) -> None:
        """Undo one `claim`. After the last one the id is free."""

    def better(self) -> str | None:
        """Another front that should take a new connection in place of this one. None if there is none."""

    def publish(self, load: FrontLoad) -> None:
        """Tell the other fronts what this one does."""

    def others(self) -> FrontLoad:
        """What all other fronts do together: sums. `is_able` and `awaits_media` if one of them is or has;
        `is_draining` if all of them are."""

    def is_new(self, nonce: str) -> bool:
        """Remember a nonce. False if one of the fronts has had it before. Raises ClaimFailed if it cannot be kept."""

    async def move(self, to: str, sock: socket.socket, moved: MovedSocket, *, may_stay: bool) -> None:
        """Give a connection to another front. `sock` is closed here when that front has it. `may_stay`: this front can
        serve the connection as well, so it does not wait for a front that does not answer at once.

        Raises FrontGone, with `sock` still open, if the other front has ended; with `may_stay` it raises FrontSilent,
        with `sock` still open, if the other front does not answer within 250 ms. Raises OSError or TimeoutError if it
        did not confirm: then the connection is shut down, because nobody knows whether it has been taken."""

    def publish_use(self, use: Mapping[str, Mapping[str, float]]) -> None:
        """Tell the other fronts what the keys use here, and what the calls of each arm of an experiment were like. What
        cannot be told now is told when it is published again."""

    def use_of_others(self) -> list[Mapping[str, Mapping[str, float]]]:
        """The same of the other fronts. Of fronts that have ended all but their calls still counts. What was read last
        if it cannot be read now."""

    @property
    def shared_engines(self) -> frozenset[str]:
        """The engines that run once for all fronts: each front reports the work of the whole."""

    async def activities(self) -> list[dict[str, Any] | None]:
        """What each other front does now, as `activity.activity` tells it. None for one that does not answer."""

    async def metrics(self, own: Callable[[], None]) -> MetricFamilies:
        """The metrics of all fronts together, for `metrics.encode`. `own` refreshes the gauges of this front."""
