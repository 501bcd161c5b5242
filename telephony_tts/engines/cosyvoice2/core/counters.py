"""What the engine has computed so far, for metrics and benchmarks, and what its batches cost."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from telephony_tts.engines.cosyvoice2.core.scheduler import BatchCost, Stage
from telephony_tts.runtime.clock import NS_PER_S

_HALF_LIFE_S = 5.0
MOST_IN_FLIGHT = 2
"""Batches that the host may be ahead of the device."""
_NEWEST_SHARE, _NEWEST_ALONE = 1 / 16, 1 / 8
"""Weight of the newest batch in a stage's running mean. An utterance has few batches that a lane computes alone."""


class Counters:
    """All values only grow. Written under the core's lock."""

    def __init__(self) -> None:
        self._values: dict[str, float] = defaultdict(float)
        self._recent_s = self._recent_audio_s = 0.0
        self.costs: dict[Stage, BatchCost] = {}
        """Running means, for the stages of which a batch was computed."""
        self.alone_costs: dict[Stage, BatchCost] = {}
        """The same of the batches that were computed while no other lane had work."""

    def alone_prices(self, draws: bool) -> dict[Stage, BatchCost]:
        """The costs for a stream that is the only one, with lanes that help each other. `draws`: ids are still to be
        drawn, so they are drawn beside the vocoder, and it has no help."""
        alone = {stage: cost for stage, cost in self.alone_costs.items() if not (draws and stage is Stage.VOCODE)}
        return {**self.costs, **alone}

    def count_batch(
        self,
        stage: Stage,
        n_rows: int,
        spent_ns: int,
        *,
        is_usual: bool = True,
        is_alone: bool = False,
        size: float = 1.0,
    ) -> None:
        """Count a batch of one stage. It counts in the stage's costs only if it `is_usual`.

        `is_alone`: no other lane had work meanwhile. `size`: units in a row, as costs are those of a unit: ids drawn
        for it, or the vocoder's audio compared with that of a whole block."""
        name = stage.name.lower()
        self._values[f"{name}_batches"] += 1
        self._values[f"{name}_rows"] += n_rows
        if is_usual:
            unit_ns = spent_ns / size
            _add(self.costs, stage, n_rows, unit_ns, _NEWEST_SHARE)
            if is_alone:
                _add(self.alone_costs, stage, n_rows, unit_ns, _NEWEST_ALONE)
        spent_s = spent_ns / NS_PER_S
        self._values[f"{name}_s"] += spent_s
        kept = 0.5 ** (spent_s / _HALF_LIFE_S)
        self._recent_s = self._recent_s * kept + spent_s
        self._recent_audio_s *= kept

    def count_audio(self, audio_s: float) -> None:
        """Count speech that was made."""
        self._values["audio_s"] += audio_s
        self._recent_audio_s += audio_s

    @property
    def cost(self) -> float:
        """Recent lane seconds per second of speech; 0 before the first speech. Work counts half after `_HALF_LIFE_S`
        more seconds of work."""
        return self._recent_s / self._recent_audio_s if self._recent_audio_s > 0 else 0.0

    def add(self, name: str, n: float = 1) -> None:
        self._values[name] += n

    def snapshot(self) -> dict[str, float]:
        """By name: `steps`, `cancelled`, and for each stage batches, rows and seconds."""
        return dict(self._values)


def _add(costs: dict[Stage, BatchCost], stage: Stage, n_rows: int, spent_ns: float, share: float) -> None:
    """Take a batch into the running means, with the weight `share`. In the mean of rows, each row has that weight: a
    device computes many rows for little more than one, and a few batches of one row would hide that."""
    batch_ns, row_ns = costs.get(stage, BatchCost(spent_ns, spent_ns / n_rows))
    of_rows = 1 - (1 - share) ** min(n_rows, _MOST_COUNTED)
    costs[stage] = BatchCost(
        batch_ns + share * (spent_ns - batch_ns), row_ns + of_rows * (spent_ns / n_rows - row_ns)
    )


_MOST_COUNTED = 16
"""Rows of a batch that count, so that a single slow batch does not decide alone."""


class Moment(Protocol):
    """A point in a device's work; for a CPU a point in time (`model.border`)."""

    def ns_after(self, begin: Any) -> int | None:
        """Time since `begin`; None if the device has not reached this point."""

    def wait(self) -> None:
        """Return when the device has reached this point."""


class InFlight:
    """Batches that a device may still compute, and that are not counted yet.

    The host is at most `MOST_IN_FLIGHT` batches ahead. What is decided now must be computed soon: a more urgent stream
    may come, or a stream may be cancelled.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._batches: deque[tuple[Moment, Moment, Callable[..., None]]] = deque()

    def add(
        self,
        stage: Stage,
        n_rows: int,
        begin: Moment,
        end: Moment,
        *,
        is_usual: bool,
        is_alone: bool = False,
        size: float = 1.0,
    ) -> None:
        """Add a batch and count those that the device has finished. With the core's lock held."""
        count: Callable[..., None] = partial(
            self._counters.count_batch, stage, n_rows, is_usual=is_usual, is_alone=is_alone, size=size
        )
        self._batches.append((begin, end, count))
        while self._batches:
            begin, end, count = self._batches[0]
            spent_ns = end.ns_after(begin)
            if spent_ns is None:
                break
            self._batches.popleft()
            count(spent_ns=spent_ns)

    def wait(self) -> None:
        """Return when at most `MOST_IN_FLIGHT` are left. Called by the lane that feeds a device, without the lock."""
        if len(self._batches) > MOST_IN_FLIGHT:
            self._batches[-MOST_IN_FLIGHT - 1][1].wait()
