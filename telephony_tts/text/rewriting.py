"""Text that is read in another way than its rules say: words of a lexicon, and marks such as SSML's `<sub>`.

A `Reading` replaces a part of the bot's text. The text with all its replacements is then read as one text, so that a
replacement has the words around it as its context. The spans that result refer to the bot's own characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from telephony_tts.text.markdown import fold
from telephony_tts.text.normalizer import Sounds, SpokenSpan, detect_lang, normalize_spans, touch


@dataclass(frozen=True, slots=True)
class Reading:
    """`text` is read instead of characters `[start, end)` of the bot's text, at least one; "" says nothing.

    `text` is normalised with the words around it; with `verbatim` it is spoken as it stands. `pronunciation` is what a
    text cannot express: how `text` sounds. It needs a `text` that the normaliser leaves as it is, or `verbatim`.
    Otherwise it is dropped.
    """

    start: int
    end: int
    text: str
    pronunciation: Sounds | None = None
    verbatim: bool = False


def told_changes(text: str, spans: Iterable[SpokenSpan]) -> Iterator[str]:
    """A line for each place of `text` that is spoken by a reading, for people: "SQL -> sequel"."""
    for span in spans:
        if span.is_reading:
            sound = "" if span.sounds is None else f" [{span.sounds[0]} {span.sounds[1]}]"
            yield f"{text[span.start : span.end]} -> {span.spoken.strip()}{sound}"


def spoken_spans(
    text: str,
    lang: str | None = None,
    control: Collection[str] = (),
    readings: Iterable[Reading] = (),
    before: str = "",
    codes: set[str] | None = None,
) -> list[SpokenSpan]:
    """The spoken form of `text` with its `readings`, in spans that cover `text` in order without gaps.

    The arguments are else those of `normalize_spans`. A reading that overlaps an earlier one or a control
    token, or lies outside the text, is dropped. A span that a reading is part of has `is_reading`. Never raises.
    """
    kept = _apart(text, control, readings)
    if not kept:
        return normalize_spans(text, lang, control, before, codes)
    lang = lang or detect_lang(text)
    rewritten = _Rewritten(text, kept)
    if not any(reading.verbatim for reading in kept):
        read = normalize_spans(rewritten.text, lang, control, before, codes)
        return _mapped_back(len(text), rewritten, read)
    return _pieces_mapped_back(len(text), rewritten, lang, control, before, codes)


def _mapped_back(n_chars: int, rewritten: _Rewritten, read: list[SpokenSpan]) -> list[SpokenSpan]:
    """The spans of the rewritten text as spans of the bot's text. It does what `_pieces_mapped_back` does for a text
    without verbatim readings, in half the time."""
    stretches, text = rewritten.stretches, rewritten.text
    last, n = len(stretches) - 1, 0
    spans: list[SpokenSpan] = []
    done = 0
    at, first, _, reading = stretches[0]
    until = stretches[1][0] if last else len(text)
    for span in read:
        begin, stop, spoken = span.start, span.end, span.spoken
        while n < last and until <= begin:
            n += 1
            at, first, _, reading = stretches[n]
            until = stretches[n + 1][0] if n < last else len(text)
        if reading is None and (stop <= until or n == last):
            begin += first - at
            if begin > done:
                spans.append(SpokenSpan(done, begin, ""))
            spans.append(span if begin == span.start else SpokenSpan(begin, stop + first - at, spoken))
            done = stop + first - at
            continue
        n_added = len(spoken) - (stop - begin)  # 1 with a space that separates words
        if n_added not in (0, 1) or not rewritten.is_written(begin, stop, spoken[n_added:]):
            source_start, source_end = rewritten.source(begin, stop)
            touched = rewritten.reading_in(begin, stop)
            done = _add(spans, done, source_start, source_end, spoken, touched)
            continue
        said = 0
        for each_at, start, finish, by in stretches[n:]:
            if each_at >= stop:
                break
            length = finish - start if by is None else len(by.text)
            left, right = max(begin, each_at), min(stop, each_at + length)
            if left >= right:
                continue  # a reading that says nothing
            if by is None:
                start, finish = start + left - each_at, start + right - each_at
            part = spoken[said : said + right - left + n_added]
            said, n_added = said + right - left + n_added, 0
            done = _add(spans, done, start, finish, part, by)
    if n_chars > done:
        spans.append(SpokenSpan(done, n_chars, ""))
    return spans


def _add(spans: list[SpokenSpan], done: int, start: int, end: int, spoken: str, reading: Reading | None) -> int:
    """Add what is said for `[start, end)` of the bot's text, which is covered up to `done`. Returns the new `done`."""
    if start < done:
        before = spans.pop()
        spans.append(SpokenSpan(before.start, max(before.end, end), before.spoken + spoken, True))
        return max(done, end)
    if start > done:
        spans.append(SpokenSpan(done, start, ""))
    if reading is None:
        spans.append(SpokenSpan(start, end, spoken))
        return end
    sounds = reading.pronunciation
    if sounds is not None and (start, end, spoken.lstrip(" ")) != (reading.start, reading.end, reading.text):
        sounds = None
    spans.append(SpokenSpan(start, end, spoken, True, sounds))
    return end


