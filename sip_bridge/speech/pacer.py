"""When a frame is written: one schedule per call, on the monotonic clock. Pure; integers in nanoseconds."""

from __future__ import annotations

from telephony_tts.runtime.clock import NS_PER_MS

FRAME_MS = 20
FRAME_NS = FRAME_MS * NS_PER_MS

MAX_AT_ONCE = 3
"""Frames written at one time after a stall. Asterisk passes every frame on at once, and a longer burst is more than the
jitter buffer of a phone holds. The other missed frames are made up for by moving the schedule."""


class Pacer:
    """The k-th frame is due at `begun_ns` + k · 20 ms, whenever the frames before it were really written."""

    def __init__(self, begun_ns: int) -> None:
        self.next_ns = begun_ns
        self.n_skipped = 0
        """By how many frames the last `due` has moved the schedule."""

    def due(self, now_ns: int) -> tuple[int, int]:
        """How many frames to write now, and how late (in ns) the first of them is.

        These frames then count as written. After a longer stall the schedule has moved by whole frames.
        """
        late_ns = now_ns - self.next_ns
        self.n_skipped = 0
        if late_ns < 0:
            return 0, 0
        n_missed = late_ns // FRAME_NS + 1
        self.next_ns += n_missed * FRAME_NS
        n_due = min(n_missed, MAX_AT_ONCE)
        self.n_skipped = n_missed - n_due
        return n_due, late_ns
