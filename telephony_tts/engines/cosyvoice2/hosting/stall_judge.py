"""Whether a process that should send heartbeats is stalled. Pure: time is an argument."""

from __future__ import annotations

from enum import Enum, auto

from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S

CHECK_INTERVAL_NS = 250 * NS_PER_MS
"""Call `StallJudge.check` this often."""
STALLED_NS = 2 * NS_PER_S
"""A process is stalled after this much silence."""


class StallVerdict(Enum):
    ALIVE = auto()
    STALLED = auto()
    """It may recover: a stopped process continues, or the machine was suspended."""
    HUNG = auto()
    """Kill it."""


class StallJudge:
    """Measures how long a process was silent while the server itself ran.

    The server may stop too: its machine is suspended, or its event loop is busy. The heartbeats of that time then wait
    unread in the socket. So one check never counts more than `CHECK_INTERVAL_NS`, and the server reads the socket
    between two checks.
    """

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._silent_ns = 0

    def note_message(self, now_ns: int) -> None:
        """A message arrived."""
        self._since_ns = now_ns
        self._silent_ns = 0

    def check(self, now_ns: int, limit_ns: int) -> StallVerdict:
        """The verdict now. After `limit_ns` of silence the process has hung."""
        self._silent_ns += min(now_ns - self._since_ns, CHECK_INTERVAL_NS)
        self._since_ns = now_ns
        if self._silent_ns >= limit_ns:
            return StallVerdict.HUNG
        return StallVerdict.STALLED if self._silent_ns >= STALLED_NS else StallVerdict.ALIVE
