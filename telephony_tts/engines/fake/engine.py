"""An engine for tests whose audio shows what was spoken: each character is a tone of its own.

It satisfies the same contract as the real engines. It runs only on the event loop, so every delay is a timer that a
test can replace.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, Pcm, Timing, Utterance, Voice
from telephony_tts.engines.speaking_slots import SpeakingSlots
from telephony_tts.engines.words import is_speakable, words
from telephony_tts.runtime.errors import EngineError, UnknownVoice

SAMPLE_RATE_HZ = 24_000
MS_PER_CHAR = 60.0
RMS_DBFS = -20.0
FADE_MS = 2

_FIRST_HZ, _STEP_HZ, _N_TONES = 400.0, 36.0, 75
# 400 to 3064 Hz lies inside the telephone band, and "0" to "z" are 75 consecutive code points.


def tone_hz(char: str) -> float:
    """The frequency of a letter or digit. Each ASCII character has its own; other characters may share one."""
    return _FIRST_HZ + _STEP_HZ * (ord(char) % _N_TONES)


def render(
    text: str, *, sample_rate_hz: int = SAMPLE_RATE_HZ, ms_per_char: float = MS_PER_CHAR, speed: float = 1.0
) -> Pcm:
    """The audio of a text: a tone for a letter or digit, silence for another character; empty without either."""
    if not is_speakable(text):
        return np.zeros(0, np.int16)
    edges = _edges(len(text), sample_rate_hz, ms_per_char / speed)
    pcm = np.zeros(edges[-1], np.int16)
    for char, (start, end) in zip(text, pairwise(edges), strict=True):
        if char.isalnum():
            pcm[start:end] = _tone(tone_hz(char), end - start, sample_rate_hz)
    return pcm


def recognise(
    pcm: Pcm, alphabet: str, *, sample_rate_hz: int = SAMPLE_RATE_HZ, ms_per_char: float = MS_PER_CHAR
) -> str:
    """The text in `pcm`, which must start at the beginning of a character: letters of `alphabet`, space for silence."""
    heard = []
    edges = _edges(round(len(pcm) * 1000 / sample_rate_hz / ms_per_char), sample_rate_hz, ms_per_char)
    for start, end in pairwise(edges):
        part = pcm[start:end].astype(np.float64)
        phase = np.arange(len(part)) * (-2j * np.pi / sample_rate_hz)
        strengths = {char: abs(np.dot(part, np.exp(phase * tone_hz(char)))) for char in alphabet}
        best = max(strengths, key=lambda char: strengths[char])
        is_tone = np.sqrt(np.mean(np.square(part))) > 32768 * 10 ** (RMS_DBFS / 20) / 4
        heard.append(best if is_tone else " ")
    return "".join(heard)


class FakeEngine:
    """Speaks tones. `speed` is audio seconds per wall second; `first_audio_ms` is waited before the first chunk.

    `fail_after_chunks` raises EngineError in place of that chunk. With `hangs` no chunk ever comes. Every delay awaits
    `sleep`, in seconds. `n_live` counts the active generators. With `slots` so many utterances are spoken at once, and
    the others wait; its load is then known.
    """

    def __init__(
        self,
        *,
        name: str = "fake",
        voice_names: Sequence[str] = ("tone",),
        languages: Sequence[str] = ("en", "zh"),
        sample_rate_hz: int = SAMPLE_RATE_HZ,
        ms_per_char: float = MS_PER_CHAR,
        chunk_ms: float = 100.0,
        first_audio_ms: float = 0.0,
        speed: float = math.inf,
        fail_after_chunks: int | None = None,
        hangs: bool = False,
        slots: int = 0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.streams_text = False
        self.voices: tuple[Voice, ...] = tuple(
            Voice(voice, name, tuple(languages), sample_rate_hz, description="a tone per character")
            for voice in voice_names
        )
        self.first_audio_ms = first_audio_ms
        self.speed = speed
        self.fail_after_chunks = fail_after_chunks
        self.hangs = hangs
        self.n_live = 0
        self._slots = SpeakingSlots(slots)
        self._n_begun = 0
        self._sample_rate_hz = sample_rate_hz
        self._ms_per_char = ms_per_char
        self._n_chunk = max(1, round(sample_rate_hz * chunk_ms / 1000))
        self._sleep = sleep
        self._closing = asyncio.Event()

    async def start(self) -> None:
        self._closing = asyncio.Event()

    async def close(self) -> None:
        self._closing.set()

    def stats(self) -> EngineStats:
        if not self._slots.n:
            return EngineStats(n_running=self.n_live)
        n_running = self._slots.n_held
        load = (self.n_live + 1) / self._slots.n if self.n_live else 0.0
        return EngineStats(max(0, self.n_live - n_running), n_running, load)

    def counters(self) -> dict[str, float]:
        """`utterances` that began, and `busy_s`: seconds for which slots were held."""
        if not self._slots.n:
            return {}
        return {"utterances": float(self._n_begun), "busy_s": self._slots.held_s}

    def version(self, voice: str) -> str:
        return f"{self._sample_rate_hz} {self._ms_per_char} {self._n_chunk}"

    def check(self, utterance: Utterance) -> None:
        names = [voice.name for voice in self.voices]
        if utterance.voice is not None and utterance.voice not in names:
            raise UnknownVoice(f"{self.name} has no voice {utterance.voice!r}; it has {', '.join(names)}")

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        self.n_live += 1
        try:
            async with self._slots.held(utterance.deadline_ns):
                self._n_begun += 1
                if self.hangs:
                    await asyncio.Event().wait()
                if self.first_audio_ms > 0:
                    await self._sleep(self.first_audio_ms / 1000)
                pcm, timings = self._render(utterance)
                for n, start in enumerate(range(0, len(pcm), self._n_chunk)):
                    if n == self.fail_after_chunks:
                        raise EngineError(f"{self.name} was told to fail after {n} chunks")
                    if self._closing.is_set():
                        raise EngineError(f"{self.name} was closed")
                    part = pcm[start : start + self._n_chunk]
                    if n > 0 and math.isfinite(self.speed):
                        await self._sleep(len(part) / self._sample_rate_hz / self.speed)
                    begun = tuple(t for t in timings if start <= t.start_sample < start + self._n_chunk)
                    yield Chunk(part, self._sample_rate_hz, begun)
        finally:
            self.n_live -= 1

    def _render(self, utterance: Utterance) -> tuple[Pcm, list[Timing]]:
        text = utterance.text
        pcm = render(text, sample_rate_hz=self._sample_rate_hz, ms_per_char=self._ms_per_char, speed=utterance.speed)
        edges = _edges(len(text), self._sample_rate_hz, self._ms_per_char / utterance.speed)
        return pcm, [Timing(start, end, edges[start], edges[end]) for start, end in words(text)]


def _edges(n_chars: int, sample_rate_hz: int, ms_per_char: float) -> list[int]:
    return [round(i * ms_per_char * sample_rate_hz / 1000) for i in range(n_chars + 1)]


@lru_cache(maxsize=256)
def _tone(hz: float, n_samples: int, sample_rate_hz: int) -> Pcm:
    """A sine with short raised-cosine fades, so that characters join without a click."""
    wave = np.sin(np.arange(n_samples) * (2 * np.pi * hz / sample_rate_hz))
    n_fade = min(n_samples // 2, sample_rate_hz * FADE_MS // 1000)
    fade = 0.5 - 0.5 * np.cos(np.pi * np.arange(n_fade) / max(1, n_fade))
    wave[:n_fade] *= fade
    wave[n_samples - n_fade :] *= fade[::-1]
    pcm: Pcm = np.round(wave * (32767 * math.sqrt(2) * 10 ** (RMS_DBFS / 20))).astype(np.int16)
    return pcm
