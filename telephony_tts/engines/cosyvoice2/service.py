"""The CosyVoice2 engine: a model directory and its voices behind `engines.api.Engine`.

One utterance at a time per worker, each with its own slot of the language model and its own state of the other two
networks. Voices are the model directory's `spk2info.pt` and the voice store's; what a voice's utterances share is made
when it is first used and kept.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ, ModelConfig
from telephony_tts.engines.cosyvoice2.profile import PROFILES, Profile
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.stream import Request, Stopped, speak
from telephony_tts.engines.cosyvoice2.tokenizer import CONTROL_TOKENS
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.voice_store import VoiceStore, read_spk2info
from telephony_tts.engines.cosyvoice2.weights import Checkpoint, load_model_directory
from telephony_tts.engines.words import is_speakable, scripts
from telephony_tts.engines.workers import Cancelled, Wait, WorkerPool
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice, UnsupportedText

log = logging.getLogger(__name__)

LANGUAGES = ("zh", "en", "ja", "ko")
SCRIPTS = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"})
MIN_SPEED, MAX_SPEED = 0.5, 2.0
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FINISHES = {"profile": None, "causal": True, "full": False}
"""How the last chunk is made: as the profile says, block by block, or once more over the whole utterance."""
WARM_UP = "Hello."
MAX_TRANSCRIPT = 1000
"""Characters, or text tokens: what 30 s of the fastest speech come to, and more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be held at once. Utterances past `n_slots` wait; those that wait for their listener hold a slot.

    `n_prompts` voices are kept ready to speak (at full size in float32 230 MB for a second of their recording); others
    are made ready again when they are asked for.
    """

    n_slots: int = 16
    n_prompts: int = 4


class CosyVoice2Engine:
    """`profile`: see `profile.PROFILES`; `finish`: see `FINISHES`. `control_tokens` are those that mean what they say
    in the text of an utterance, whoever wrote it; the others are read out."""

    streams_text = True

    def __init__(
        self,
        model_dir: Path,
        voice_dir: Path | None = None,
        n_workers: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        profile: str = "default",
        *,
        finish: str = "profile",
        control_tokens: Collection[str] = (),
        limits: Limits = Limits(),
        n_threads: int = 1,
    ) -> None:
        """Raises ConfigError for a dtype, profile, finish or control token that there is not, or no slots."""
        known = {"dtype": DTYPES, "profile": PROFILES, "finish": FINISHES}
        for what, value in (("dtype", dtype), ("profile", profile), ("finish", finish)):
            if value not in known[what]:
                raise ConfigError(f"cosyvoice2 has no {what} {value!r}; it has {', '.join(known[what])}")
        for token in control_tokens:
            if token not in CONTROL_TOKENS:
                raise ConfigError(f"cosyvoice2 has no control token {token!r}; it has {' '.join(CONTROL_TOKENS)}")
        if limits.n_slots < 1 or limits.n_prompts < 1:
            raise ConfigError("cosyvoice2 needs at least one slot and room for one voice")
        self.name = "cosyvoice2"
        self._model_dir = Path(model_dir)
        self._store = VoiceStore(voice_dir) if voice_dir is not None else None
        self._n_workers, self._n_threads, self._limits = n_workers, n_threads, limits
        self._device, self._dtype = device, DTYPES[dtype]
        self._profile = PROFILES[profile]
        causal_finish = FINISHES[finish]
        if causal_finish is not None:
            self._profile = replace(self._profile, causal_finish=causal_finish)
        self._control = frozenset(control_tokens)
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
        """Text whose letters are all of scripts that the model does not know is refused; a few in between pass."""
        if self._loaded is not None:
            self._loaded.name(utterance.voice)
        found = scripts(utterance.text)
        if found and not found & SCRIPTS:
            raise UnsupportedText(
                f"cosyvoice2 speaks {', '.join(LANGUAGES)}, not {'/'.join(sorted(found)).lower()} letters; "
                "set engines.routes for this language to an engine that can (telephony-tts voices)"
            )

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if utterance.more is None and not is_speakable(utterance.text):
            return
        pool, loaded = self._pool, self._loaded
        if pool is None or loaded is None:
            raise EngineError("cosyvoice2 is not started")
        request = Request(
            utterance.text,
            utterance.seed or 0,
            min(MAX_SPEED, max(MIN_SPEED, utterance.speed)),
            utterance.instruct,
            utterance.more,
            self._control,
        )

        def work(cancelled: Cancelled) -> Iterator[Chunk | Wait]:
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
        problem = device_problem(torch.device(self._device))
        if problem is not None:
            raise EngineUnavailable(f"cosyvoice2 cannot use {self._device}: {problem}")
        log.info("cosyvoice2 loads %s", self._model_dir)
        checkpoint = load_model_directory(self._model_dir)
        if checkpoint.is_random:
            log.warning("%s has random weights: it makes noises, not speech", self._model_dir)
        features = read_voices(checkpoint, self._store)
        if not features:
            raise EngineUnavailable(
                f"cosyvoice2 has no voice: {self._model_dir} comes without one, and none is stored; make one of a "
                f"recording: telephony-tts voices add NAME --wav FILE --text 'WHAT IS SAID' --model {self._model_dir}"
            )
        model = SpeechModel.load(checkpoint, device=self._device, dtype=self._dtype, n_slots=self._limits.n_slots)
        loaded = LoadedVoices(model, features, self._profile, self._limits.n_prompts)
        log.info("cosyvoice2 has loaded its weights and makes its first sentence; voices: %s", ", ".join(features))
        for _ in loaded.speak(loaded.name(None), Request(WARM_UP), cancelled):
            pass
        yield loaded


class LoadedVoices:
    """A model and its voices. The shared part of each voice is made by whoever needs it first, and kept while it is
    among the last `n_prompts` that were used; an utterance that has it keeps it to its end."""

    def __init__(
        self, model: SpeechModel, features: Mapping[str, PromptFeatures], profile: Profile, n_prompts: int
    ) -> None:
        self.model = model
        self.features = dict(features)
        self._profile = profile
        self._n_prompts = n_prompts
        self._lock = threading.Lock()
        self._prompts: OrderedDict[str, SpeakerPrompt] = OrderedDict()
        self._making: dict[str, list[Callable[[], None]]] = {}
        """Voices that a worker is making ready, and whom to tell when it has."""

    def name(self, voice: str | None) -> str:
        """The voice meant; the first where none is named. Raises UnknownVoice."""
        if voice is None:
            return next(iter(self.features))
        if voice not in self.features:
            raise UnknownVoice(f"cosyvoice2 has no voice {voice!r}; it has {', '.join(self.features)}")
        return voice

    def speak(self, name: str, request: Request, cancelled: Cancelled) -> Iterator[Chunk | Wait]:
        """A generator, so that the prompt too is made on a worker."""
        try:
            prompt = yield from self.prompt(name, cancelled)
        except Stopped:
            return
        yield from speak(self.model, prompt, request, self._profile, cancelled)

    def prompt(self, name: str, cancelled: Cancelled) -> Generator[Wait, None, SpeakerPrompt]:
        """The voice, made ready by the first that needs it; others wait and leave their workers. Raises Stopped."""

        def ask() -> None:
            if cancelled():
                raise Stopped

        while (prompt := self._made_or_mine(name)) is None:
            yield Wait(partial(self._on_made, name))
            ask()
        if not isinstance(prompt, _Mine):
            return prompt
        made = None
        try:
            made = self.model.prompt(self.features[name], self._profile, ask)
        finally:
            with self._lock:
                if made is not None:
                    self._prompts[name] = made
                    if len(self._prompts) > self._n_prompts:
                        self._prompts.popitem(last=False)
                told = self._making.pop(name)
            for wake in told:
                wake()
        return made

    def _made_or_mine(self, name: str) -> SpeakerPrompt | _Mine | None:
        """The voice; or that the caller is to make it; or None while another does."""
        with self._lock:
            if name in self._prompts:
                self._prompts.move_to_end(name)
                return self._prompts[name]
            if name in self._making:
                return None
            self._making[name] = []
            return _Mine()

    def _on_made(self, name: str, wake: Callable[[], None]) -> None:
        with self._lock:
            told = self._making.get(name)
            if told is not None:
                told.append(wake)
        if told is None:
            wake()


class _Mine:
    """The voice is the caller's to make."""


