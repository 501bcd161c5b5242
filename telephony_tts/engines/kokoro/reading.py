"""Text as the symbols of Kokoro: which front end reads a language, and which symbols each part of the text has.

No threads, no event loop. The front ends give words in the alphabet of the network, which has 114 symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from telephony_tts.engines.api import Pronunciation, Timing
from telephony_tts.engines.front_ends.english import EnglishReading, aligned, english_reader, hibari_phonemes
from telephony_tts.engines.front_ends.ipa_by_espeak import VOICES, EspeakText
from telephony_tts.engines.front_ends.japanese import Japanese, kana_symbols
from telephony_tts.engines.front_ends.mandarin import HAN_RUN, Mandarin, digits_as_han, sandhi, spelt, symbols
from telephony_tts.engines.front_ends.mandarin_words import MandarinWords

_IN_OTHER_LETTERS = {
    "t͡ʃ": "ʧ", "d͡ʒ": "ʤ", "t͡s": "ʦ", "d͡z": "ʣ", "t͡ɕ": "ʨ", "d͡ʑ": "ʥ", "tɕ": "ʨ", "dʑ": "ʥ", "tʃ": "ʧ", "dʒ": "ʤ",
    "ʑ": "ʥ", "g": "ɡ", ":": "ː", "'": "ˈ", "ʷ": "ᵝ", "ɫ": "l", "χ": "x",
    "a͡ɪ": "I", "a͡ʊ": "W", "e͡ɪ": "A", "o͡ʊ": "O", "ɔ͡ɪ": "Y",
}  # fmt: skip
"""IPA in symbols of the network, which lacks some; what is not here and not in its vocabulary is left out."""

_DROPPED = str.maketrans("", "", "-.\u0361\u0329")
"""Ties, hyphens, and the marks of syllables: the network has none of them."""

_PUNCTUATION = {
    "，": ", ", "、": ", ", "。": ". ", "！": "! ", "？": "? ", "：": ": ", "；": "; ", "…": "…", "—": "—", "（": " (",
    "）": ") ", "《": "“", "》": "”", "「": "“", "」": "”", "『": "“", "』": "”", "“": "“", "”": "”",
    "‘": "“", "’": "”",    ",": ", ", ".": ". ", "!": "! ", "?": "? ", ":": ": ", ";": "; ", "(": " (", ")": ") ",
    "।": ". ", "«": "“", "»": "”", '"': "“",
}  # fmt: skip
_HAN = HAN_RUN.pattern[1:-2]
_SPAN = re.compile(rf"({HAN_RUN.pattern})|([^\W{_HAN}](?:[^{_HAN}，、。！？：；（）《》「」]*[^\W{_HAN}])?)|(.)", re.S)
"""Han characters, a stretch of other letters and what stands between them, or another character."""

_LETTER_A = re.compile(r"(?<![\w'’])A(?![\w'’]| +[a-z])")
"""In a code among Han characters: 编号A二零六. The English front end takes it for the article."""


_ASPIRATED = re.compile("(?<!s)[ptk](?=[jwlɹ]?[ˈˌ])")
"""English stops with a breath behind them. A Mandarin voice has symbols with and without it: its p is a b."""


_Word = tuple[int, int, str, str]
"""(start, end, symbols, how it is shown) of a word; a mark has no symbols, and is shown as it stands."""
_CLAUSE = re.compile(r"([^,.;:!?…()«»“”\"¿¡।\n]+)|.", re.S)
_WRITTEN = re.compile(r"\S*\w\S*")


def ipa_symbols(ipa: str) -> str:
    """IPA in the letters of the network, for other languages than English."""
    ipa = ipa.replace("^", "\u0361")
    for written, ours in _IN_OTHER_LETTERS.items():
        ipa = ipa.replace(written, ours)
    return ipa.translate(_DROPPED)


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of the text, from `start`, and its symbols, from number `first`. `english`: what a Latin part says."""

    start: int
    text: str
    first: int
    last: int
    english: EnglishReading | None = None


