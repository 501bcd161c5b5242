"""When each frame of a turn is due: one monotonic schedule, due(n) = t0 + n * ptime.

There are no relative sleeps, so nothing drifts. A late wake-up sends all frames that are due, and the schedule stays
as it was. The schedule moves only when audio was missing (`resume_at`), by exactly the gap. All times are integer
nanoseconds, because `0.08 - 0.06 > 0.02` in floating point.
"""

from __future__ import annotations

from telephony_tts.audio.encoder import Encoder
from telephony_tts.session.settings import UNPACED_MS, SessionSettings


class Playout:
    """The schedule of one turn. `frames_per_bulk` frames are sent at once, and the last of them is `lead_ns` ahead."""

    __slots__ = (
        "began_ns", "first_lead_ns", "frames_per_bulk", "gap_ns", "lead_ns", "n_before_gap", "n_sent", "ptime_ns",
        "t0_ns",
    )  # fmt: skip

    def __init__(self, ptime_ns: int, lead_ns: int, frames_per_bulk: int = 1) -> None:
        self.ptime_ns = ptime_ns
        self.lead_ns = lead_ns
        self.frames_per_bulk = frames_per_bulk
        self.first_lead_ns = lead_ns - (frames_per_bulk - 1) * ptime_ns
        """How far ahead the first frame of a bulk is."""
        self.t0_ns: int | None = None
        self.began_ns = 0
        """When speech began, or went on after a pause or a clear of an earlier turn."""
        self.n_sent = 0
        self.gap_ns = 0
        """The last gap. It may end in the future: what comes behind it is sent ahead."""
        self.n_before_gap = 0

    def start(self, at_ns: int) -> None:
        """Fix the moment at which the next frame is to be heard."""
        self.began_ns = at_ns
        self.t0_ns = at_ns - self.n_sent * self.ptime_ns
        self.gap_ns = self.n_before_gap = 0

    def stop(self, n_sent: int) -> None:
        """Frames from `n_sent` on were not heard. They are sent again when the schedule starts anew."""
        self.n_sent = n_sent
        self.t0_ns = None

    def hurry(self) -> None:
        """Send each frame as soon as it is there."""
        self.lead_ns = self.first_lead_ns = UNPACED_MS * 1_000_000

    def due_ns(self) -> int:
        """When the next frame is to be heard."""
        assert self.t0_ns is not None
        return self.t0_ns + self.n_sent * self.ptime_ns

    def send_ns(self) -> int:
        """When the next frame is to be sent: with the first frame of its bulk, the lead earlier."""
        assert self.t0_ns is not None
        return self.t0_ns + (self.n_sent - self.n_sent % self.frames_per_bulk) * self.ptime_ns - self.first_lead_ns

    def resume_at(self, now_ns: int) -> int:
        """A missing frame has come: move the schedule by the gap and return the gap (0 without a gap)."""
        gap_ns = now_ns - self.due_ns()
        if gap_ns <= 0:
            return 0
        assert self.t0_ns is not None
        self.t0_ns += gap_ns
        self.gap_ns, self.n_before_gap = gap_ns, self.n_sent
        return gap_ns

    def played_ns(self, now_ns: int) -> int:
        """How much of the sent audio was heard by `now_ns`, if the peer plays on our schedule."""
        if self.t0_ns is None:
            return 0
        played_ns, before_gap_ns = now_ns - self.t0_ns, self.n_before_gap * self.ptime_ns
        if played_ns < before_gap_ns:
            played_ns = min(before_gap_ns, played_ns + self.gap_ns)
        return max(0, min(played_ns, self.n_sent * self.ptime_ns))

    def heard_at_ns(self, audio_ns: int) -> int:
        """When so much of the sent audio was heard, or will be, if the peer plays on our schedule."""
        assert self.t0_ns is not None
        return self.t0_ns + audio_ns - (self.gap_ns if audio_ns <= self.n_before_gap * self.ptime_ns else 0)

    def end_ns(self) -> int:
        """When the last sent frame will have been heard."""
        return self.due_ns()


def outlet(settings: SessionSettings) -> tuple[Encoder, Playout]:
    """The encoder and the schedule of a turn."""
    lead_ms = settings.lead_ms if settings.pace == "realtime" else UNPACED_MS
    return (
        Encoder(settings.codec, settings.rate_hz, settings.ptime_ms, settings.fade_ms, settings.whole_sentences),
        Playout(settings.ptime_ms * 1_000_000, lead_ms * 1_000_000, settings.frames_per_bulk),
    )
