"""Loads a model directory: weights, voices, recorded graphs and a warm-up sentence. Then the core takes utterances."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.checkpoint.conversion import is_converted
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory, model_sizes
from telephony_tts.engines.cosyvoice2.choice import EngineChoice
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import AudioTaken, Event, EventSink, SubmitUtterance, UtteranceEnded
from telephony_tts.engines.cosyvoice2.device.idle_lanes import IdleLanes
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.hosting.choosing import settle
from telephony_tts.engines.cosyvoice2.hosting.known_voices import KnownVoices, VoiceWatch
from telephony_tts.engines.cosyvoice2.model.file_names import SPEAKERS_FILE
from telephony_tts.engines.cosyvoice2.profile import WHOLE
from telephony_tts.engines.cosyvoice2.settings import Settings, how_to_add_a_voice
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, shell_command

log = logging.getLogger(__name__)

WARM_UP = "Hello."
_LOG_EVERY_NS = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A core that is ready to speak, what its settings became, and what keeps its voices those that are stored."""

    core: Core
    choice: EngineChoice
    voices: VoiceWatch


def load(settings: Settings, tell: EventSink, is_wanted: Callable[[], bool] = lambda: True) -> LoadedEngine:
    """Choose what is `auto`, read, check and warm up. `tell` receives the events of later utterances only.

    Raises EngineUnavailable that says what to do. `is_wanted` is called between files, tensors and steps; EngineError
    is raised once it returns False.
    """

    def check_wanted() -> None:
        if not is_wanted():
            raise EngineError("cosyvoice2 was closed while it was loading")

    check_wanted()
    name = settings.model_dir
    problem = device_problem(settings.device)
    if problem is not None:
        raise EngineUnavailable(f"cosyvoice2 cannot use {settings.device}: {problem}")
    log.info("loading cosyvoice2 from %s", name)
    settings, choice = settle(settings, model_sizes(name))
    checkpoint = load_model_directory(name, check_wanted)
    if checkpoint.is_random:
        log.warning("%s has random weights: its audio is noise, not speech", name)
    if settings.flow_steps is not None:
        steps = replace(checkpoint.config.flow_decoder, n_steps=settings.flow_steps)
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, flow_decoder=steps))
    family = checkpoint.config.family
    if settings.uses_vllm and not is_converted(name, "vllm"):
        raise EngineUnavailable(
            f"engines.cosyvoice2.lm_backend is vllm, and {name} has no language model in its layout, or one of other "
            f"weights: run {shell_command('telephony-tts models convert')} --to vllm {shlex.quote(str(name))}"
        )
    known = KnownVoices(checkpoint, settings.voice_dir)
    features = known.features
    if not features and not family.flow_streams:
        raise EngineUnavailable(
            f"cosyvoice2 has no voice: {name} has no preset speakers ({SPEAKERS_FILE}). CosyVoice-300M itself has "
            f"none; take CosyVoice-300M-SFT ({shell_command('telephony-tts models pull')} DIR --family 300m)"
        )
    if not features:
        raise EngineUnavailable(
            f"cosyvoice2 has no voice: {name} contains none, and none is stored. Make one from a "
            f"recording: {how_to_add_a_voice(name, settings.voice_dir)}"
        )
    model = SpeechModel.load(
        checkpoint,
        device=settings.device,
        precision=settings.precision,
        n_slots=settings.n_slots,
        uses_vllm=settings.uses_vllm,
        flow_memory_mb=settings.flow_memory_mb,
        check_wanted=check_wanted,
    )
    runner = Runner(model, choice.n_threads)
    _record_graphs(runner, check_wanted)
    core = Core(
        runner,
        features,
        settings.profile if family.flow_streams else WHOLE,
        lambda key, event: None,
        n_ready_voices=settings.n_ready_voices,
        ahead=settings.ahead,
    )
    log.info("cosyvoice2 has loaded its weights and warms up; voices: %s", ", ".join(features))
    with _helpers(runner.idle_lanes, choice.n_lanes - 1):
        _warm_up(core, check_wanted, name)
    core.tell = tell
    return LoadedEngine(core, choice, VoiceWatch(known, core))


def _record_graphs(runner: Runner, check_wanted: Callable[[], None], now_ns: Callable[[], int] = monotonic_ns) -> None:
    """Record the steps of a GPU as graphs. It takes a while, so the log shows progress every few seconds."""
    if not runner.graphs.records:
        return
    log.info("cosyvoice2 has loaded its weights and records graphs of its steps")
    n_recorded, logged_ns = 0, now_ns()

    def before_each() -> None:
        nonlocal n_recorded, logged_ns
        check_wanted()
        if now_ns() - logged_ns > _LOG_EVERY_NS:
            logged_ns = now_ns()
            log.info("cosyvoice2 has recorded %d graphs", n_recorded)
        n_recorded += 1

    runner.prepare(before_each)
    log.info("cosyvoice2 has recorded %d graphs", n_recorded)


@contextmanager
def _helpers(lanes: IdleLanes, n: int) -> Iterator[None]:
    """Threads that help the one that warms up, as idle lanes do later. The sentence is then computed sooner."""
    is_over = threading.Event()

    def help_out() -> None:
        while True:
            n_calls = lanes.n_calls()
            if is_over.is_set():
                return
            lanes.wait(n_calls)

    threads = [threading.Thread(target=help_out, daemon=True) for _ in range(n if lanes.can_help else 0)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        lanes.call()
        for thread in threads:
            thread.join()


def _warm_up(core: Core, check_wanted: Callable[[], None], directory: Path) -> None:
    """Synthesise a sentence of the default voice and drop it. Raises EngineUnavailable if that fails."""
    failures: list[EngineError] = []
    n_made = 0

    def receive(_: int, event: Event) -> None:
        nonlocal n_made
        if isinstance(event, Chunk):
            n_made += len(event.pcm)
        elif isinstance(event, UtteranceEnded) and event.error is not None:
            failures.append(event.error)

    core.tell = receive
    core.runner.enter()
    core.receive(SubmitUtterance(0, next(iter(core.voices.features)), Request(WARM_UP)))
    while core.step():
        check_wanted()
        # Audio that is not taken stops at `ahead`, and the utterance would keep its slot.
        core.receive(AudioTaken(0, n_made))
        n_made = 0
    if failures:
        raise EngineUnavailable(
            f"cosyvoice2 could not synthesise its warm-up sentence: {failures[0]}. To see whether the weights are "
            f"damaged, run: {shell_command('telephony-tts models check')} {shlex.quote(str(directory))}"
        )


def device_problem(name: str, cpu: str = "engines.cosyvoice2.device: cpu") -> str | None:
    """Why PyTorch cannot compute on a device: the reason, a semicolon and what to do. None if it can.

    `cpu`: the setting or flag with which the reader chooses a CPU instead."""
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
    """Why a build of PyTorch for `architectures` ("sm_75", ...) does not support a GPU; None if it does."""
    built = [int(name.removeprefix("sm_").rstrip("af")) for name in architectures if name.startswith("sm_")]
    if not built or 10 * capability[0] + capability[1] >= min(built):
        return None
    return (
        f"this PyTorch is built for GPUs of compute capability {min(built) / 10} and newer, and this one has "
        f"{capability[0]}.{capability[1]}; install a build for an older CUDA (12.6 for a V100)"
    )
