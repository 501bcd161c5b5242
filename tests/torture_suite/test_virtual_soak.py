"""The soak on the virtual clock: what its processes tell, and that Ctrl-C keeps what was judged."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest
from harness.process import give_back_unused, resident_kib

from torture import soak
from torture import violations as v
from torture.violations import Tally, Violation

pytestmark = pytest.mark.slow

CALL_MINUTES = 0.2


def test_each_process_tells_its_batches_and_progress_is_said() -> None:
    lines: list[str] = []
    shares = soak.soak([range(3), range(3, 5)], CALL_MINUTES, lines.append, batch=2)
    assert [share.tally.counts["calls"] for share in shares] == [3, 2]
    assert [len(share.resident_kib) for share in shares] == [2, 1]
    assert lines[-1].split(": ")[1].startswith("5 of 5 calls, ") and "0 violations" in lines[-1]


def find_much(at: int, seeds: range, batch: int, minutes: float, done: multiprocessing.Queue[Any]) -> None:
    """Stands for `run_part`: 25 things that do not hold, in each of two batches."""
    for first in (0, 25):
        found = Tally()
        found.violations += [Violation(v.SILENCE, f"finding {first + n}", 7) for n in range(25)]
        done.put((at, found, 100))


def test_the_first_violations_are_shown_when_they_are_found_and_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "run_part", find_much)
    lines: list[str] = []
    (share,) = soak.soak([range(4)], CALL_MINUTES, lines.append, batch=2)
    shown = [line.strip() for line in lines if "finding" in line]
    assert shown == [f"{v.SILENCE}: finding {n} (seed 7)" for n in range(20)]
    assert len(share.tally.violations) == 50 and "50 violations" in lines[-1]


def keep_little_of_much(at: int, seeds: range, batch: int, minutes: float, done: multiprocessing.Queue[Any]) -> None:
    """Stands for `run_part`: 40 MB of small objects come and go, and of each thousand one stays."""
    before_kib = resident_kib(os.getpid())
    much = [str(n) * 8 for n in range(400_000)]
    few = much[::1_000]
    del much
    give_back_unused()
    done.put((at, Tally(), resident_kib(os.getpid()) - before_kib + 0 * len(few)))


def test_memory_that_small_objects_no_longer_need_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "run_part", keep_little_of_much)
    (share,) = soak.soak([range(1)], CALL_MINUTES, lambda line: None, batch=2)
    assert share.resident_kib[0] < 10_000
    assert "PYTHONMALLOC" not in os.environ, "only the soak's processes have it"


def test_ctrl_c_ends_it_and_keeps_the_batches_that_were_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_SAY_S", 0.0)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            raise KeyboardInterrupt

    (share,) = soak.soak([range(200)], CALL_MINUTES, say, batch=2)
    assert share.tally.counts["calls"] == 2 and len(share.resident_kib) == 1
    assert lines[1].startswith("stopped")


def test_a_process_that_dies_is_an_error_and_not_a_shorter_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_LOOK_S", 0.2)
    with pytest.raises(RuntimeError, match="ended early"):
        soak.soak([range(1)], float("nan"), lambda line: None)
