"""A live call as sound, for someone who listens in: what a recording would have, a moment later and without a file."""

from __future__ import annotations

from telephony_tts.recording.recorder import CallRecorder
from telephony_tts.recording.stereo import Mixer
from telephony_tts.session.session import Session
from telephony_tts.wire.messages import FromBot, FromMedia, ToBot

DELAY_MS = 400
"""What the caller hears may still change for so long: a clear drops it, a peer reports that it plays it later."""
_MOST_S = 10
_MS = 1_000_000


class Listening:
    """The sound of one call from `now_ns` on. `take` it often: what waits longer than ten seconds is skipped. A fault
    of ours ends the sound and not the call: `failure` has it then."""

    def __init__(self, session: Session, now_ns: int) -> None:
        self._recorder = CallRecorder(session, now_ns)
        self._mixer = Mixer()
        self.failure: Exception | None = None
        self.playing, self.moved = self._recorder.playing, self._recorder.moved
        self.emptied, self.peer_is_late = self._recorder.emptied, self._recorder.peer_is_late

    def received(self, message: FromBot | FromMedia, now_ns: int) -> None:
        try:
            self._recorder.received(message, now_ns)
        except Exception as failure:
            self.failure = failure

    def told(self, event: ToBot, now_ns: int) -> None:
        """What the bot is told makes no sound."""

    def remember_private(self) -> None:
        """Nothing is written, so nothing must be kept out."""

    def take(self, now_ns: int) -> bytes:
        """What was heard since the last time, up to DELAY_MS ago: 16-bit stereo at 8 kHz, left the caller, right what
        the caller hears."""
        until = self._recorder.position(now_ns - DELAY_MS * _MS)
        skipped = until - _MOST_S * 8_000
        if skipped > self._recorder.done:
            self._recorder.take(skipped)
        return self._mixer.mix(self._recorder.take(until)) if until > self._recorder.done else b""
