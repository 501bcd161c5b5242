"""The section `engines.cosyvoice2`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from telephony_tts.runtime.schema import Between, OneOf, Spelt

DEVICE = Spelt(r"cpu|cuda(:[0-9]|:[1-9][0-9])?", "cpu, cuda or cuda:N; a GPU is cuda, and the second one cuda:1")


@dataclass(frozen=True, slots=True)
class CosyVoice2Settings:
    """The neural engine for many voices. `model` is a directory in the official layout; without `model` it is off."""

    model: str | None = None
    voices: str | None = None
    workers: Annotated[int | Literal["auto"], Between(1, 64)] = "auto"
    threads: Annotated[int | Literal["auto"], Between(1, 256)] = "auto"
    device: Annotated[str, DEVICE] = "cpu"
    dtype: Annotated[str, OneOf(("auto", "float32", "float16", "bfloat16"))] = "auto"
    lm_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "bfloat16", "int8"))] = None
    flow_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "bfloat16", "int8"))] = None
    vocoder_dtype: Annotated[str | None, OneOf(("auto", "float32", "float16", "mixed"))] = None
    isolation: Annotated[str, OneOf(("process", "thread"))] = "process"
    profile: Annotated[str, OneOf(("auto", "default", "cpu", "fast", "upstream"))] = "auto"
    finish: Annotated[str, OneOf(("profile", "causal", "full"))] = "profile"
    slots: Annotated[int, Between(1, 1024)] = 16
    ready_voices: Annotated[int, Between(1, 10_000)] = 4
    prompts: Annotated[int, Between(0, 10_000)] = 64
    flow_memory_mb: Annotated[int | None, Between(1, 1_000_000)] = None
    flow_steps: Annotated[int | None, Between(1, 100)] = None
    ahead_ms: Annotated[int, Between(200, 60_000)] = 2_000
    control_tokens: tuple[str, ...] = ()
    end_of_instruction: Annotated[str, OneOf(("<endofprompt>", "<|endofprompt|>"))] = "<endofprompt>"
    lm_backend: Annotated[str, OneOf(("own", "vllm"))] = "own"

    def conflicts(self) -> Iterator[str]:
        if self.lm_backend == "vllm":
            if (self.lm_dtype or self.dtype) not in ("float32", "float16", "bfloat16"):
                yield "lm_dtype: with lm_backend vllm give float32, float16 or bfloat16"
            if self.isolation != "process":
                yield "isolation: with lm_backend vllm it must be process: vLLM changes the process that it runs in"
        for name, dtype in (("lm_dtype", self.lm_dtype), ("flow_dtype", self.flow_dtype)):
            if dtype == "int8" and self.device != "cpu":
                yield f"{name}: {dtype} is for device cpu; on {self.device} leave it null, or take float16 or bfloat16"

    @property
    def voice_folder(self) -> Path | None:
        """Where stored voices are: the folder that is set, else `voices` in the model directory."""
        if self.voices is not None:
            return Path(self.voices)
        return Path(self.model) / "voices" if self.model is not None else None
