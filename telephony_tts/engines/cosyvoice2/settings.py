"""What the engine loads and how, in values that can be sent to another process."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.runtime.errors import shell_command

PROMPT_MARK = "~"
"""With it begins the name of a voice that was made for one request. No stored voice can have such a name."""
PROMPTS_FOLDER = ".prompts"
"""Below the folder of voices."""
LM_BACKENDS = ("own", "vllm")
"""What runs the language model."""
AUTO = "auto"
"""For a precision: the fastest that this machine has, as measured (`choice`)."""
DTYPES = ("float32", "float16", "bfloat16")
INT8: Final = "int8"
MIXED: Final = "mixed"
LM_DTYPES = FLOW_DTYPES = (*DTYPES, INT8)
VOCODER_DTYPES = ("float32", "float16", MIXED)
"""Precisions of each network. int8: integer weights, on a CPU. mixed: the vocoder's large convolutions in
bfloat16, all sums in float32."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of each network, or AUTO. docs/cosyvoice2.md gives their errors against float32."""

    lm: str = "float32"
    flow: str = "float32"
    vocoder: str = "float32"

    @classmethod
    def of(cls, dtype: str, lm: str | None = None, flow: str | None = None, vocoder: str | None = None) -> Precision:
        """`dtype` for each network without its own. bfloat16 means `mixed` for the vocoder."""
        return cls(lm or dtype, flow or dtype, vocoder or (MIXED if dtype == "bfloat16" else dtype))


def how_to_add_a_voice(model_dir: Path, voice_dir: Path | None) -> str:
    """The command that stores a voice where an engine with these directories reads it."""
    folder = "" if voice_dir in (None, model_dir / "voices") else f" --voices {shlex.quote(str(voice_dir))}"
    model = shlex.quote(str(model_dir))
    return shell_command(f"telephony-tts voices add NAME --wav FILE --text 'WHAT IS SAID' --model {model}{folder}")


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """How far a stream may work ahead of its listener, who may interrupt at any moment.

    `audio_ms`: audio made and not taken. A block begins only below this. `n_tokens`: speech ids drawn beyond those that
    the next block takes.
    """

    audio_ms: int = 2000
    n_tokens: int = 25

    def __post_init__(self) -> None:
        """Raises ValueError for limits with which nothing could begin."""
        if self.audio_ms < 1 or self.n_tokens < 0:
            raise ValueError("a stream that may not work ahead never begins: allow at least 1 ms and 0 tokens")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of an engine in its own process, in seconds.

    A process that sends nothing for `stall_s`, or computes one step for `step_s`, is killed and replaced. Meanwhile new
    utterances wait up to `restart_wait_s` if the new process is expected in that time.
    """

    stall_s: float = 5.0
    step_s: float = 30.0
    restart_wait_s: float = 10.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True)
class Settings:
    """`n_lanes` threads compute (`scheduler.lanes`), each with `n_threads` of PyTorch's. None: as `choice` says."""

    model_dir: Path
    voice_dir: Path | None = None
    device: str = "cpu"
    precision: Precision = Precision()
    profile: Profile = DEFAULT
    n_slots: int = 16
    n_ready_voices: int = 4
    n_lanes: int | None = 1
    n_threads: int | None = 1
    ahead: AheadLimits = field(default_factory=AheadLimits)
    flow_memory_mb: int | None = None
    """Memory of an accelerator for the flow (`SpeechModel.load`)."""
    flow_steps: int | None = None
    """Euler steps of the flow. None: as the model was published, 10."""
    uses_vllm: bool = False
    """vLLM is the language model, from the folder that `models convert --to vllm` wrote."""
