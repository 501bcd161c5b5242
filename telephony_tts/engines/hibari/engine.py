"""The embedded voice: neural English speech on one CPU thread, 24 kHz, no download.

A sentence takes 12 to 20 ms, so a cancel takes effect between pieces of at most 200 characters.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.front_ends.english import english_reader
from telephony_tts.engines.hibari.model import SAMPLE_RATE_HZ, HibariModel
from telephony_tts.engines.speech import SpokenPiece, speak_pieces
from telephony_tts.engines.versions import package_version
from telephony_tts.engines.words import (
    LATIN,
    is_speakable,
    scripts,
)
from telephony_tts.engines.workers import Cancelled, WorkerPool
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, UnknownVoice, UnsupportedText, shell_command

log = logging.getLogger(__name__)

MIN_SPEED, MAX_SPEED = 0.5, 2.0

_HEART = Voice(
    name="heart",
    engine="hibari",
    languages=("en",),
    sample_rate_hz=SAMPLE_RATE_HZ,
    gain_db=5.0,
    description="American English, female (hibari, distilled from Kokoro af_heart)",
)


class HibariEngine:
    """Refuses letters of scripts other than Latin, which it would misread or drop."""

    def __init__(self, *, n_workers: int = 2) -> None:
        self.name = "hibari"
        self.streams_text = False
        self.voices: tuple[Voice, ...] = (_HEART,)
        self._n_workers = n_workers
        self._model: HibariModel | None = None
        self._pool: WorkerPool | None = None

    async def start(self) -> None:
        if self._pool is not None:
            return
        self._pool = WorkerPool(self._n_workers, self.name)
        try:
            async for model in self._pool.stream(_load):
                self._model = model
        except BaseException as failure:
            await self.close()
            if isinstance(failure, Exception):
                raise _unavailable(failure) from failure
            raise

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._model = None

    def stats(self) -> EngineStats:
        return self._pool.stats() if self._pool is not None else EngineStats()

    def counters(self) -> dict[str, float]:
        return {}

    def version(self, voice: str) -> str:
        return package_version("hibari-tts")

    def check(self, utterance: Utterance) -> None:
        if utterance.voice is not None and utterance.voice != _HEART.name:
            raise UnknownVoice(f"hibari has no voice {utterance.voice!r}; it has {_HEART.name!r}")
        foreign = sorted(scripts(utterance.text) - {LATIN})
        if foreign:
            raise UnsupportedText(f"hibari speaks English only, not {'/'.join(foreign).lower()} letters")

    def shown(self, utterance: Utterance) -> Mapping[str, str]:
        """`given`: the phonemes, as words without an own pronunciation have them."""
        reader = english_reader()
        letters = {number: letter for letter, number in reader.symbols.items()}
        return {"given": "".join(letters[number] for number in reader.read(utterance.text).ids[1:-1])}

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if not is_speakable(utterance.text):
            return
        pool, model = self._pool, self._model
        if pool is None or model is None:
            raise EngineError("hibari is not started")
        stream = pool.stream(lambda cancelled: _speak(model, utterance, cancelled), utterance.deadline_ns)
        try:
            async for chunk in stream:
                yield chunk
        except EngineError:
            raise
        except Exception as failure:
            raise EngineError(f"hibari failed: {failure}") from failure
        finally:
            await stream.aclose()


def _unavailable(failure: Exception) -> EngineUnavailable:
    if isinstance(failure, ImportError):
        how = shell_command("pip install 'hibari-tts>=0.2.1,<0.3' onnxruntime")
        return EngineUnavailable(f"hibari needs {failure.name!r}: {how}")
    return EngineUnavailable(f"hibari could not load its voice: {failure}")


def _load(cancelled: Cancelled) -> Iterator[HibariModel]:
    model = HibariModel()
    if not model.has_durations:
        log.warning("this hibari release does not report phoneme durations: word timings are estimated")
    model.speak("Hello, thank you for calling.")
    yield model


def _speak(model: HibariModel, utterance: Utterance, cancelled: Cancelled) -> Iterator[Chunk]:
    speed = min(MAX_SPEED, max(MIN_SPEED, utterance.speed))
    n_before = 0

    def speak(text: str, index: int, trail_ms: float) -> SpokenPiece:
        nonlocal n_before
        first, last = n_before, n_before + len(text)
        n_before = last  # the pieces cover the text
        sounds = [
            (each.start - first, each.end - first, each.value)
            for each in utterance.pronunciations
            if each.alphabet == "ipa" and first <= each.start and each.end <= last
        ]
        seed = abs(utterance.seed or 0) + index
        return model.speak(text, speed=speed, seed=seed, trail_ms=trail_ms, sounds=sounds)

    return speak_pieces(utterance.text, speak, cancelled)
