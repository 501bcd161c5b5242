"""The figures of the soak and of heard text, from samples whose figures are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torture.dialects import LATENESS, Lateness
from torture.heard import row
from torture.soak import slope
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


def test_a_row_has_the_worst_error_and_the_share_of_right_words() -> None:
    tally = Tally(heard_errors_ms=[0, 4], heard_errors_by_marks_ms=[19, 1], n_words_right=3, n_words_wrong=1)
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
