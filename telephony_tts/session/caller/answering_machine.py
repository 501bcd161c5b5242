"""Who answered: a person says a word and waits, a machine speaks on and beeps. Pure."""

from __future__ import annotations

from telephony_tts.audio.beep import BeepDetector
from telephony_tts.audio.g711 import Pcm
from telephony_tts.session.caller.talkspurt import TalkSpurt
from telephony_tts.session.effects import Effect
from telephony_tts.wire.messages import AnsweringMachineHeard

_GREETING_MS = 2_500
"""A first talk spurt of this length is a greeting of a machine. A person pauses sooner."""


class AnsweringMachine:
    """The detector of one call. `out` is the session's own list. Times are milliseconds of the caller's audio."""

    def __init__(self, is_on: bool, out: list[Effect]) -> None:
        self.is_on = is_on
        self._out = out
        self._beeps = BeepDetector()
        self._has_begun = self._is_greeted = False
        """The first talk spurt has begun; it is over, or the bot was told of it."""

    @property
    def awaits_silence(self) -> bool:
        """Whether a tone was heard that may be a beep if silence follows."""
        return self.is_on and self._beeps.is_busy

    def listen(self, pcm: Pcm, is_heard: bool, spurt: TalkSpurt, end_ms: int, clock_ms: int) -> None:
        """Take a window that ends at `end_ms`. `is_heard`: it is loud enough not to be our echo. `clock_ms` is the
        peer's clock at the first sample."""
        if not self.is_on:
            return
        self._note_greeting(spurt)
        beep = self._beeps.feed(pcm, is_heard)
        if beep is not None:
            self._out.append(
                AnsweringMachineHeard(
                    "beep",
                    beep_at_ms=max(0, clock_ms + end_ms - beep.ago_ms),
                    beep_ms=beep.length_ms,
                    beep_hz=round(beep.frequency_hz),
                )
            )

    def _note_greeting(self, spurt: TalkSpurt) -> None:
        if self._is_greeted:
            return
        if not spurt.is_speaking:
            self._is_greeted = self._has_begun
            return
        self._has_begun = True
        greeting_ms = spurt.voice_end_ms - spurt.begun_ms
        if greeting_ms >= _GREETING_MS:
            self._is_greeted = True
            self._out.append(AnsweringMachineHeard("greeting", greeting_ms=greeting_ms))
