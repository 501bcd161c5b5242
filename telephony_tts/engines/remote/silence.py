"""How long a peer has sent nothing, as far as this process could have heard it. Pure: time is an argument."""

from __future__ import annotations

from telephony_tts.runtime.clock import NS_PER_MS

CHECK_NS = 100 * NS_PER_MS
"""Call `PeerSilence.check` this often."""
_MOST_NS = 2 * CHECK_NS


class PeerSilence:
    """Measures a peer's silence while this process itself ran.

    This process may stop too: its machine is suspended, or its event loop is busy. The peer's messages of that time
    wait unread in the socket. So one check counts at most `_MOST_NS`, and messages are read between two checks.
    """

    def __init__(self, now_ns: int) -> None:
        self._checked_ns = now_ns
        self.silent_ns = 0

    def heard(self, now_ns: int) -> None:
        """A message arrived."""
        self._checked_ns = now_ns
        self.silent_ns = 0

    def check(self, now_ns: int) -> int:
        """The silence so far, in nanoseconds."""
        self.silent_ns += min(now_ns - self._checked_ns, _MOST_NS)
        self._checked_ns = now_ns
        return self.silent_ns
