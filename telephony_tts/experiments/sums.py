"""What the calls of an arm were like: sums that can be added up, means with confidence intervals, and stop rules. Pure.

A call is the unit: its turns are alike, so they are not independent. Each call adds its counts, their squares and their
products to the sums of its arm. From these sums follow a mean per turn, and how certain it is, as for a ratio of two
sums over a sample of clusters. The sums only grow, so they can be counters of Prometheus.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

PER_TURN = {"first_audio_ms": "started", "underruns": "turns", "interruptions": "turns", "errors": "turns"}
"""The measures, and what each is divided by: turns that have ended, or turns whose speech has begun."""
_COUNTS = ("turns", "started")
SUMS = (
    "calls", *_COUNTS, *(f"{count}_squared" for count in _COUNTS), *PER_TURN,
    *(f"{measure}_squared" for measure in PER_TURN), *(f"{measure}_times_{by}" for measure, by in PER_TURN.items()),
)  # fmt: skip
FEWEST_CALLS = 30
"""With fewer calls an interval says little."""
_Z = 1.96
"""An interval of so many standard errors to both sides holds the true mean in 95 of 100 cases."""


@dataclass(slots=True)
class CallSums:
    """The counts of one call."""

    turns: int = 0
    started: int = 0
    first_audio_ms: float = 0.0
    underruns: int = 0
    interruptions: int = 0
    errors: int = 0

    def terms(self) -> dict[str, float]:
        """What the call adds to the sums of its arm."""
        found: dict[str, float] = {"calls": 1}
        for count in _COUNTS:
            n = getattr(self, count)
            found |= {count: n, f"{count}_squared": n * n}
        for measure, by in PER_TURN.items():
            x = getattr(self, measure)
            found |= {measure: x, f"{measure}_squared": x * x, f"{measure}_times_{by}": x * getattr(self, by)}
        return found


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean per turn and its 95 % confidence interval, which is None with fewer than `FEWEST_CALLS` calls."""

    value: float
    variance: float
    n_calls: float

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.n_calls < FEWEST_CALLS:
            return None
        reach = _Z * math.sqrt(self.variance)
        return self.value - reach, self.value + reach

    def minus(self, other: Mean) -> Mean:
        """The difference of two arms, whose calls are independent."""
        n_calls = min(self.n_calls, other.n_calls)
        return Mean(self.value - other.value, self.variance + other.variance, n_calls)


def mean(sums: Mapping[str, float], measure: str) -> Mean | None:
    """The mean of a measure per turn. None if there was no turn."""
    by = PER_TURN[measure]
    n, n_calls = sums.get(by, 0.0), sums.get("calls", 0.0)
    if n <= 0:
        return None
    value = sums.get(measure, 0.0) / n
    spread = (
        sums.get(f"{measure}_squared", 0.0)
        - 2 * value * sums.get(f"{measure}_times_{by}", 0.0)
        + value * value * sums.get(f"{by}_squared", 0.0)
    )
    # A sum over calls of (x - value * n)², which rounding may bring below 0.
    correction = n_calls / (n_calls - 1) if n_calls > 1 else 1.0
    return Mean(value, correction * max(0.0, spread) / (n * n), n_calls)


@dataclass(frozen=True, slots=True)
class StopRules:
    """The most that an arm may have per turn. Above it, beyond doubt and after so many calls, the arm is turned off."""

    after_calls: int = 50
    first_audio_ms: float | None = None
    underruns: float | None = None
    interruptions: float | None = None
    errors: float | None = None

    def why_to_stop(self, sums: Mapping[str, float]) -> str | None:
        """What is wrong with an arm of these sums. None if it may go on."""
        if sums.get("calls", 0) < max(self.after_calls, FEWEST_CALLS):
            return None
        for measure in PER_TURN:
            limit = getattr(self, measure)
            found = None if limit is None else mean(sums, measure)
            if found is None or found.interval is None:
                continue
            low, high = found.interval
            if low > limit:
                each = f"{found.value:.3g} ({low:.3g} to {high:.3g})"
                return f"{measure} per turn is {each}, above {limit:g}, after {sums['calls']:.0f} calls"
        return None
