"""When a frame is written: one schedule per call, on the monotonic clock. Pure; integers in nanoseconds."""

from __future__ import annotations

from telephony_tts.clock import NS_PER_MS

FRAME_MS = 20
FRAME_NS = FRAME_MS * NS_PER_MS

MAX_AT_ONCE = 3
"""Frames written at one time after a stall. Asterisk hands every frame on at once, and what comes to a phone in a burst
is more than its jitter buffer holds: the rest of what was missed is made up for by moving the schedule."""


class Pacer:
    """The k-th frame is due at `begun_ns` + k · 20 ms, whenever the ones before it were really written."""

    def __init__(self, begun_ns: int) -> None:
        self.next_ns = begun_ns

    def due(self, now_ns: int) -> tuple[int, int]:
        """How many frames to write now, and how late (in ns) the first of them is. They then count as written, and a
        longer stall has moved the schedule by whole frames."""
        late_ns = now_ns - self.next_ns
        if late_ns < 0:
            return 0, 0
        n_missed = late_ns // FRAME_NS + 1
        self.next_ns += n_missed * FRAME_NS
        return min(n_missed, MAX_AT_ONCE), late_ns
