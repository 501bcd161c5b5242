"""The CosyVoice2 engine: a model directory and its voices behind `engines.api.Engine`.

One utterance at a time per worker, each with its own slot of the language model and its own state of the other two
networks. Voices are the model directory's `spk2info.pt` and the voice store's; what a voice's utterances share is made
when it is first used and kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path

import torch

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ
from telephony_tts.engines.cosyvoice2.stream import (
    DEFAULT,
    FAST,
    Request,
    Schedule,
    SpeakerPrompt,
    SpeechModel,
    speak,
)
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.voice_store import VoiceStore, read_spk2info
from telephony_tts.engines.cosyvoice2.weights import Checkpoint, load_model_directory
from telephony_tts.engines.words import is_speakable
from telephony_tts.engines.workers import Cancelled, WorkerPool
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice

log = logging.getLogger(__name__)

LANGUAGES = ("zh", "en", "ja", "ko")
MIN_SPEED, MAX_SPEED = 0.5, 2.0
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PROFILES: Mapping[str, Schedule] = {"default": DEFAULT, "fast": FAST}
WARM_UP = "Hello."


class CosyVoice2Engine:
    """`n_slots` utterances can be under way at once, those that wait for their listener included; the next one fails.

    `profile` "fast" gives first audio from 13 speech tokens instead of 25, at some cost in quality at chunk ends.
    """

    def __init__(
        self,
        model_dir: Path,
        voice_dir: Path | None = None,
        n_workers: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        profile: str = "default",
        *,
        n_slots: int = 16,
        n_threads: int = 1,
    ) -> None:
        """Raises ConfigError for a dtype or profile that there is not, or no slots."""
        if dtype not in DTYPES:
            raise ConfigError(f"cosyvoice2 has no dtype {dtype!r}; it has {', '.join(DTYPES)}")
        if profile not in PROFILES:
            raise ConfigError(f"cosyvoice2 has no profile {profile!r}; it has {', '.join(PROFILES)}")
        if n_slots < 1:
            raise ConfigError("cosyvoice2 needs at least one slot")
        self.name = "cosyvoice2"
        self._model_dir = Path(model_dir)
        self._store = VoiceStore(voice_dir) if voice_dir is not None else None
        self._n_workers, self._n_slots, self._n_threads = n_workers, n_slots, n_threads
        self._device, self._dtype = device, DTYPES[dtype]
        self._schedule = PROFILES[profile]
        self._pool: WorkerPool | None = None
        self._loaded: LoadedVoices | None = None

    @property
    def voices(self) -> tuple[Voice, ...]:
        """Those of the model directory, then those of the store. None before `start`."""
        names = self._loaded.features if self._loaded is not None else ()
        return tuple(Voice(name, self.name, LANGUAGES, SAMPLE_RATE_HZ) for name in names)

    async def start(self) -> None:
        if self._pool is not None:
            return
        # More threads than idle cores wait for each other at every layer (docs/experiments.md).
        torch.set_num_threads(self._n_threads)
        self._pool = WorkerPool(self._n_workers, self.name)
        try:
            async for loaded in self._pool.stream(self._load):
                self._loaded = loaded
        except BaseException as failure:
            await self.close()
            if isinstance(failure, Exception) and not isinstance(failure, EngineUnavailable):
                raise EngineUnavailable(f"cosyvoice2 could not load {self._model_dir}: {failure}") from failure
            raise

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._loaded = None

    def stats(self) -> EngineStats:
        return self._pool.stats() if self._pool is not None else EngineStats()

    def check(self, utterance: Utterance) -> None:
        """Any script is let pass: what the model does not know it reads badly and does not refuse."""
        if self._loaded is not None:
            self._loaded.name(utterance.voice)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if not is_speakable(utterance.text):
            return
        pool, loaded = self._pool, self._loaded
        if pool is None or loaded is None:
            raise EngineError("cosyvoice2 is not started")
        request = Request(
            utterance.text,
            utterance.seed or 0,
            min(MAX_SPEED, max(MIN_SPEED, utterance.speed)),
            utterance.instruct,
        )

        def work(cancelled: Cancelled) -> Iterator[Chunk]:
            return loaded.speak(loaded.name(utterance.voice), request, cancelled)

        stream = pool.stream(work, utterance.deadline_ns)
        try:
            async for chunk in stream:
                yield chunk
        except EngineError:
            raise
        except Exception as failure:
            raise EngineError(f"cosyvoice2 failed: {failure}") from failure
        finally:
            await stream.aclose()

    def _load(self, cancelled: Cancelled) -> Iterator[LoadedVoices]:
        checkpoint = load_model_directory(self._model_dir)
        if checkpoint.is_random:
            log.warning("%s has random weights: it makes noises, not speech", self._model_dir)
        features = read_voices(checkpoint, self._store)
        if not features:
            raise EngineUnavailable(
                f"cosyvoice2 has no voice: {self._model_dir} holds no usable spk2info.pt and no voice is stored; "
                "give a model directory with one, or a voice directory"
            )
        model = SpeechModel.load(checkpoint, device=self._device, dtype=self._dtype, n_slots=self._n_slots)
        loaded = LoadedVoices(model, features, self._schedule)
        for _ in loaded.speak(loaded.name(None), Request(WARM_UP), cancelled):
            pass
        yield loaded


class LoadedVoices:
    """A model and its voices. The shared part of each voice is made once, by whoever needs it first."""

    def __init__(self, model: SpeechModel, features: Mapping[str, PromptFeatures], schedule: Schedule) -> None:
        self.model = model
        self.features = dict(features)
        self._schedule = schedule
        self._prompts: dict[str, SpeakerPrompt] = {}
        self._making = threading.Lock()

    def name(self, voice: str | None) -> str:
        """The voice meant; the first where none is named. Raises UnknownVoice."""
        if voice is None:
            return next(iter(self.features))
        if voice not in self.features:
            raise UnknownVoice(f"cosyvoice2 has no voice {voice!r}; it has {', '.join(self.features)}")
        return voice

    def prompt(self, name: str) -> SpeakerPrompt:
        made = self._prompts.get(name)
        if made is not None:  # making one must not hold up the others
            return made
        with self._making:
            if name not in self._prompts:
                self._prompts[name] = self.model.prompt(self.features[name], self._schedule)
            return self._prompts[name]

    def speak(self, name: str, request: Request, cancelled: Cancelled) -> Iterator[Chunk]:
        """A generator, so that the prompt too is made on a worker."""
        yield from speak(self.model, self.prompt(name), request, self._schedule, cancelled)


def read_voices(checkpoint: Checkpoint, store: VoiceStore | None) -> dict[str, PromptFeatures]:
    """The usable voices by name; a stored one hides the model directory's of that name. The others are logged."""
    voices: dict[str, PromptFeatures] = {}
    problems: list[str] = []
    if checkpoint.spk2info is not None:
        try:
            voices, problems = read_spk2info(checkpoint.spk2info)
        except ConfigError as error:
            problems = [str(error)]
    if store is not None:
        for name in store.names():
            try:
                voices[name] = store.load(name)
            except EngineError as error:
                problems.append(str(error))
    d_speaker = checkpoint.config.flow_encoder.d_speaker
    for name in [name for name, features in voices.items() if features.embedding.numel() != d_speaker]:
        problems.append(f"{name}: its embedding has {voices.pop(name).embedding.numel()} numbers, not {d_speaker}")
    for problem in problems:
        log.warning("cosyvoice2 leaves out a voice: %s", problem)
    return voices
