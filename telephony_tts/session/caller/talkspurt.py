"""When the caller begins to speak and when the speech ends, from windows that are voice or not. Pure."""

from __future__ import annotations

from enum import Enum

from telephony_tts.session.settings import BargeInSettings

_SPEECH, _STILL_SPEECH = 0.5, 0.35
"""The probability from which a window is speech: while the caller is silent, and while the caller speaks."""
_COVERED_LEAK = 0.25
"""Speech behind the closed gate is our echo, or the caller under our echo. It takes back a quarter of its time only."""

_MISSED_NEAR_MS = 100
"""How exactly the place of missing audio is known: it is reported when it happens."""


class Change(Enum):
    BEGAN = 1
    ENDED = 2


class TalkSpurt:
    """The talk spurts of one call. Times are milliseconds of the caller's audio since its first sample."""

    def __init__(self, settings: BargeInSettings) -> None:
        self.settings = settings
        self.is_speaking = False
        self.begun_ms = 0
        """Where the current or last talk spurt began."""
        self.voice_end_ms = 0
        """Where the last voice ended."""
        self._voiced_ms = 0.0
        self._missed_ms = self._missed_until_ms = 0

    @property
    def is_undecided(self) -> bool:
        """Whether there was voice just now that is too short so far to count as speech."""
        return not self.is_speaking and self._voiced_ms > 0

    def forget(self) -> None:
        """Nobody listens from now on. What is heard after that does not continue what was heard before."""
        self.is_speaking = False
        self._voiced_ms = 0.0
        self._missed_ms = 0

    def missed(self, n_ms: int, at_ms: int) -> None:
        """`n_ms` of the caller's audio are missing near `at_ms`. Next to voice they count as voice."""
        self._missed_ms, self._missed_until_ms = n_ms, at_ms + _MISSED_NEAR_MS

    def feed(self, probability: float, is_open: bool, window_ms: int, at_ms: int) -> Change | None:
        """Take the window that begins at `at_ms`. `is_open`: it is too loud to be our echo."""
        is_speech = probability >= (_STILL_SPEECH if self.is_speaking else _SPEECH)
        if is_speech and is_open:
            if self._voiced_ms <= 0 and not self.is_speaking:
                self.begun_ms = at_ms
            self._voiced_ms += window_ms
            if at_ms <= self._missed_until_ms:
                self._voiced_ms += self._missed_ms
                self._missed_ms = 0
            self.voice_end_ms = at_ms + window_ms
        else:
            self._voiced_ms = max(0.0, self._voiced_ms - window_ms * (_COVERED_LEAK if is_speech else 1.0))
        if not self.is_speaking and self._voiced_ms >= self.settings.min_speech_ms:
            self.is_speaking = True
            return Change.BEGAN
        return self.silent_to(at_ms + window_ms)

    def silent_to(self, at_ms: int) -> Change | None:
        """No voice came up to `at_ms`."""
        if not self.is_speaking or at_ms - self.voice_end_ms < self.settings.silence_ms:
            return None
        self.is_speaking = False
        self._voiced_ms = 0.0
        return Change.ENDED
