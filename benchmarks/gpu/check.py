"""What all parts of a check share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu.devices import CheckedDevice
from gpu.result_file import PartRun
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import Size


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """How much is measured."""

    equality_s: float = 4.0
    """Speech of the tiny engine's comparison."""
    stages_s: float = 3.2
    """Speech of the comparison at full size."""
    stages_n_ids: int = 64
    rows: tuple[int, ...] = (1, 8, 32, 64)
    """Utterances at once for which stages are timed."""
    profiled_rows: tuple[int, ...] = (1, 32)
    repeats: int = 10
    traced: int = 8
    """Utterances in the trace."""
    traced_s: float = 1.6
    seconds: float = 4.0
    """Speech of a turn under load."""
    closed: tuple[tuple[int, int], ...] = ((1, 6), (8, 3), (32, 2), (64, 2))
    """Callers and turns of each: those with a target."""
    closed_later: tuple[tuple[int, int], ...] = ((2, 3), (4, 2), (16, 2))
    """Likewise, after the searches."""
    open_rates: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    open_turns: int = 2
    callers: tuple[int, ...] = (100, 200)
    """The search for the most callers tries these, then numbers between."""
    rates: tuple[float, ...] = (16.0, 32.0, 50.0)
    """Likewise for the highest rate of arrivals, turns a second."""
    search_turns: int = 2
    closeness: float = 1.15
    """A search ends when the least that fails is at most so many times the highest that holds."""
    slots: int = 256
    """Of the engine under load."""
    equality_slots: int = 4


QUICK = CheckPlan(
    equality_s=1.6,
    stages_s=1.6,
    stages_n_ids=4,
    rows=(1, 2),
    profiled_rows=(1,),
    repeats=2,
    traced=2,
    seconds=1.6,
    closed=((1, 1),),
    closed_later=((2, 1),),
    open_rates=(1.0,),
    open_turns=1,
    callers=(3,),
    rates=(2.0,),
    search_turns=1,
    closeness=100.0,
    slots=2,
    equality_slots=2,
)
"""Runs through everything in a minute, for tests. Its figures mean nothing."""
PLANS = {"whole": CheckPlan(), "quick": QUICK}


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a check in its process."""

    run: PartRun
    device: CheckedDevice
    size: Size
    weights: Path
    """A folder in which the random models are kept between the parts."""
    plan: CheckPlan
    out: Path
    dtype: str = "float32"
