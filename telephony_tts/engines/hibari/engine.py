"""The embedded voice: neural English speech on one CPU thread, 24 kHz, no download.

A sentence takes 12 to 20 ms, so a cancel takes effect between pieces of at most 200 characters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from telephony_tts.engines.api import Chunk, Utterance, Voice
from telephony_tts.engines.front_ends.english import english_reader
from telephony_tts.engines.hibari.model import SAMPLE_RATE_HZ, HibariModel
from telephony_tts.engines.speech import SpokenPiece, speak_pieces
from telephony_tts.engines.threaded_engine import ThreadedEngine
from telephony_tts.engines.words import LATIN, scripts
from telephony_tts.engines.workers import Cancelled, Work
from telephony_tts.runtime.errors import EngineUnavailable, UnknownVoice, UnsupportedText, how_to_get

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


class HibariEngine(ThreadedEngine[HibariModel]):
    """Refuses letters of scripts other than Latin, which it would misread or drop."""

    name, package = "hibari", "hibari-tts"
    voices = (_HEART,)

    def __init__(self, *, n_workers: int = 2) -> None:
        super().__init__(n_workers)

    def check(self, utterance: Utterance) -> None:
        if utterance.voice is not None and utterance.voice != _HEART.name:
            raise UnknownVoice(f"hibari has no voice {utterance.voice!r}; it has {_HEART.name!r}")
        foreign = sorted(scripts(utterance.text) - {LATIN})
        if foreign:
            raise UnsupportedText(f"hibari speaks English only, not {'/'.join(foreign).lower()} letters")

    def shown(self, utterance: Utterance) -> Mapping[str, str]:
        """`given`: the phonemes, as words without an own pronunciation have them."""
        reader = english_reader()
        return {"given": reader.letters(reader.read(utterance.text).ids[1:-1])}

    def load(self) -> Iterator[HibariModel]:
        model = HibariModel()
        if not model.has_durations:
            log.warning("this hibari release does not report phoneme durations: word timings are estimated")
        model.speak("Hello, thank you for calling.")
        yield model

    def unavailable(self, failure: Exception) -> EngineUnavailable:
        if isinstance(failure, ImportError):
            return EngineUnavailable(f"hibari needs the package {failure.name}: {how_to_get()}")
        return EngineUnavailable(f"hibari could not load its voice: {failure}")

    def work(self, loaded: HibariModel, utterance: Utterance) -> tuple[Work[Chunk], Callable[[], None]]:
        return lambda cancelled: _speak(loaded, utterance, cancelled), lambda: None


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
