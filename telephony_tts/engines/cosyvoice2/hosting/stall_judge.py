"""Whether a process that should send a heartbeat is stalled. Pure: time is an argument."""

from __future__ import annotations

from enum import Enum, auto

from telephony_tts.clock import NS_PER_MS, NS_PER_S

LOOK_NS = 250 * NS_PER_MS
"""Call `StallJudge.look` this often."""
STALLED_NS = 2 * NS_PER_S
"""A process that was silent for so long is stalled."""


class Verdict(Enum):
    ALIVE = auto()
    STALLED = auto()
    """It may come back: a stopped process continues, or the machine stood still."""
    HUNG = auto()
    """It is to be killed."""


class StallJudge:
    """Measures how long a process was silent while the server itself ran.

    The server may stand still too: its machine is suspended, or its event loop is busy. The heartbeats of that time
    then wait unread in the socket. So one look never counts more than `LOOK_NS`, and the server reads the socket
    between two looks.
    """

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._silent_ns = 0

    def heard(self, now_ns: int) -> None:
        """A message came."""
        self._since_ns = now_ns
        self._silent_ns = 0

    def look(self, now_ns: int, limit_ns: int) -> Verdict:
        """Judge now. `limit_ns`: a process that was silent for so long has hung."""
        self._silent_ns += min(now_ns - self._since_ns, LOOK_NS)
        self._since_ns = now_ns
        if self._silent_ns >= limit_ns:
            return Verdict.HUNG
        return Verdict.STALLED if self._silent_ns >= STALLED_NS else Verdict.ALIVE
