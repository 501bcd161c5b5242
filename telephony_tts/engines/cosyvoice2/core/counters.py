"""What the engine has done so far: steps, rows and seconds by stage, for metrics and benchmarks; and what it costs."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, Protocol

from telephony_tts.clock import NS_PER_S
from telephony_tts.engines.cosyvoice2.core.scheduler import Price, Stage

_HALF_LIFE_S = 5.0
MOST_IN_FLIGHT = 2
_NEW = 1 / 16
"""What the last batch counts in the mean of a stage's batches."""


class Counters:
    """Only grows. Written under the core's lock."""

    def __init__(self) -> None:
        self._values: dict[str, float] = defaultdict(float)
        self._recent_s = self._recent_audio_s = 0.0
        self.prices: dict[Stage, Price] = {}
        """Of the stages of which a batch was computed; prices of lately count most."""

    def batch(self, stage: Stage, n_rows: int, spent_ns: int, *, is_usual: bool = True) -> None:
        """A batch of one stage was computed; its price is remembered if it `is_usual`."""
        name = stage.name.lower()
        self._values[f"{name}_batches"] += 1
        self._values[f"{name}_rows"] += n_rows
        if is_usual:
            batch_ns, row_ns = self.prices.get(stage, Price(spent_ns, spent_ns / n_rows))
            self.prices[stage] = Price(
                batch_ns + _NEW * (spent_ns - batch_ns), row_ns + _NEW * (spent_ns / n_rows - row_ns)
            )
        spent_s = spent_ns / NS_PER_S
        self._values[f"{name}_s"] += spent_s
        kept = 0.5 ** (spent_s / _HALF_LIFE_S)
        self._recent_s = self._recent_s * kept + spent_s
        self._recent_audio_s *= kept

    def made(self, audio_s: float) -> None:
        """So much speech came of it."""
        self._values["audio_s"] += audio_s
        self._recent_audio_s += audio_s

    @property
    def cost(self) -> float:
        """Lanes' seconds for a second of speech, lately: half of it from the last `_HALF_LIFE_S` of their work. 0 where
        none was made yet."""
        return self._recent_s / self._recent_audio_s if self._recent_audio_s > 0 else 0.0

    def add(self, name: str, n: float = 1) -> None:
        self._values[name] += n

    def snapshot(self) -> dict[str, float]:
        """By name: `steps`, `cancelled`, and for each stage batches, rows and seconds."""
        return dict(self._values)


class Moment(Protocol):
    """Of a device, or of the host that is its own (`model.border`)."""

    def ns_after(self, begin: Any) -> int | None:
        """None where the device has not come here yet."""

    def wait(self) -> None: ...


class InFlight:
    """Batches that were asked for and not counted yet, because a device may still be at them.

    The host is never more than `MOST_IN_FLIGHT` of them in front: what is decided now must not be computed much later,
    when somebody has come who is more urgent, or was cancelled.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._batches: deque[tuple[Stage, int, bool, Moment, Moment]] = deque()

    def add(self, stage: Stage, n_rows: int, begin: Moment, end: Moment, *, is_usual: bool) -> None:
        """Under the core's lock. Counts what the device is through with."""
        self._batches.append((stage, n_rows, is_usual, begin, end))
        while self._batches:
            stage, n_rows, is_usual, begin, end = self._batches[0]
            spent_ns = end.ns_after(begin)
            if spent_ns is None:
                break
            self._batches.popleft()
            self._counters.batch(stage, n_rows, spent_ns, is_usual=is_usual)

    def wait(self) -> None:
        """Until few are left. By the lane that gives a device its work; the lock is not held."""
        if len(self._batches) > MOST_IN_FLIGHT:
            self._batches[-MOST_IN_FLIGHT - 1][-1].wait()
