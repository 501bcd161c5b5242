"""When each character of a turn is heard, as its audio is sent.

Some protocols send the characters or words of a turn with its audio. Their times come from the engine's timings of
words. Without timings, the characters are spread evenly over the audio that speaks them.
"""

from __future__ import annotations

from itertools import pairwise

from telephony_tts.session.heard import heard_offset, mark_sample
from telephony_tts.session.turn import Turn
from telephony_tts.wire.messages import SpokenText


class Alignment:
    """Gives each character of `turn` once, in order, as the audio that speaks it is sent."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._offset = 0
        self._sample = 0

    def advance(self, n_samples: int, *, is_whole: bool = False) -> SpokenText:
        """The text that is spoken between the last call and `n_samples` of the turn's audio. The text may be empty.

        With `is_whole` all audio has been sent, so all the rest of the turn's text is given.
        """
        turn, start = self._turn, self._offset
        text = turn.text
        end = len(text) if is_whole else max(start, min(heard_offset(turn, n_samples), len(text)))
        if end == start:
            return SpokenText("", start, (self._ms(self._sample),))
        known = [(start, self._sample)]
        for offset in _word_ends(text, start, end - 1):
            sample = mark_sample(turn, offset)
            if sample is not None and known[-1][1] <= sample <= n_samples:
                known.append((offset, sample))
        known.append((end, max(n_samples, known[-1][1])))
        self._offset, self._sample = end, known[-1][1]
        return SpokenText(text[start:end], start, tuple(self._ms(sample) for sample in _spread(known)))

    def _ms(self, sample: float) -> float:
        return round(sample * 1000 / self._turn.settings.rate_hz, 1)


def _word_ends(text: str, start: int, end: int) -> list[int]:
    """Offsets from `start` to `end` at which a word ends: before white space."""
    return [at for at in range(start + 1, end + 1) if text[at].isspace() and not text[at - 1].isspace()]


def _spread(known: list[tuple[int, int]]) -> list[float]:
    """The sample at each offset, evenly between those that are known."""
    samples: list[float] = [known[0][1]]
    for (begin, first), (end, last) in pairwise(known):
        samples += [first + (last - first) * n / (end - begin) for n in range(1, end - begin + 1)]
    return samples