def misfit(features: PromptFeatures, config: ModelConfig) -> list[str]:
    """Why a voice that is good in itself cannot be used with a model of these sizes; empty where it can."""
    d_speaker, n_rows = config.flow_encoder.d_speaker, config.lm.n_text_rows
    ids = features.transcript_ids
    found = []
    if features.embedding.numel() != d_speaker:
        found.append(f"its embedding has {features.embedding.numel()} numbers, not {d_speaker}")
    if not all(0 <= number < n_rows for number in ids):
        found.append(f"the ids of its transcript are not all below {n_rows}")
    if max(len(ids), len(features.transcript)) > MAX_TRANSCRIPT:
        found.append(f"its transcript is longer than {MAX_TRANSCRIPT}")
    return found


def device_problem(device: torch.device) -> str | None:
    """Why PyTorch cannot compute on a GPU, in words to act on; None where it can, and for a CPU."""
    if device.type != "cuda":
        return None
    cpu = "engines.cosyvoice2.device: cpu needs no GPU"
    if torch.version.cuda is None:
        return f"this PyTorch is built for CPUs; install one for your GPU (make model TORCH=...), or {cpu}"
    if not torch.cuda.is_available():
        wanted = torch.version.cuda
        return f"no GPU is found; see whether nvidia-smi lists one with a driver for CUDA {wanted}, or {cpu}"
    return build_problem(torch.cuda.get_device_capability(device), torch.cuda.get_arch_list())


def build_problem(capability: tuple[int, int], architectures: list[str]) -> str | None:
    """Whether a build of PyTorch ("sm_75", "sm_80", ...) leaves out an older GPU, such as a V100 (7.0)."""
    built = [int(name.removeprefix("sm_").rstrip("af")) for name in architectures if name.startswith("sm_")]
    if not built or 10 * capability[0] + capability[1] >= min(built):
        return None
    return (
        f"this PyTorch is built for GPUs of compute capability {min(built) / 10} and newer, and this one has "
        f"{capability[0]}.{capability[1]}; install a build for an older CUDA (12.6 for a V100)"
    )


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
    for name in list(voices):
        misfits = misfit(voices[name], checkpoint.config)
        if misfits:
            del voices[name]
            problems.append(f"{name}: {'; '.join(misfits)}")
    for problem in problems:
        log.warning("cosyvoice2 leaves out a voice: %s", problem)
    return voices
