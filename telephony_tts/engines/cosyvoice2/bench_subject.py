"""What `bench engine` measures of CosyVoice2: a model of the operator, or one with random weights.

Each command imports this file, so the engine is imported only when it is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.cosyvoice2.configuration import CosyVoice2Settings
from telephony_tts.engines.cosyvoice2.plugin import PLUGIN, need_torch
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, shell_command

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine

MAX_PROMPT_S = 30.0
PROMPT_S = 3.5
"""Of the voice of a random model."""


class CosyVoice2Subject:
    """See `engines.plugin.BenchSubject`."""

    name = PLUGIN.name

    def add_flags(self, flags: argparse.ArgumentParser) -> None:
        what = flags.add_mutually_exclusive_group()
        what.add_argument("--model", metavar="DIR", help="a model directory (default that of --config)")
        what.add_argument(
            "--random", choices=("full", "tiny"),
            help="random weights: 2.6 GB (300m: 1.7) as the official ones, or 6 MB",
        )
        flags.add_argument(
            "--family", choices=("cosyvoice2", "300m"), help="with --random: CosyVoice2 (default) or CosyVoice-300M-SFT"
        )
        flags.add_argument(
            "--keep", metavar="DIR", help="with --random: keep the weights there for the next run; one DIR per family"
        )
        flags.add_argument(
            "--flow-steps", metavar="N", type=int,
            help="Euler steps of the flow: fewer are faster and less exact (default 10, or that of --config)",
        )
        flags.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N (default cpu, or that of --config)")
        flags.add_argument(
            "--dtype", choices=("auto", "float32", "float16", "bfloat16"),
            help="of the weights (default auto, or that of --config; the result says what was chosen)",
        )
        flags.add_argument(
            "--threads", metavar="N", type=int, help="threads of PyTorch on a CPU (default auto, or that of --config)"
        )
        flags.add_argument("--profile", metavar="P", help="lengths of the chunks: auto, default, cpu, fast or upstream")
        flags.add_argument(
            "--prompt-seconds", metavar="S", type=float,
            help=f"with --random: length of the voice's recording ({PROMPT_S}; voices of 300m have none)",
        )

    def check(self, arguments: argparse.Namespace, load: Callable[[str], Any]) -> None:
        if arguments.model is None and arguments.random is None:
            arguments.model = None if arguments.config is None else PLUGIN.own(load(arguments.config).engines).model
            if arguments.model is None:
                raise ConfigError(
                    "no model to measure: give --model DIR, --random full or tiny, or --config with a model"
                )
        prompt_s = arguments.prompt_seconds
        if prompt_s is not None and not 0.0 <= prompt_s <= MAX_PROMPT_S:
            raise ConfigError(f"--prompt-seconds is {prompt_s}; expected 0 to {MAX_PROMPT_S:g}")
        for flag, value in (("--keep", arguments.keep), ("--family", arguments.family)):
            if value is not None and arguments.random is None:
                raise ConfigError(f"{flag} goes with --random")
        if arguments.family == "300m" and arguments.prompt_seconds:
            raise ConfigError("--prompt-seconds goes with CosyVoice2; the voices of --family 300m have no recording")
        arguments.family = arguments.family or "cosyvoice2"
        if arguments.prompt_seconds is None:
            arguments.prompt_seconds = PROMPT_S if arguments.family == "cosyvoice2" else 0.0
        if arguments.voice is not None and arguments.random is not None:
            raise ConfigError("--voice goes with --model; the voice of a random model follows from --prompt-seconds")

    def overrides(self, arguments: argparse.Namespace, model: str, n_slots: int | None) -> Mapping[str, object]:
        return {
            "model": model,
            "device": arguments.device,
            "dtype": arguments.dtype,
            "threads": arguments.threads,
            "flow_steps": arguments.flow_steps,
            "profile": arguments.profile,
            "slots": None if n_slots is None else max(CosyVoice2Settings().slots, n_slots),
        }

    def need(self, settings: Any) -> None:
        need_torch()
        need_gpu(self.device(settings))

    @contextmanager
    def model(self, arguments: argparse.Namespace, tell: Callable[[str], None]) -> Iterator[Path]:
        if arguments.random is None:
            yield Path(arguments.model)
            return
        from telephony_tts.engines.cosyvoice2.random_speech import random_model

        keep = None if arguments.keep is None else Path(arguments.keep)
        tell(f"random weights of {arguments.family}, {arguments.random} size")
        with random_model(arguments.random, arguments.prompt_seconds, keep, arguments.family) as directory:
            yield directory

    def seconds(self, arguments: argparse.Namespace) -> float:
        seconds: float = arguments.seconds
        if arguments.random is None:
            return seconds
        from telephony_tts.engines.cosyvoice2.random_speech import random_seconds

        return random_seconds(seconds, arguments.family)

    def device(self, settings: Any) -> str:
        return PLUGIN.own(settings.engines).device

    def about(self, arguments: argparse.Namespace, settings: Any) -> Mapping[str, Any]:
        own = PLUGIN.own(settings.engines)
        names = (
            "flow_steps", "device", "dtype", "lm_dtype", "flow_dtype", "vocoder_dtype", "finish", "ready_voices",
            "flow_memory_mb", "isolation", "ahead_ms", "profile", "threads", "workers", "slots",
        )  # fmt: skip
        return {
            "model": f"random {arguments.random}" if arguments.random else Path(arguments.model).resolve().name,
            "family": arguments.family if arguments.random else None,
            **{name: getattr(own, name) for name in names},
            "prompt_seconds": arguments.prompt_seconds if arguments.random else None,
        }

    def choice(self, engine: Engine) -> tuple[Mapping[str, Any], Sequence[str]]:
        from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine

        assert isinstance(engine, CosyVoice2Engine)
        return engine.choice.as_dict(), (*engine.choice.reasons, *engine.choice.warnings)

    def voice(self, arguments: argparse.Namespace, engine: Engine) -> str:
        if arguments.random is None:
            return arguments.voice or engine.voices[0].name
        from telephony_tts.engines.cosyvoice2.random_speech import random_voice

        return random_voice(arguments.prompt_seconds, arguments.family)

    def text(self, arguments: argparse.Namespace) -> str | None:
        if arguments.random is None:
            return None
        from telephony_tts.engines.cosyvoice2.random_speech import random_text

        return random_text(arguments.seconds, arguments.family)


def need_gpu(device: str) -> None:
    """Raises EngineUnavailable if the device is a GPU that PyTorch cannot use."""
    if not device.startswith("cuda"):
        return
    # This imports PyTorch, which a run on a CPU should leave to the engine.
    from telephony_tts.engines.cosyvoice2.hosting.loading import device_problem

    problem = device_problem(device, cpu="--device cpu")
    if problem is not None:
        raise EngineUnavailable(f"--device {device}: {problem}; {shell_command('telephony-tts doctor')} lists the GPUs")
