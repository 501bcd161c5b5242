"""What to load and how, in values that can be sent to another process."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from telephony_tts.engines.cosyvoice2.core.scheduler import Ahead
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile

DTYPES = ("float32", "float16", "bfloat16")
INT8, INT4, MIXED = "int8", "int4", "mixed"
LM_DTYPES = (*DTYPES, INT8, INT4)
FLOW_DTYPES = (*DTYPES, INT8)
VOCODER_DTYPES = ("float32", "float16", MIXED)
"""Of each network. int8, int4: weights in whole numbers, on a CPU. mixed: the vocoder's large convolutions in bfloat16,
all sums in float32."""


@dataclass(frozen=True, slots=True)
class Precision:
    """In what each network computes; how far each is from float32 is told in docs/cosyvoice2.md."""

    lm: str = "float32"
    flow: str = "float32"
    vocoder: str = "float32"

    @classmethod
    def of(cls, dtype: str, lm: str | None = None, flow: str | None = None, vocoder: str | None = None) -> Precision:
        """`dtype` for all, but for those that are given. bfloat16 throughout is heard in the vocoder, which is mixed
        then."""
        return cls(lm or dtype, flow or dtype, vocoder or (MIXED if dtype == "bfloat16" else dtype))


def how_to_add_a_voice(model_dir: Path, voice_dir: Path | None) -> str:
    """The command that stores a voice where an engine with these directories reads it, whatever file they came from."""
    folder = "" if voice_dir in (None, model_dir / "voices") else f" --voices {shlex.quote(str(voice_dir))}"
    model = shlex.quote(str(model_dir))
    return f"telephony-tts voices add NAME --wav FILE --text 'WHAT IS SAID' --model {model}{folder}"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Of an engine in a process of its own, in seconds.

    A process that sends nothing for `stall_s`, or computes one step for `step_s`, is killed and replaced. While it is
    replaced, new utterances wait up to `restart_wait_s` if it is expected back in that time.
    """

    stall_s: float = 5.0
    step_s: float = 30.0
    restart_wait_s: float = 10.0


USUAL = Timeouts()


@dataclass(frozen=True, slots=True)
class Settings:
    """`n_lanes` threads compute (`scheduler.lanes`), each with `n_threads` of PyTorch's."""

    model_dir: Path
    voice_dir: Path | None = None
    device: str = "cpu"
    precision: Precision = Precision()
    profile: Profile = DEFAULT
    n_slots: int = 16
    n_prompts: int = 4
    n_lanes: int = 1
    n_threads: int = 1
    ahead: Ahead = field(default_factory=Ahead)
    flow_memory_mb: int | None = None
    """Of a device other than a CPU, see `SpeechModel.load`."""
