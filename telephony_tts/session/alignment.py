"""When each character of a turn is heard, as its audio is sent.

Some protocols send the characters or words of a turn with its audio. A word begins and ends when the event `words` says
that it does, by the engine's timings. The characters of a word are spread evenly over it, and blanks over the silence
between two words. Without timings the characters of a sentence are spread evenly over its audio.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from telephony_tts.session.heard import ATTACHED, heard_offset, mark_sample, source_offset, stands_alone
from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire.messages import SpokenText


class Alignment:
    """Gives each character of `turn` once, in order, as the audio that speaks it is sent.

    It gives whole words (characters in Chinese). With `splits_words` it gives each character that was spoken.
    """

    def __init__(self, turn: Turn, *, splits_words: bool = False) -> None:
        self._turn = turn
        self._splits_words = splits_words
        self._offset = 0
        self._sample = 0
        self._n_parts = 0
        """The parts whose text has all been given."""

    def advance(self, n_samples: int, *, is_whole: bool = False) -> SpokenText:
        """The text that is spoken between the last call and `n_samples` of the turn's audio. The text may be empty.

        With `is_whole` all audio has been sent, so all the rest of the turn's text is given.
        """
        text, start = self._turn.text, self._offset
        known = [(start, self._sample)]
        for offset, sample, is_begin in self._places():
            last_offset, last_sample = known[-1]
            if offset <= last_offset:
                if is_begin and offset == last_offset and last_sample < sample:
                    if sample > n_samples and not is_whole:
                        break
                    known.append((offset, max(last_sample, min(sample, n_samples))))
                continue
            if sample > n_samples and not is_whole:
                n_spoken = (offset - last_offset) * (n_samples - last_sample) // (sample - last_sample)
                if self._splits_words and n_spoken > 0:
                    at = last_sample + (sample - last_sample) * n_spoken // (offset - last_offset)
                    known.append((last_offset + n_spoken, at))
                break
            known.append((offset, max(last_sample, min(sample, n_samples))))
        else:
            guess = heard_offset(self._turn, n_samples)
            if guess > known[-1][0]:  # no timings, and the length of the sentence is not known yet
                known.append((guess, max(known[-1][1], n_samples)))
        if is_whole:
            if known[-1][0] < len(text):
                known.append((len(text), max(known[-1][1], n_samples)))
        elif not self._splits_words:
            while len(known) > 1 and not _ends_word(text, known[-1][0]):
                known.pop()
        end, self._sample = known[-1]
        self._offset = end
        begins, ends = _spread(known)
        times = tuple(self._ms(sample) for sample in [*begins, ends[-1] if ends else self._sample])
        return SpokenText(text[start:end], start, times, tuple(self._ms(sample) for sample in ends))

    def _places(self) -> Iterator[tuple[int, int, bool]]:
        """(an offset in the text, the sample by which the text before it is spoken, False), or (the offset of a word,
        the sample at which it begins, True), as far as they are known."""
        turn = self._turn
        for part in turn.parts[self._n_parts :]:
            if part.start_sample is None:
                return
            sentence = part.sentence
            yield sentence.start, part.start_sample, True
            done, begun = sentence.start, -1
            for (start_char, begin), (end_char, sample) in zip(part.word_starts, part.words, strict=True):
                offset = _before_opening(turn.text, sentence.start + source_offset(part, start_char), done)
                if offset > begun:  # a number that is read begins with its first word
                    yield offset, begin, True
                    begun = offset
                end = _source_end(part, end_char)
                if end is not None:
                    yield end, sample, False
                    done = _behind_attached(turn.text, end, sentence.end)
                    yield done, sample, False
            if part.end_sample is None:
                return
            if not part.words:
                for offset in range(sentence.start + 1, sentence.end):
                    if turn.text[offset].isspace() and (at := mark_sample(turn, offset)) is not None:
                        yield offset, at, False
            yield sentence.end, part.end_sample, False
            if self._offset >= sentence.end:
                self._n_parts += 1

    def _ms(self, sample: float) -> float:
        return round(sample * 1000 / self._turn.settings.rate_hz, 1)


def _source_end(part: Part, n_spoken: int) -> int | None:
    """The offset in the turn's text at which spoken character `n_spoken` ends. None inside a number that is read."""
    at = 0
    for span in part.spans:
        if n_spoken <= at + len(span.spoken):
            if span.is_written:
                return part.sentence.start + span.start + n_spoken - at
            return part.sentence.start + span.end if n_spoken == at + len(span.spoken) else None
        at += len(span.spoken)
    return part.sentence.end


def _behind_attached(text: str, offset: int, end: int) -> int:
    """The offset behind the signs that belong to the word before `offset`."""
    while offset < end and text[offset] in ATTACHED:
        offset += 1
    return offset


def _before_opening(text: str, offset: int, done: int) -> int:
    """The offset before the signs that open the word at `offset`, no further back than `done`."""
    while offset > done and not text[offset - 1].isspace() and not text[offset - 1].isalnum():
        offset -= 1
    return offset


def _ends_word(text: str, offset: int) -> bool:
    """Whether a word ends at `offset`."""
    if text[offset - 1].isspace():
        return False
    return offset == len(text) or text[offset].isspace() or stands_alone(text[offset - 1]) or stands_alone(text[offset])


def _spread(known: list[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """The samples at which each character begins and ends, evenly between the offsets that are known."""
    begins: list[float] = []
    ends: list[float] = []
    for (begin, first), (end, last) in pairwise(known):
        samples = [first + (last - first) * n / max(1, end - begin) for n in range(end - begin + 1)]
        begins += samples[:-1]
        ends += samples[1:]
    return begins, ends
