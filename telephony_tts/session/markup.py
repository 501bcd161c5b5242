"""The SSML of one turn: what the bot wrote, and what its tags say at each place of the text that is spoken.

Inside a turn all offsets count the text without tags. What the bot is told is in its own characters, tags included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import replace

from telephony_tts.session.settings import TurnVoice
from telephony_tts.text.normalizer import Sounds, SpokenSpan, choose_language, normalize
from telephony_tts.text.rewriting import Reading
from telephony_tts.text.say_as import say_as
from telephony_tts.text.ssml import MarkupEvent, MarkupReading, MarkupStyle, SsmlReader, begins_with_speak
from telephony_tts.text.x_sampa import ipa_of
from telephony_tts.wire.native import MAX_SPEED, MIN_SPEED

KnowsVoice = Callable[[str], bool]
"""Whether some engine has a voice of this name."""

_EMPHASIS = ("<strong>", "</strong>")
"""The control tokens of an engine that can emphasise words."""


class TurnMarkup:
    """See the module text. With `is_certain` the turn is SSML; otherwise it is if it begins with <speak>."""

    def __init__(self, *, is_certain: bool, knows_voice: KnowsVoice | None = None) -> None:
        self._reader = SsmlReader()
        self._is_certain = is_certain
        self._knows_voice = knows_voice
        self._pieces: list[str] = []
        self._source = ""
        self.n_chars = 0
        """How much the bot wrote."""
        self.is_plain = False
        """The turn did not begin with <speak> after all, so it is plain text."""
        self._style_starts: list[int] = []
        self._styles: list[MarkupStyle] = []
        self._reading_starts: list[int] = []
        self._readings: list[tuple[int, int, MarkupReading]] = []
        self._emphases: list[tuple[int, bool]] = []
        self.marks: list[tuple[str, int, int]] = []
        """(name, offset in the turn's text, inserts before it) of marks that were not set yet."""
        self.warnings: list[tuple[str, str]] = []
        """(code, message) of warnings that the bot was not told yet."""
        self._has_warned = False
        self._has_warned_of_voice = False
        self._has_warned_of_emphasis = False

    @property
    def source(self) -> str:
        """All that the bot wrote."""
        if self._pieces:
            self._source += "".join(self._pieces)
            self._pieces.clear()
        return self._source

    def feed(self, text: str) -> list[MarkupEvent]:
        """The bot wrote more. Nothing is read until it is certain that the turn is SSML."""
        self._pieces.append(text)
        self.n_chars += len(text)
        if not self._is_certain:
            is_ssml = begins_with_speak(self.source)
            self.is_plain = is_ssml is False
            if not is_ssml:
                return []
            self._is_certain = True
            text = self.source
        events = self._reader.feed(text)
        self._warn()
        return events

    def close(self) -> list[MarkupEvent]:
        """The bot wrote all."""
        if not self._is_certain:
            self.is_plain = True
            return []
        events = self._reader.close()
        self._warn()
        return events

    def _warn(self) -> None:
        """One warning a turn: a model that makes a mistake makes it often."""
        if self._reader.problem is not None and not self._has_warned:
            self._has_warned = True
            self.warnings.append(("bad_markup", self._reader.problem))

    # ------------------------------------------------------------- what the tags say

    def begin_style(self, style: MarkupStyle, offset: int) -> None:
        """The text from `offset` on is spoken in this style."""
        if style.voice is not None and self._knows_voice is not None and not self._knows_voice(style.voice):
            if not self._has_warned_of_voice:
                self._has_warned_of_voice = True
                self.warnings.append(("unknown_voice", f"no voice {style.voice!r}; the turn's own voice speaks"))
            style = replace(style, voice=None)
        self._style_starts.append(offset)
        self._styles.append(style)

    def voice_at(self, offset: int, speaking: TurnVoice) -> TurnVoice:
        """How the sentence at `offset` is spoken in a turn that began with `speaking`."""
        at = bisect_right(self._style_starts, offset) - 1
        if at < 0:
            return speaking
        style = self._styles[at]
        return replace(
            speaking,
            voice=speaking.voice if style.voice is None else style.voice,
            lang=speaking.lang if style.lang is None else style.lang,
            speed=min(MAX_SPEED, max(MIN_SPEED, speaking.speed * style.rate)),
        )

    def add_reading(self, reading: MarkupReading, text: str, end: int) -> None:
        """`text`, which ends at `end` of the turn's text, is read in this way."""
        start = end - len(text.lstrip())
        self._reading_starts.append(start)
        self._readings.append((start, start + len(text.strip()), reading))

    def masked(self, text: str, start: int) -> str:
        """The turn's text from `start`, where a reading has no signs or blanks: no sentence may end inside it."""
        end = start + len(text)
        for first, last, _ in self._overlapping(start, end):
            first, last = max(first, start) - start, min(last, end) - start
            inside = "".join(char if char.isalnum() else "X" for char in text[first:last])
            text = text[:first] + inside + text[last:]
        return text

    def readings(self, text: str, start: int, lang: str | None) -> list[Reading]:
        """The readings in the sentence `text`, which begins at `start` of the turn's text."""
        found = [item for item in self._overlapping(start, start + len(text)) if item[0] >= start]
        if not found:
            return []
        language = choose_language(text, lang)
        readings = []
        for first, last, reading in found:
            first, last = first - start, last - start
            if last > len(text):
                break  # it was cut, because it is too long
            readings.append(_reading(reading, first, last, text[first:last], language))
        return [reading for reading in readings if reading is not None]

    def emphasised(
        self, spans: list[SpokenSpan], start: int, end: int, control: Collection[str]
    ) -> list[SpokenSpan]:
        """The spans of the sentence at `start` to `end`, with the tokens of emphasis if they are among `control`."""
        if not self._emphases or not _can_emphasise(control):
            return spans
        is_on = False
        places: list[tuple[int, str]] = []
        for offset, is_begin in self._emphases:
            if offset >= end:
                break
            if offset <= start:
                is_on = is_begin
                continue
            if not places and is_on:
                places.append((0, _EMPHASIS[0]))
            places.append((offset - start, _EMPHASIS[0 if is_begin else 1]))
            is_on = is_begin
        if is_on and not places:
            places.append((0, _EMPHASIS[0]))
        if is_on:
            places.append((end - start, _EMPHASIS[1]))
        for at, token in reversed(places):
            spans = _with_token(spans, at, token)
        return spans

    def begin_emphasis(self, is_on: bool, offset: int, control: Collection[str]) -> None:
        """The text from `offset` on is emphasised, or is not any more. Only the tokens of `control` can do that."""
        self._emphases.append((offset, is_on))
        if not self._has_warned_of_emphasis and not _can_emphasise(control):
            self._has_warned_of_emphasis = True
            needed = " and ".join(_EMPHASIS)
            message = f"<emphasis> has no effect: engines.cosyvoice2.control_tokens lacks {needed}"
            self.warnings.append(("no_emphasis", message))

    def _overlapping(self, start: int, end: int) -> list[tuple[int, int, MarkupReading]]:
        """The readings that have text between `start` and `end`. They lie in order, one behind the other."""
        at = max(0, bisect_right(self._reading_starts, start) - 1)
        found = []
        for item in self._readings[at:]:
            if item[0] >= end:
                break
            if item[1] > start:
                found.append(item)
        return found

    # ------------------------------------------------------------- what the bot is told

    def offset(self, n_chars: int) -> int:
        """Where the first `n_chars` of the turn's text end in what the bot wrote."""
        return self._reader.map.source(n_chars)

    def begin(self, n_chars: int) -> int:
        """Where the character behind the first `n_chars` of the turn's text is in what the bot wrote."""
        return self._reader.map.begin(n_chars)


def _can_emphasise(control: Collection[str]) -> bool:
    return all(token in control for token in _EMPHASIS)


def _reading(reading: MarkupReading, start: int, end: int, text: str, lang: str) -> Reading | None:
    """How `text` is read in a sentence in the language `lang`. None: as it stands."""
    if reading.kind == "sub":
        return Reading(start, end, reading.value)
    if reading.kind == "say-as":
        said = say_as(text, reading.value, reading.detail, lang)
        return None if said is None else Reading(start, end, said, verbatim=True)
    sounds: Sounds = ("pinyin", reading.value)
    if reading.detail != "pinyin":
        sounds = ("ipa", ipa_of(reading.value) if reading.detail == "x-sampa" else reading.value)
    return Reading(start, end, normalize(text, lang).strip() or text, sounds, verbatim=True)


def _with_token(spans: list[SpokenSpan], at: int, token: str) -> list[SpokenSpan]:
    """`spans` with `token` at `at`. It is never put into a number or a reading, but before it."""
    mark = SpokenSpan(at, at, token, True)
    for n, span in enumerate(spans):
        if span.start >= at:
            return [*spans[:n], replace(mark, start=span.start, end=span.start), *spans[n:]]
        if span.end > at:
            if not span.is_written:
                return [*spans[:n], replace(mark, start=span.start, end=span.start), *spans[n:]]
            n_before = at - span.start
            first = SpokenSpan(span.start, at, span.spoken[:n_before])
            return [*spans[:n], first, mark, SpokenSpan(at, span.end, span.spoken[n_before:]), *spans[n + 1 :]]
    return [*spans, mark]
