"""From a model directory to a core that is ready to speak: weights, voices, and a first sentence."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from pathlib import Path

import torch

from telephony_tts.clock import NS_PER_S, monotonic_ns
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint, load_model_directory
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import Ended, Event, Submit, Told, Took
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.settings import Settings, how_to_add_a_voice
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures, misfits
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable

log = logging.getLogger(__name__)

WARM_UP = "Hello."
_TELL_EVERY_NS = 5 * NS_PER_S


def load(settings: Settings, tell: Told, wanted: Callable[[], bool] = lambda: True) -> Core:
    """Read, check and warm up. `tell` hears of later utterances only. Raises EngineUnavailable with what to do, and
    EngineError where it is no longer `wanted`: that is asked between files, tensors and steps."""

    def look() -> None:
        if not wanted():
            raise EngineError("cosyvoice2 was closed while it was loading")

    look()
    name = settings.model_dir
    problem = device_problem(settings.device)
    if problem is not None:
        raise EngineUnavailable(f"cosyvoice2 cannot use {settings.device}: {problem}")
    log.info("cosyvoice2 loads %s", name)
    checkpoint = load_model_directory(name, look)
    if checkpoint.is_random:
        log.warning("%s has random weights: it makes noises, not speech", name)
    features = read_voices(checkpoint, VoiceStore(settings.voice_dir) if settings.voice_dir is not None else None)
    if not features:
        raise EngineUnavailable(
            f"cosyvoice2 has no voice: {name} comes without one, and none is stored; make one of a "
            f"recording: {how_to_add_a_voice(name, settings.voice_dir)}"
        )
    model = SpeechModel.load(
        checkpoint,
        device=settings.device,
        precision=settings.precision,
        n_slots=settings.n_slots,
        flow_memory_mb=settings.flow_memory_mb,
        look=look,
    )
    runner = Runner(model, settings.n_threads)
    _record(runner, look)
    core = Core(
        runner,
        features,
        settings.profile,
        lambda key, event: None,
        n_prompts=settings.n_prompts,
        ahead=settings.ahead,
    )
    log.info("cosyvoice2 has loaded its weights and makes its first sentence; voices: %s", ", ".join(features))
    _warm_up(core, look, name)
    core.tell = tell
    return core


def _record(runner: Runner, look: Callable[[], None], now_ns: Callable[[], int] = monotonic_ns) -> None:
    """Record what a GPU does at every step, where it can; told every few seconds, since it takes a while."""
    if not runner.graphs.records:
        return
    log.info("cosyvoice2 has loaded its weights and records its steps as graphs")
    n_recorded, told_ns = 0, now_ns()

    def looked() -> None:
        nonlocal n_recorded, told_ns
        look()
        if now_ns() - told_ns > _TELL_EVERY_NS:
            told_ns = now_ns()
            log.info("cosyvoice2 has recorded %d graphs", n_recorded)
        n_recorded += 1

    runner.prepare(looked)
    log.info("cosyvoice2 has recorded %d graphs", n_recorded)


def _warm_up(core: Core, look: Callable[[], None], directory: Path) -> None:
    """A sentence of the default voice, thrown away; `look` is called after each step. Raises EngineUnavailable where it
    cannot be made."""
    failures: list[EngineError] = []
    n_made = 0

    def hear(_: int, event: Event) -> None:
        nonlocal n_made
        if isinstance(event, Chunk):
            n_made += len(event.pcm)
        elif isinstance(event, Ended) and event.error is not None:
            failures.append(event.error)

    core.tell = hear
    core.runner.enter()
    core.receive(Submit(0, next(iter(core.voices.features)), Request(WARM_UP)))
    while core.step():
        look()
        # Of one that nobody takes, no more than `ahead` is made: it would keep its slot for ever.
        core.receive(Took(0, n_made))
        n_made = 0
    if failures:
        raise EngineUnavailable(
            f"cosyvoice2 could not make its first sentence: {failures[0]}; whether the weights are damaged is told "
            f"by: telephony-tts models check {shlex.quote(str(directory))}"
        )


def device_problem(name: str, cpu: str = "engines.cosyvoice2.device: cpu") -> str | None:
    """Why PyTorch cannot compute on a device: the reason, a semicolon and what to do; None where it can.

    `cpu` is how whoever reads it would take a CPU instead."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return f"there is no such device; expected cpu, cuda or cuda:N, or {cpu}"
    if device.type != "cuda":
        return None
    cpu = f"{cpu} needs no GPU"
    if torch.version.cuda is None:
        return f"this PyTorch is built for CPUs; install one for your GPU (make model TORCH=...), or {cpu}"
    if not torch.cuda.is_available():
        wanted = torch.version.cuda
        return f"no GPU is found; see whether nvidia-smi lists one with a driver for CUDA {wanted}, or {cpu}"
    n_gpus = torch.cuda.device_count()
    if device.index is not None and not 0 <= device.index < n_gpus:
        there = "cuda:0 is the only one" if n_gpus == 1 else f"there are {n_gpus}, cuda:0 to cuda:{n_gpus - 1}"
        return f"there is no GPU of that number; {there}, or {cpu}"
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
        unfit = misfits(voices[name], _Sizes(checkpoint.config))
        if unfit:
            del voices[name]
            problems.append(f"{name}: {'; '.join(unfit)}")
    for problem in problems:
        log.warning("cosyvoice2 leaves out a voice: %s", problem)
    return voices


class _Sizes:
    """Those of a model in memory, as `misfits` wants them."""

    def __init__(self, config: ModelConfig) -> None:
        self.n_embedding = config.flow_encoder.d_speaker
        self.n_text_rows = config.lm.n_text_rows