def _pieces_mapped_back(
    n_chars: int,
    rewritten: _Rewritten,
    lang: str,
    control: Collection[str],
    before: str,
    codes: set[str] | None = None,
) -> list[SpokenSpan]:
    """The spoken form of each piece of the rewritten text, as spans of the bot's text."""
    spans = _SourceSpans(n_chars)
    for start, end, reading in rewritten.pieces():
        piece = rewritten.text[start:end]
        if reading is not None:
            spans.add(reading.start, reading.end, piece, reading)
            continue
        for span in normalize_spans(piece, lang, control, "" if start else before, codes):
            begin, stop = start + span.start, start + span.end
            if (offset := rewritten.plain_offset(begin, stop)) is not None:
                spans.add_plain(begin + offset, stop + offset, span)
                continue
            n_added = len(span.spoken) - (stop - begin)  # 1 with a space that separates words
            if n_added in (0, 1) and rewritten.is_written(begin, stop, span.spoken[n_added:]):
                at = 0
                for n_chars, first, last, reading in rewritten.parts(begin, stop):
                    spans.add(first, last, span.spoken[at : at + n_chars + n_added], reading)
                    at, n_added = at + n_chars + n_added, 0
            else:
                spans.add(*rewritten.source(begin, stop), span.spoken, rewritten.reading_in(begin, stop))
    return spans.close()


def _apart(text: str, control: Collection[str], readings: Iterable[Reading]) -> list[Reading]:
    """Those of `readings` that can be used, in order."""
    taken = [found.span() for found in re.finditer("|".join(map(re.escape, control)), text)] if control else []
    kept: list[Reading] = []
    at = 0
    for reading in sorted(readings, key=lambda reading: reading.start):
        if not at <= reading.start < reading.end <= len(text):
            continue
        if any(start < reading.end and reading.start < end for start, end in taken):
            continue
        kept.append(reading)
        at = reading.end
    return kept


class _Stretch(NamedTuple):
    """A part of the rewritten text from `at`, and the characters `[start, end)` of the bot that it stands for."""

    at: int
    start: int
    end: int
    reading: Reading | None


