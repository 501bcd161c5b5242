"""Progress of a long benchmark, the operations of the flow's layers, and the time of a model's stages."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.speech_model import SpeechModel
from telephony_tts.engines.cosyvoice2.settings import AheadLimits

VOICE = "measured"
TAKES_ALL = AheadLimits(audio_ms=10**9)
"""No limit: nothing here reports that audio was taken."""


def progress(what: str) -> None:
    """Print a line of progress to stderr; results go to stdout."""
    print(f"  [{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)


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
