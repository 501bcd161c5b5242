"""Estimates word timings while the audio is still being made; the model gives none.

Words are placed at a usual rate of speech until the end is known. Then the remaining words share the remaining audio.
The last word waits for the end, so it never ends before the speech does. Expect an error of some words.
"""

from __future__ import annotations

from telephony_tts.engines.api import Timing
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ
from telephony_tts.engines.words import words

SHARES_PER_S = 15.0
"""Letters spoken in a second of English. The gap between two words counts as one letter."""
SYLLABLE_SHARES = 2.5
"""Letters that a syllable sign (Han, kana, hangul) counts as: with its gap about four in a second."""


def spoken_s(text: str) -> float:
    """Estimated time to say a text."""
    return sum(sum(map(_shares, text[slice(*span)])) + 1.0 for span in words(text)) / SHARES_PER_S


class WordClock:
    """The words of `text[start_char:end_char]`, whose audio begins at `first_sample`."""

    def __init__(
        self,
        text: str,
        start_char: int,
        end_char: int,
        first_sample: int,
        speed: float,
        sample_rate_hz: int = SAMPLE_RATE_HZ,
    ) -> None:
        spans = [(start + start_char, end + start_char) for start, end in words(text[start_char:end_char])]
        self._words = spans[::-1]
        """Words not placed yet; the next one is last."""
        self._share = sample_rate_hz / SHARES_PER_S / speed
        self._lengths = {span: sum(map(_shares, text[slice(*span)])) + 1.0 for span in spans}
        self._n_made = self._at = first_sample
        """Samples made, and the end of the last placed word."""
        self._first = self._n_taken = first_sample
        self._placed: list[Timing] = []

    def add_audio(self, n_samples: int, n_known: int, *, last: bool) -> None:
        """Record `n_samples` more that were made. The piece will have at least `n_known` in all."""
        begin, self._n_made = self._n_made, self._n_made + n_samples
        if last:
            self._share_out(max(begin, self._at))
            return
        while len(self._words) > 1 and self._at < self._n_made:
            span = self._words.pop()
            start = max(begin, self._at)
            end = min(start + int(self._lengths[span] * self._share), self._first + n_known)
            self._place(span, start, max(end, start + 1))

    def take(self, n_samples: int) -> tuple[Timing, ...]:
        """Timings of the words that begin within the next `n_samples` of those made."""
        self._n_taken += n_samples
        n = sum(timing.start_sample < self._n_taken for timing in self._placed)
        taken, self._placed = self._placed[:n], self._placed[n:]
        return tuple(taken)

    def _share_out(self, start: int) -> None:
        """Place all remaining words over the remaining audio, unless it has less than a sample for each."""
        if self._n_made - start < len(self._words):
            return
        total = sum(self._lengths[span] for span in self._words)
        done = 0.0
        n_left = self._n_made - start
        while self._words:
            span = self._words.pop()
            done += self._lengths[span]
            end = start + max(1, int(n_left * done / total)) if self._words else self._n_made
            self._place(span, max(start, self._at), max(end, self._at + 1))

    def _place(self, span: tuple[int, int], start: int, end: int) -> None:
        self._placed.append(Timing(*span, start, end))
        self._at = end


def _shares(char: str) -> float:
    return SYLLABLE_SHARES if char >= "\u2e80" else 1.0