@dataclass(frozen=True, slots=True)
class KokoroReading:
    """The symbols of a text, what each part of it has of them, and the text in pinyin and phonemes for people."""

    symbols: list[int]
    spans: list[_Span]
    written: str
    citation: str
    """The pinyin of its Han characters without the changes of tones in speech, or the kana of a Japanese text."""

    def parts(self, max_symbols: int) -> list[KokoroReading]:
        """The reading in parts of at most `max_symbols`, each with its spans. A span that is cut is heard from its
        beginning in the first part. Only a given pronunciation can be so long."""
        if len(self.symbols) <= max_symbols:
            return [self]
        found = []
        for at in range(0, len(self.symbols), max_symbols):
            end = min(at + max_symbols, len(self.symbols))
            spans = [
                _Span(span.start, span.text * (span.first >= at), max(span.first, at) - at, min(span.last, end) - at)
                for span in self.spans
                if span.first < end and span.last > at
            ]
            found.append(KokoroReading(self.symbols[at:end], spans, self.written, self.citation))
        return found


class KokoroReader:
    """Loads the front ends of both languages in its constructor (0.7 s). Several threads may call `read` at once."""

    def __init__(self) -> None:
        self._mandarin = Mandarin()
        self._words = MandarinWords()
        self._english = english_reader()

    @cached_property
    def _espeak(self) -> EspeakText:
        return EspeakText()

    @cached_property
    def _japanese(self) -> Japanese:
        return Japanese(self._english)

    def read(self, text: str, pronunciations: Sequence[Pronunciation] = (), language: str = "zh") -> KokoroReading:
        """The symbols of a text. `pronunciations` have their places in it. Symbols that Kokoro lacks are left out.
        `language` is that of the voice: "zh" also has English words. Another one's front end is loaded with its first
        text, and the ImportError of its package passes."""
        if language == "ja":
            return self._read_words(text, pronunciations, self._japanese_words)
        if language in VOICES:
            return self._read_words(text, pronunciations, partial(self._other_words, language))
        text = digits_as_han(text)
        citation = self._mandarin.read(text, pronunciations)
        syllables = sandhi(text, citation)
        ipa = {each.start: each for each in pronunciations if each.alphabet == "ipa"}
        ids: list[int] = []
        spans: list[_Span] = []
        written: list[str] = []
        space = self._english.symbols[" "]

        def begin_word() -> None:
            """Kokoro was trained on Mandarin with a blank between words."""
            if spans and spans[-1].last == len(ids) > 0:
                ids.append(space)

        at = 0
        while at < len(text):
            match = _SPAN.match(text, at)
            assert match is not None  # any character matches
            if (said := ipa.get(at)) is not None and (HAN_RUN.match(text, at) or said.end >= match.end()):
                begin_word()
                first = len(ids)
                ids += self._english.ids(hibari_phonemes(said.value))
                spans.append(_Span(at, text[at : said.end], first, len(ids)))
                written.append(f"/{said.value}/ ")
                at = said.end
                continue
            if match[1]:
                end = min((start for start in ipa if at < start < match.end()), default=match.end())
                begins = self._words.begins(self._mandarin.simplified(text[at:end]))
                for place in range(at, end):
                    if place - at in begins:
                        begin_word()
                    first = len(ids)
                    ids += self._english.ids(symbols(syllables[place]) or "") if place in syllables else []
                    if place in syllables:
                        spans.append(_Span(place, text[place], first, len(ids)))
                written.append("".join(spelt(text[at:end], {p - at: s for p, s in syllables.items()})))
                at = end
                continue
            if match[2]:
                inside = [
                    (each.start - at, each.end - at, each.value)
                    for each in ipa.values()
                    if at <= each.start and each.end <= match.end()
                ]
                if HAN_RUN.search(text) and not inside:
                    inside = [(letter.start(), letter.end(), "ˈeɪ") for letter in _LETTER_A.finditer(match[2])]
                english = self._english.read(match[2], inside)
                if language == "zh":
                    english = self._aspirated(english)
                begin_word()
                first = len(ids)
                ids += english.ids[1:-1]
                spans.append(_Span(at, match[2], first, len(ids), english))
                written.append("/" + self._english.letters(english.ids[1:-1]) + "/ ")
            else:
                mark = _PUNCTUATION.get(match[3], " " if match[3].isspace() else "")
                ids += self._english.ids(mark)
                written.append(mark)
            at = match.end()
        kept = [n for n, number in enumerate(ids) if number != space or 0 < n < len(ids) - 1]
        if len(kept) < len(ids) and ids[:1] == [space]:
            spans = [_Span(s.start, s.text, s.first - 1, s.last - 1, s.english) for s in spans]
        return KokoroReading([ids[n] for n in kept], spans, re.sub(" +", " ", "".join(written)).strip(),
                             " ".join(citation[place] for place in sorted(citation)))

    def _aspirated(self, english: EnglishReading) -> EnglishReading:
        """The reading with the mark of aspiration behind each p, t and k that has it in English."""
        phonemes = self._english.letters(english.ids[1:-1])
        stops = {match.start() + 1 for match in _ASPIRATED.finditer(phonemes)}
        ids: list[int] = []
        moved = []  # the new place of each symbol, and of the end
        for at, number in enumerate(english.ids):
            moved.append(len(ids))
            ids += [number, *self._english.ids("ʰ")] if at in stops else [number]
        moved.append(len(ids))
        return EnglishReading(ids, english.words, [(moved[first], moved[last]) for first, last in english.spans])

    def _japanese_words(self, text: str) -> Iterator[_Word]:
        for word in self._japanese.read(text):
            yield word.start, word.end, kana_symbols(word.kana), word.kana

    def _other_words(self, language: str, text: str) -> Iterator[_Word]:
        """A clause at a time, because words change each other. If espeak-ng joins some, they are heard as one."""
        for clause in _CLAUSE.finditer(text):
            said = ipa_symbols(self._espeak.read(clause[0], language)).split() if clause[1] else []
            written = [word.span() for word in _WRITTEN.finditer(text, clause.start(), clause.end())]
            if said and len(said) == len(written):
                yield from ((*place, phonemes, "") for place, phonemes in zip(written, said, strict=True))
            elif written and said:
                yield written[0][0], written[-1][1], " ".join(said), ""
            else:
                yield clause.start(), clause.end(), "", clause[0]

    def _read_words(
        self, text: str, pronunciations: Sequence[Pronunciation], words: Callable[[str], Iterator[_Word]]
    ) -> KokoroReading:
        """The reading of a text whose front end gives words with their symbols, and marks."""
        ids: list[int] = []
        spans: list[_Span] = []
        written: list[str] = []
        kana: list[str] = []

        def add(start: int, end: int, phonemes: str) -> None:
            found = self._english.ids(phonemes)
            if spans and start == end:  # a part of a number that has no letter of its own
                ids.extend(found)
                spans[-1] = _Span(spans[-1].start, spans[-1].text, spans[-1].first, len(ids))
            elif found:
                ids.extend([*self._english.ids(" "), *found] if ids and written[-1:] != [" "] else found)
                spans.append(_Span(start, text[start:end], len(ids) - len(found), len(ids)))
            written.extend([" ", phonemes] if found and written[-1:] not in ([], [" "]) else [phonemes])

        at = 0
        for said in [*(each for each in pronunciations if each.alphabet == "ipa"), None]:
            for start, end, phonemes, shown in words(text[at : len(text) if said is None else said.start]):
                kana.append(shown)
                if phonemes:
                    add(at + start, at + end, phonemes)
                    continue
                mark = "".join(_PUNCTUATION.get(char, "") for char in shown).strip()
                ids += self._english.ids(mark)
                written.append(mark)
            if said is not None:
                kana.append(f"/{said.value}/")
                add(said.start, said.end, ipa_symbols(said.value))
                at = said.end
        return KokoroReading(ids, spans, "".join(written).strip(), "".join(kana))

    def timings(self, reading: KokoroReading, edges: Sequence[int]) -> list[Timing]:
        """When each word is heard. `edges[i]` is the first sample of symbol i."""
        timings: list[Timing] = []
        for span in reading.spans:
            if span.first == span.last or not span.text:
                continue
            if span.english is None:
                timings.append(Timing(span.start, span.start + len(span.text), edges[span.first], edges[span.last]))
                continue
            own = [edges[max(0, span.first - 1)], *edges[span.first : span.last + 1], edges[span.last]]
            timings += [
                Timing(t.start_char + span.start, t.end_char + span.start, t.start_sample, t.end_sample)
                for t in aligned(span.text, span.english, own)
            ]
        return timings
