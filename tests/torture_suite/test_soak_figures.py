"""The figures of the soak and of heard text, from samples whose figures are known."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from torture.dialects import LATENESS, Lateness
from torture.heard import row
from torture.memory import ProcessMemory, growth_interval, per_call_interval, slope
from torture.violations import HEARD, Tally, Violation

MS = 1_000_000


def test_memory_that_grows_is_told_with_the_confidence_of_its_slope() -> None:
    noise = np.random.default_rng(3).normal(0, 20, 80)
    level = slope([round(200_000 + each) for each in noise], 20)
    assert abs(level["last quarter vs second, %"]) < 0.05
    assert abs(level["KiB per 1000 calls"]) < 2 * level["confidence 95 %"]
    grown = slope([round(200_000 + 40 * n + each) for n, each in enumerate(noise)], 20)
    assert grown["last quarter vs second, %"] == pytest.approx(0.8, abs=0.05)
    assert grown["KiB per 1000 calls"] == pytest.approx(2000, abs=2 * grown["confidence 95 %"])
    assert math.isnan(slope([200_000] * 5, 20)["KiB per 1000 calls"])


def noisy(n: int, growth_kib: float, seed: int = 1) -> list[int]:
    """Samples of a process of 200 MB that grows by so much with each of them. Each sample resembles the one before."""
    draw, wander_kib, sizes = np.random.default_rng(seed), 0.0, []
    for number in range(n):
        wander_kib = 0.5 * wander_kib + draw.normal(0, 60)
        sizes.append(round(200_000 + growth_kib * number + wander_kib))
    return sizes


@pytest.mark.parametrize(("growth_kib", "percent"), [(0, 0.0), (20, 0.497)])
def test_the_growth_is_between_its_limits_about_as_often_as_they_say(growth_kib: float, percent: float) -> None:
    """Limits for samples that do not depend on each other would be too narrow: they hold the truth 69 times of 100."""
    limits = [growth_interval(noisy(100, growth_kib, seed)) for seed in range(100)]
    assert 88 <= sum(low < percent < high for low, high in limits) <= 99
    assert np.median([high - low for low, high in limits]) < 0.15


def test_few_samples_have_wide_limits() -> None:
    widths = [np.diff(growth_interval(noisy(n, 0))).item() for n in (400, 100, 12)]
    assert widths == sorted(widths) and widths[2] > 2 * widths[0]
    assert growth_interval([200_000] * 7) == (-math.inf, math.inf)
    assert growth_interval([200_000] * 8) == (0, 0)


def memory(
    sizes: list[int], types: list[dict[str, int]] | None = None, in_use_kib: list[int] | None = None
) -> ProcessMemory:
    found = ProcessMemory("server", 20)
    for number, resident_kib in enumerate(sizes):
        of_types = types[number] if types is not None else {}
        told = {"resident_kib": resident_kib, "blocks": 100_000 + 40 * number, "types": of_types}
        found.add(told if in_use_kib is None else {**told, "in_use_kib": in_use_kib[number]})
    return found


def test_memory_holds_only_if_its_growth_is_certainly_small() -> None:
    assert memory(noisy(80, 0)).problems() == []
    (grown,) = memory(noisy(80, 40)).problems()
    assert grown.startswith("server: the resident memory of the last quarter is +0.")
    assert len(memory(noisy(7, 0)).problems()) == 1, "too few samples show nothing"
    assert memory(noisy(80, 0)).figures()["Python blocks per call"] == [2.0, 0.0]


def test_some_hundred_bytes_per_call_that_stay_are_found_where_the_resident_memory_says_nothing() -> None:
    """In 40 rounds of 20 calls 500 bytes per call are 0.2 MB in the half between the quarters: 0.1 % of 200 MB."""
    in_use_kib = [round(180_000 + 20 * n * 500 / 1024) + n % 3 for n in range(40)]
    low, high = per_call_interval(in_use_kib, 20)
    assert 450 < low < 500 < high < 550
    level = [200_000] * 40
    (problem,) = memory(level, in_use_kib=in_use_kib).problems()
    assert problem.startswith("server: +4") and "more bytes are in use after each call, 200 are allowed" in problem
    assert memory(level, in_use_kib=[180_000 + n % 3 for n in range(40)]).problems() == []
    assert len(memory(level[:7], in_use_kib=[180_000] * 7).problems()) == 2, "too few samples show nothing"


def test_objects_that_stay_are_told_and_tables_that_fill_up_are_not() -> None:
    sizes = noisy(40, 0)
    exemplar = "prometheus_client.samples.Exemplar"
    types = [{"Turn": 5 + n % 3, "Session": n, "Sound": min(n, 25), exemplar: n, "dict": 900 - n} for n in range(40)]
    assert memory(sizes, types).grown_types() == {"Session": 20}
    assert memory(sizes, types).problems() == ["server: 20 more objects of Session are left"]
    assert memory(sizes, types).figures()["more objects in the second half"] == {
        "Session": 20, exemplar: 20, "Sound": 6,
    }  # fmt: skip


def test_a_row_has_the_worst_error_and_the_share_of_right_words() -> None:
    tally = Tally(heard_errors_ms=Counter([0.0, 4.0]), heard_errors_by_marks_ms=Counter([19.0, 1.0]))
    tally.n_words_right, tally.n_words_wrong = 3, 1
    tally.violations.append(Violation(HEARD, "wrong"))
    told = row("twilio", "fixed", tally)
    assert (told["places"], told["by marks"], told["error max, ms"], told["word right"], told["wrong"]) == (
        4, 2, 19, 0.75, 1,
    )  # fmt: skip


@pytest.mark.parametrize("kind", LATENESS)
def test_a_platform_is_never_later_than_it_may_be(kind: str) -> None:
    delays, stalls = set(), 0
    for seed in range(60):
        late = Lateness(kind, seed, 2000)
        for _ in range(8):
            delay_ns = late.begin_ns()
            delays.add(delay_ns)
            stalled_ns = sum(late.stall_ns() for _ in range(100))
            assert 0 <= delay_ns + stalled_ns <= 2000 * MS + 100
            stalls += stalled_ns > 0
    assert len(delays) > 15 and max(delays) > 1500 * MS
    assert (stalls > 50) == (kind == "stalling")
