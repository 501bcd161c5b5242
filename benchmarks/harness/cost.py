"""The prices of a simulated machine: how long it takes for a batch. They are inputs."""

from __future__ import annotations

from dataclasses import dataclass

from telephony_tts.bench.measures import NS_PER_MS
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds by stage: (for a batch, for each of its rows). The price of the flow is that of one Euler step.

    `run_ahead`: tokens drawn by one decode step.
    """

    prefill: tuple[float, float] = (50.0, 0.0)
    decode: tuple[float, float] = (6.0, 2.0)
    flow: tuple[float, float] = (2.0, 20.0)
    vocode: tuple[float, float] = (2.0, 50.0)
    run_ahead: int = 1

    def of(self, stage: Stage, rows: float) -> int:
        """The nanoseconds of a batch of so many rows."""
        made, row = (self.prefill, self.decode, self.flow, self.vocode)[stage]
        return round((made + row * rows) * NS_PER_MS)


_RUN_AHEAD = 12
"""Equal to `device.runner.RUN_AHEAD`."""
H200 = Cost(
    prefill=(1.6, 0.226), decode=(1.03 * _RUN_AHEAD, 0.0034 * _RUN_AHEAD), flow=(2.34, 0.071), vocode=(1.1, 0.206),
    run_ahead=_RUN_AHEAD,
)  # fmt: skip
"""An H200 in float16 with random weights: fitted to the part `steps` of results/gpu_check.json for 1, 8, 32 and 64
rows, commit f189d751. The flow's encoder runs once a block; its time is spread over the ten Euler steps."""
H200_PREFILL_ROWS = 64
"""Equal to `device.runner.PREFILL_ROWS`."""


@dataclass(frozen=True, slots=True)
class HelpingLanes:
    """How fast lanes are that can help each other, as in int8 on a CPU.

    By stage: how many times as fast a lane is while it is the only one with work. `together`: how fast each lane is
    while several have work, because they read the same memory.
    """

    prefill: float = 1.9
    decode: float = 1.22
    flow: float = 1.8
    vocode: float = 1.35
    together: float = 0.92

    def rate(self, stage: Stage, n_busy: int) -> float:
        """The speed of a lane that computes this stage while `n_busy` lanes compute."""
        return self.together if n_busy > 1 else (self.prefill, self.decode, self.flow, self.vocode)[stage]
