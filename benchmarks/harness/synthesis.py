"""A speech model with random weights, an engine core for one utterance at a time, and the time of its stages."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import Size
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import CancelOrder, Event, SubmitUtterance, UtteranceEnded
from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    N_MELS,
    N_SPEECH_TOKENS,
    TOKENS_PER_S,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.random_speech import random_model, random_text
from telephony_tts.engines.cosyvoice2.settings import AheadLimits, Precision
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

VOICE = "measured"
TAKES_ALL = AheadLimits(audio_ms=10**9)
"""No limit: nothing here reports that audio was taken."""


def progress(what: str) -> None:
    """Print a line of progress to stderr; results go to stdout."""
    print(f"  [{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Rig:
    """A loaded model with its configuration and the facts that the benchmark reports."""

    model: SpeechModel
    config: ModelConfig
    linear: LinearWork
    write_s: float
    load_s: float
    n_parameters: int

    def voice(self, n_prompt: int) -> PromptFeatures:
        """A voice of random numbers with `n_prompt` speech tokens; with a prompt it has a transcript of 20 tokens."""
        random = torch.Generator().manual_seed(n_prompt)
        return PromptFeatures(
            speech_tokens=torch.randint(N_SPEECH_TOKENS, (n_prompt,), generator=random),
            mel=torch.randn(n_prompt * FRAMES_PER_TOKEN, N_MELS, generator=random) * 2 - 5,
            embedding=torch.randn(self.config.flow_encoder.d_speaker, generator=random),
            transcript_ids=tuple(range(40, 60)) if n_prompt else (),
        )

    def speaker(self, features: PromptFeatures, profile: Profile) -> Speaker:
        """An engine core with this voice alone, ready to speak."""
        return Speaker(self, features, profile)


def ready_voice(model: SpeechModel, features: PromptFeatures, profile: Profile) -> SpeakerPrompt:
    """A voice built at once; the core builds it step by step."""
    build = model.begin_prompt(features, profile)
    while not build.flow_block.done:
        model.flow.step([build.flow_block])
    return build.finished()


class Speaker:
    """The engine's core with one voice, stepped by hand on one lane, for one utterance at a time."""

    def __init__(self, rig: Rig, features: PromptFeatures, profile: Profile) -> None:
        self._rig = rig
        self._n_said = 0
        self._heard: list[Event] = []
        self._core = Core(
            Runner(rig.model, torch.get_num_threads()), {VOICE: features}, profile, self._hear, ahead=TAKES_ALL
        )
        # The voice is built here, so that no utterance waits for it.
        voices = self._core.voices
        voices.get(VOICE)
        (build,) = voices.builds
        voices.finish(build, ready_voice(rig.model, features, profile))

    def speak(self, n_tokens: int) -> Generator[Chunk, None, None]:
        """Yield chunks as they are made; closing the generator cancels. Raises RuntimeError if it stops early."""
        key = self._n_said
        self._n_said += 1
        self._core.receive(SubmitUtterance(key, VOICE, Request(random_text(n_tokens / TOKENS_PER_S), seed=1)))
        try:
            while True:
                heard, self._heard = self._heard, []
                for event in heard:
                    if isinstance(event, Chunk):
                        yield event
                    elif isinstance(event, UtteranceEnded):
                        if event.error is not None:
                            raise event.error
                        return
                if not self._core.step():
                    raise RuntimeError("the engine is idle, but the utterance has not ended")
        finally:
            self._core.receive(CancelOrder(key))
            while self._core.step():
                pass
            self._heard.clear()

    def _hear(self, _: int, event: Event) -> None:
        self._heard.append(event)


