"""How the benchmarks compute figures from measured times: known times give known figures."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import capacity
from harness.lateness import frame_lateness_ms, lateness_between
from harness.process import place, placed_here
from harness.report import percentiles

MS = 1_000_000


def test_frames_sent_ahead_of_time_are_not_late() -> None:
    """The lead of 200 ms comes at once, then a frame every 20 ms."""
    arrivals_ns = [0] * 11 + [20 * MS * n for n in range(1, 6)]
    assert frame_lateness_ms(arrivals_ns, 0, 1000 * MS, 200) == [0.0] * 16


def test_a_schedule_that_slipped_stays_late() -> None:
    arrivals_ns = [20 * MS * n + (30 * MS if n >= 3 else 0) for n in range(5)]
    assert frame_lateness_ms(arrivals_ns, 0, 1000 * MS, 0) == [0.0, 0.0, 0.0, 30.0, 30.0]


def test_only_frames_of_the_window_count_but_the_first_frame_begins_the_schedule() -> None:
    arrivals_ns = [10 * MS, 30 * MS, 55 * MS, 70 * MS]
    assert frame_lateness_ms(arrivals_ns, 40 * MS, 70 * MS, 0) == [5.0]
    assert frame_lateness_ms([], 0, 100, 0) == []


def test_the_servers_lateness_is_that_between_two_looks() -> None:
    before = {"1.0": 10.0, "20.0": 10.0, "+Inf": 10.0}
    after = {"1.0": 100.0, "20.0": 109.0, "+Inf": 110.0}
    assert lateness_between(before, after) == {
        "n": 100, "p50_le": "1.0", "p99_le": "20.0", "p999_le": "+Inf", "over_20_ms_share": 0.01,
    }  # fmt: skip
    assert lateness_between(before, before) == {"n": 0} and lateness_between({}, {}) == {"n": 0}


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles(list(range(1, 101))) == {"n": 100, "p50": 50, "p95": 95, "p99": 99, "max": 100}
    assert percentiles([0.12345]) == {"n": 1, "p50": 0.123, "p95": 0.123, "p99": 0.123, "max": 0.123}
    assert percentiles([]) == {"n": 0}


def test_windows_without_speech_are_measured_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled machine let a window of half a second pass without any: then there is no cost of a second of speech.
    Both sides run again, because each is measured beside the other."""
    costs: dict[str, list[float | None]] = {"serve": [None, 1.5, 1.6], "reference": [1.2, None, 1.4]}

    def window(script: str, *_: object, **__: object) -> dict[str, Any]:
        return {"server_cpu_ms_per_call_s": costs[script].pop(0)}

    monkeypatch.setattr(capacity, "_window", window)
    chosen = argparse.Namespace(calls=2, seconds=0.5)
    pair = capacity._pair("ours", (), chosen)
    assert [pair[side]["server_cpu_ms_per_call_s"] for side in ("ours", "bare")] == [1.6, 1.4]
    costs = {"serve": [1.0] * 9, "reference": [None] * 9}
    with pytest.raises(SystemExit, match=r"ours: no call spoke in 3 windows of 0\.5 s"):
        capacity._pair("ours", (), chosen)
    assert len(costs["serve"]) == 6


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
@pytest.mark.slow
def test_a_process_is_placed_with_all_its_threads_and_this_one_goes_back_where_it_was() -> None:
    core = min(os.sched_getaffinity(0))
    program = "import threading; t = threading.Thread(target=input); t.start(); print('up', flush=True); t.join()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        place(child.pid, core, 7)
        threads = [int(task.name) for task in Path(f"/proc/{child.pid}/task").iterdir()]
        assert len(threads) == 2
        for thread in threads:
            assert os.sched_getaffinity(thread) == {core}
            assert os.getpriority(os.PRIO_PROCESS, thread) == 7
        child.communicate(b"\n")
    usable = os.sched_getaffinity(0)
    with placed_here(core):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == usable
