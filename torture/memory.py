"""What samples of a process's memory say: how much it has grown, how sure that is, and which objects stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ALLOWED_GROWTH = 0.5
"""Percent, of the resident memory in the last quarter against the second."""
ALLOWED_BYTES = 200
"""In use, for each call between these quarters."""
_OBJECTS_PER_CALL = 0.02
_FEW_OBJECTS = 12
"""A table of fixed size may fill up by so many objects of a type."""
_TABLES = ("prometheus_client.samples.Exemplar", "urllib.parse.SplitResult")
"""Types of larger tables: each bucket of each histogram has one exemplar, and Python keeps 128 parsed addresses."""
_TOLD_TYPES = 8


def slope(sizes: Sequence[float], n_calls: int) -> dict[str, float]:
    """How memory grew, of which there is a sample after each `n_calls`: the last quarter against the second in percent,
    and a line through the last three quarters with the confidence of its slope."""
    quarter = len(sizes) // 4
    if quarter < 2:
        return {"last quarter vs second, %": math.nan, "KiB per 1000 calls": math.nan, "confidence 95 %": math.nan}
    steepness, error = _line(sizes[quarter:], n_calls)
    return {
        "last quarter vs second, %": round(_growth(sizes), 3),
        "KiB per 1000 calls": round(1000 * steepness, 1),
        "confidence 95 %": round(1000 * error, 1),
    }


def growth_interval(sizes: Sequence[float]) -> tuple[float, float]:
    """Between which limits the growth of the last quarter against the second lies, in percent, with a confidence of
    95 %."""
    quarter = len(sizes) // 4
    percent = 100 / float(np.mean(sizes[quarter : 2 * quarter])) if quarter else 1.0
    low, high = _more_interval(sizes)
    return low * percent, high * percent


def per_call_interval(sizes_kib: Sequence[float], n_calls: int) -> tuple[float, float]:
    """The same in bytes for each call, with `n_calls` from one sample to the next."""
    n_between = max(1, n_calls * (len(sizes_kib) - 2 * (len(sizes_kib) // 4)))
    low, high = _more_interval(sizes_kib)
    return low * 1024 / n_between, high * 1024 / n_between


def _more_interval(sizes: Sequence[float]) -> tuple[float, float]:
    """By how much the mean of the last quarter is larger than that of the second. Neighbouring samples are alike, so
    they count as fewer (`_widening`). A slope that both quarters have is no noise."""
    quarter = len(sizes) // 4
    if quarter < 2:
        return -math.inf, math.inf
    second, last = np.array(sizes[quarter : 2 * quarter], float), np.array(sizes[-quarter:], float)
    at = np.arange(quarter) - (quarter - 1) / 2
    steepness = float((at * (second + last)).sum() / (2 * (at**2).sum()))
    rests = [each - each.mean() - steepness * at for each in (second, last)]
    variance = sum(float((rest**2).sum()) for rest in rests) / max(1, 2 * quarter - 3)
    widening = _widening(rests)
    n_worth = 2 * quarter / widening**2
    error = _quantile(n_worth - 3) * widening * math.sqrt(2 * variance / quarter)
    more = float(last.mean() - second.mean())
    return more - error, more + error


@dataclass
class ProcessMemory:
    """The samples of one process, one after each `n_calls`."""

    name: str
    n_calls: int
    resident_kib: list[int] = field(default_factory=list)
    in_use_kib: list[int] = field(default_factory=list)
    """Empty where the C library or Python does not tell it."""
    blocks: list[int] = field(default_factory=list)
    types: list[Mapping[str, int]] = field(default_factory=list)

    def add(self, told: Mapping[str, Any]) -> None:
        """Add what the process told of itself (`Subject.look_inside`)."""
        self.resident_kib.append(told["resident_kib"])
        if "in_use_kib" in told:
            self.in_use_kib.append(told["in_use_kib"])
        self.blocks.append(told["blocks"])
        self.types.append(told["types"])

    def grown_types(self) -> dict[str, int]:
        """Of which types there are more objects at the end than after half of the calls, though that was no longer the
        beginning: more than a table of fixed size explains."""
        more = self._more_objects().items()
        return {name: n for name, n in more if n > self._allowed_objects() and name not in _TABLES}

    def _more_objects(self) -> dict[str, int]:
        if len(self.types) < 2:
            return {}
        half, last = self.types[(len(self.types) - 1) // 2], self.types[-1]
        more = {name: n - half.get(name, 0) for name, n in last.items() if n > half.get(name, 0)}
        return dict(sorted(more.items(), key=lambda each: -each[1]))

    def _allowed_objects(self) -> float:
        n_between = len(self.types) - 1 - (len(self.types) - 1) // 2
        return max(_FEW_OBJECTS, _OBJECTS_PER_CALL * n_between * self.n_calls)

    def problems(self) -> list[str]:
        """What does not hold. A growth that may be too large counts as one that is: then more calls must show it."""
        found = [f"{self.name}: {n} more objects of {name} are left" for name, n in self.grown_types().items()]
        if self.in_use_kib:
            low, high = per_call_interval(self.in_use_kib, self.n_calls)
            if not high <= ALLOWED_BYTES:
                found.append(f"{self.name}: {low:+.0f} to {high:+.0f} more bytes are in use after each call, "
                             f"{ALLOWED_BYTES} are allowed")  # fmt: skip
        low, high = growth_interval(self.resident_kib)
        if not high <= ALLOWED_GROWTH:
            found.append(f"{self.name}: the resident memory of the last quarter is {low:+.2f} to {high:+.2f} % larger "
                         f"than that of the second, {ALLOWED_GROWTH} % are allowed")  # fmt: skip
        return found

    def figures(self) -> dict[str, Any]:
        low, high = growth_interval(self.resident_kib)
        quarter = max(1, len(self.resident_kib) // 4)
        starts = (0, quarter, 2 * quarter, len(self.resident_kib) - quarter)
        steepness, error = _line(self.blocks[quarter:], self.n_calls)
        return {
            **slope(self.resident_kib, self.n_calls),
            "its limits with 95 %": [round(low, 3), round(high, 3)],
            "resident KiB, mean of each quarter": [
                round(float(np.mean(self.resident_kib[at : at + quarter]))) for at in starts
            ],
            "more bytes in use per call": [
                round(each, 1) for each in per_call_interval(self.in_use_kib, self.n_calls) if math.isfinite(each)
            ],
            "Python blocks per call": [round(steepness, 3), round(error, 3)],
            "more objects in the second half": dict(list(self._more_objects().items())[:_TOLD_TYPES]),
            "in_use_kib": self.in_use_kib,
            "resident_kib": self.resident_kib,
        }


def _growth(sizes: Sequence[float]) -> float:
    quarter = len(sizes) // 4
    return float((np.mean(sizes[-quarter:]) / np.mean(sizes[quarter : 2 * quarter]) - 1) * 100)


def _line(sizes: Sequence[float], n_calls: int) -> tuple[float, float]:
    """The slope of a line through these samples, per call, and its confidence of 95 %."""
    if len(sizes) < 3:
        return math.nan, math.nan
    settled = np.array(sizes, float)
    at = np.arange(len(settled)) * n_calls
    steepness, start = np.polyfit(at, settled, 1)
    rest = settled - (steepness * at + start)
    error = math.sqrt(float((rest**2).sum()) / (len(at) - 2) / float(((at - at.mean()) ** 2).sum()))
    return float(steepness), 1.96 * error * _widening([rest])


def _widening(rests: Sequence[np.ndarray[Any, Any]]) -> float:
    """By how much an error is larger because each sample resembles the one before (first-order autocorrelation). With
    few samples that is seen too small, which the second term makes up for."""
    squares = sum(float((rest**2).sum()) for rest in rests)
    if not squares:
        return 1.0
    products = sum(float((rest[1:] * rest[:-1]).sum()) for rest in rests)
    alike = products / squares
    alike = min(0.95, max(0.0, alike + (1 + 3 * alike) / len(rests[0])))
    return math.sqrt((1 + alike) / (1 - alike))


def _quantile(n_free: float) -> float:
    """About the 97.5 % quantile of Student's distribution."""
    return 1.96 + 2.4 / max(1.0, n_free)