def build(size: Size, precision: Precision) -> Rig:
    """Write a random checkpoint whose speech never ends early, and load it."""
    progress(f"writing random weights, {size} size")
    begun = time.perf_counter()
    with random_model(size, 0.0) as directory:
        write_s = time.perf_counter() - begun
        progress("loading them")
        begun = time.perf_counter()
        checkpoint = load_model_directory(directory)
        model = SpeechModel.load(checkpoint, device="cpu", precision=precision, n_slots=1)
        load_s = time.perf_counter() - begun
    states = (checkpoint.lm, checkpoint.flow, checkpoint.hift)
    n_parameters = sum(tensor.numel() for state in states for tensor in state.values())
    return Rig(model, checkpoint.config, LinearWork.of(checkpoint.flow), write_s, load_s, n_parameters)


@dataclasses.dataclass(frozen=True)
class LinearWork:
    """Floating point operations of the flow in its linear layers: 2 for each weight that is used."""

    per_token: float
    """In the encoder before its up-sampling, per speech token."""
    per_frame: float
    """In the rest of the encoder, per frame."""
    per_frame_and_pass: float
    """In the estimator, per frame and pass, without the layers whose only input is the time."""

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> LinearWork:
        work: dict[str, float] = defaultdict(float)
        for name, tensor in state.items():
            if tensor.dim() < 2 or "pos_bias" in name or "linear_pos" in name:
                continue
            if name.startswith("decoder.estimator."):
                if "time_mlp" not in name and ".mlp.1." not in name:
                    work["pass"] += 2 * tensor.numel()
            elif name.startswith(("encoder.up_", "encoder_proj")):
                work["frame"] += 2 * tensor.numel()
            elif name.startswith("encoder."):
                work["token"] += 2 * tensor.numel()
        return cls(work["token"], work["frame"], work["pass"])


def chunk_work(config: ModelConfig, linear: LinearWork, n_tokens: int, n_seen: int) -> tuple[float, float]:
    """(linear, attention): operations of a chunk of `n_tokens` that attends to `n_seen` tokens, its own included.

    The linear part does not depend on `n_seen`, attention is proportional to it. In the estimator it takes 114 688
    operations per frame, key and pass (specification 9).
    """
    encoder, decoder = config.flow_encoder, config.flow_decoder
    n_frames, n_keys = n_tokens * FRAMES_PER_TOKEN, n_seen * FRAMES_PER_TOKEN
    n_passes = 2 * decoder.n_steps
    fixed = n_tokens * linear.per_token + n_frames * (linear.per_frame + n_passes * linear.per_frame_and_pass)
    n_layers = (decoder.n_mid_stages + 2) * decoder.n_blocks
    attention = 4.0 * decoder.n_heads * decoder.d_head * n_layers * n_frames * n_keys * n_passes
    d = encoder.d_model
    for layers, new, seen in ((encoder.n_layers, n_tokens, n_seen), (encoder.n_up_layers, n_frames, n_keys)):
        # Scores of content and of position, the values, and the projection of each distance.
        attention += layers * (6.0 * d * new * seen + 2.0 * d * d * (seen + new))
    return fixed, attention


class StageTimer:
    """Seconds by stage of a model: wraps the methods of its parts on the given objects."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, model: SpeechModel) -> Iterator[None]:
        """Time the stages while the block runs. None of the methods calls another."""
        parts: tuple[tuple[str, Any, str], ...] = (
            ("LM prefill", model.lm, "extend"),
            ("LM decode", model.lm, "decode"),
            ("LM decode", model.lm, "logits"),
            ("LM sampling", model.sampler, "sample"),
            ("flow", model.flow, "begin"),
            ("flow", model.flow, "begin_whole"),
            ("flow", model.flow, "step"),
            ("vocoder", model.vocoder, "f0"),
            ("vocoder", model.vocoder, "excite"),
            ("vocoder", model.vocoder, "decode"),
        )
        try:
            for part, owner, name in parts:
                setattr(owner, name, self._timed(part, getattr(owner, name)))
            yield
        finally:
            for _, owner, name in parts:
                delattr(owner, name)

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - begun

        return timed