class _Rewritten:
    """`text` with the readings in place, and the way back."""

    def __init__(self, text: str, readings: list[Reading]) -> None:
        pieces: list[str] = []
        self.stretches: list[_Stretch] = []
        n_chars = done = 0
        for reading in readings:
            for start, end, spoken, by in (
                (done, reading.start, text[done : reading.start], None),
                (reading.start, reading.end, reading.text, reading),
            ):
                self.stretches.append(_Stretch(n_chars, start, end, by))
                pieces.append(spoken)
                n_chars += len(spoken)
            done = reading.end
        self.stretches.append(_Stretch(n_chars, done, len(text), None))
        pieces.append(text[done:])
        self.text = "".join(pieces)
        self._starts = [stretch.at for stretch in self.stretches]
        self._n_passed = 0
        """Stretches that end before the last `begin` of `plain_offset`."""

    def pieces(self) -> Iterator[tuple[int, int, Reading | None]]:
        """`[start, end)` of each verbatim reading, and of the text between them, which is read together."""
        at = 0
        for stretch in self.stretches:
            reading = stretch.reading
            if reading is None or not reading.verbatim or not reading.text:
                continue
            if at < stretch.at:
                yield at, stretch.at, None
            at = stretch.at + len(reading.text)
            yield stretch.at, at, reading
        if at < len(self.text):
            yield at, len(self.text), None

    def plain_offset(self, begin: int, stop: int) -> int | None:
        """What leads from `[begin, stop)` to the bot's characters, None if a reading is near. `begin` never shrinks."""
        starts, n = self._starts, self._n_passed
        while n + 1 < len(starts) and starts[n + 1] <= begin:
            n += 1
        self._n_passed = n
        stretch = self.stretches[n]
        if stretch.reading is not None or (n + 1 < len(starts) and stop > starts[n + 1]):
            return None
        return stretch.start - stretch.at

    def is_written(self, begin: int, stop: int, spoken: str) -> bool:
        """Whether each character of `[begin, stop)` is spoken as it is written."""
        written = self.text[begin:stop]
        return spoken == written or (not written.isascii() and spoken == fold(written))

    def parts(self, begin: int, stop: int) -> Iterator[tuple[int, int, int, Reading | None]]:
        """`[begin, stop)`, cut where readings begin and end: (characters, start and end for the bot, the reading).

        `begin` is that of the last `plain_offset`. A reading has all its characters of the bot.
        """
        n_all = len(self.stretches)
        for n in range(self._n_passed, n_all):
            at, start, end, reading = self.stretches[n]
            if at >= stop:
                return
            last = self._starts[n + 1] if n + 1 < n_all else len(self.text)
            first, last = max(begin, at), min(stop, last)
            if first >= last:
                continue  # a reading that says nothing
            if reading is None:
                start, end = start + first - at, start + last - at
            yield last - first, start, end, reading

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The bot's characters for `[start, end)`, which is not empty: all of a reading that it touches."""
        first = self.stretches[bisect_right(self._starts, start) - 1]
        last = self.stretches[bisect_right(self._starts, end - 1) - 1]
        return (
            first.start + start - first.at if first.reading is None else first.start,
            last.start + end - last.at if last.reading is None else last.end,
        )

    def reading_in(self, start: int, end: int) -> Reading | None:
        """A reading that `[start, end)` touches. One that says nothing counts only inside it."""
        for stretch in self.stretches:
            if stretch.reading is not None and stretch.at < end and start < stretch.at + len(stretch.reading.text):
                return stretch.reading
        return None


class _SourceSpans:
    """Builds spans of the bot's text. Spans that overlap become one, and gaps become silent spans."""

    def __init__(self, n_chars: int) -> None:
        self._n_chars = n_chars
        self._spans: list[SpokenSpan] = []
        self._at = 0
        self._last = ""
        self._was_verbatim = False

    def add(self, start: int, end: int, spoken: str, reading: Reading | None) -> None:
        is_verbatim = reading is not None and reading.verbatim
        if spoken:
            if (is_verbatim or self._was_verbatim) and touch(self._last, spoken[0]):
                spoken = " " + spoken
            self._last, self._was_verbatim = spoken[-1], is_verbatim
        if start < self._at:
            before = self._spans.pop()
            self._spans.append(SpokenSpan(before.start, max(before.end, end), before.spoken + spoken, is_reading=True))
        else:
            self._fill(start)
            sounds = reading.pronunciation if reading is not None else None
            is_whole = reading is not None and (start, end) == (reading.start, reading.end)
            is_same = reading is not None and spoken.lstrip(" ") == reading.text
            kept = sounds if is_whole and is_same else None
            self._spans.append(SpokenSpan(start, end, spoken, reading is not None, kept))
        self._at = max(self._at, end)

    def add_plain(self, start: int, end: int, span: SpokenSpan) -> None:
        """Add `span`, which no reading touches, at its place in the bot's text."""
        spoken = span.spoken
        if self._was_verbatim and spoken:
            self.add(start, end, spoken, None)
            return
        if start > self._at:
            self._spans.append(SpokenSpan(self._at, start, ""))
        self._spans.append(span if span.start == start else SpokenSpan(start, end, spoken))
        self._at = end
        if spoken:
            self._last = spoken[-1]

    def close(self) -> list[SpokenSpan]:
        self._fill(self._n_chars)
        return self._spans

    def _fill(self, end: int) -> None:
        if end > self._at:
            self._spans.append(SpokenSpan(self._at, end, ""))
