"""When the caller begins to speak and when the speech ends, from windows that are voice or not. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from telephony_tts.session.settings import BargeInSettings

_SPEECH, _STILL_SPEECH = 0.5, 0.35
"""The probability from which a window is speech: while the caller is silent, and while the caller speaks."""
_COVERED_LEAK = 0.25
"""Our echo may cover the caller. It takes back a quarter of its time only."""

_CLOSURE_MS = 96
"""A voice is closed for so long in the middle of a word (a `p`), or dies away. This counts half."""

FindCallers = Callable[[int], list[bool]]
"""Tells for each of so many last windows whether it has more than our echo: for at most `most_unjudged`."""

_MISSED_NEAR_MS = 100
"""How exactly the place of missing audio is known: it is reported when it happens."""


class Change(Enum):
    BEGAN = 1
    ENDED = 2


@dataclass(slots=True)
class _Window:
    """A window of voice that begins at `at_ms`, and what it counts."""

    at_ms: int
    counts_ms: float


class TalkSpurt:
    """The talk spurts of one call. Times are milliseconds of the caller's audio since its first sample."""

    def __init__(self, settings: BargeInSettings, find_callers: FindCallers, most_unjudged: int) -> None:
        self.settings = settings
        self._find_callers = find_callers
        self._most_unjudged = most_unjudged
        self._unjudged: deque[_Window] = deque()
        """The last windows of voice, which may still turn out to be our echo."""
        self._was_caller = False
        """The last window that was judged was the caller."""
        self.is_speaking = False
        self.begun_ms = 0
        """Where the current or last talk spurt began."""
        self.voice_end_ms = 0
        """Where the last voice ended."""
        self._voiced_ms = 0.0
        self.sound_end_ms = 0
        """Where the last loud voice ended, which may be our echo."""
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
        self._unjudged.clear()

    def missed(self, n_ms: int, at_ms: int) -> None:
        """`n_ms` of the caller's audio are missing near `at_ms`. Next to voice they count as voice."""
        self._missed_ms, self._missed_until_ms = n_ms, at_ms + _MISSED_NEAR_MS

    def is_voice(self, probability: float) -> bool:
        """Whether a window of this probability is speech, of the caller or our own."""
        return probability >= (_STILL_SPEECH if self.is_speaking else _SPEECH)

    def feed(self, probability: float, is_loud: bool, window_ms: int, at_ms: int) -> Change | None:
        """Take the window that begins at `at_ms`. `is_loud`: it is more than the noise of the line."""
        is_voice = self.is_voice(probability)
        if is_voice and is_loud:
            if self._voiced_ms <= 0 and not self.is_speaking:
                self.begun_ms = at_ms
            counts_ms = window_ms
            if at_ms <= self._missed_until_ms:
                counts_ms += self._missed_ms
                self._missed_ms = 0
            self._voiced_ms += counts_ms
            self._unjudged.append(_Window(at_ms, counts_ms))
            self.sound_end_ms = at_ms + window_ms
        elif is_voice and at_ms - self.sound_end_ms < _CLOSURE_MS and (self._unjudged or self._was_caller):
            self._voiced_ms += window_ms / 2
            if self._unjudged:
                self._unjudged[-1].counts_ms += window_ms / 2
        else:
            self._voiced_ms = max(0.0, self._voiced_ms - window_ms * (_COVERED_LEAK if is_voice else 1.0))
        # The longer the sound, the surer is the judgement. So it waits until something depends on it.
        if self._unjudged and (
            self.is_speaking
            or self._voiced_ms >= self.settings.min_speech_ms
            or at_ms - self._unjudged[0].at_ms >= (self._most_unjudged - 1) * window_ms
        ):
            self._judge(window_ms, at_ms)
        if not self.is_speaking and self._voiced_ms >= self.settings.min_speech_ms:
            self.is_speaking = True
            return Change.BEGAN
        return self.silent_to(at_ms + window_ms)

    def _judge(self, window_ms: int, at_ms: int) -> None:
        """Take back the time of those windows that are our echo."""
        callers = self._find_callers((at_ms - self._unjudged[0].at_ms) // window_ms + 1)
        voiced_ms = self._voiced_ms - sum(window.counts_ms for window in self._unjudged)
        while self._unjudged:
            window = self._unjudged.popleft()
            self._was_caller = callers[(window.at_ms - at_ms) // window_ms - 1]
            if self._was_caller:
                if voiced_ms <= 0 and not self.is_speaking:
                    self.begun_ms = window.at_ms
                voiced_ms += window.counts_ms
                self.voice_end_ms = window.at_ms + window_ms
            elif voiced_ms > 0:
                voiced_ms = max(0.0, voiced_ms - window_ms * _COVERED_LEAK)
        self._voiced_ms = max(0.0, voiced_ms)

    def silent_to(self, at_ms: int) -> Change | None:
        """No voice came up to `at_ms`."""
        if not self.is_speaking or at_ms - self.voice_end_ms < self.settings.silence_ms:
            return None
        self.is_speaking = False
        self._voiced_ms = 0.0
        return Change.ENDED
