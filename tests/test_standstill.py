"""Stalls of the machine: how they are counted, and the test that is run again because of one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from standstill import Standstill, Standstills, standstills

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

MS = 1_000_000


def machine(*told: tuple[int, int, int]) -> Standstills:
    return Standstills(told=[Standstill(core, begin * MS, end * MS) for core, begin, end in told])


def test_a_stall_of_two_cores_at_once_counts_once() -> None:
    told = machine((0, 10, 30), (1, 20, 40), (0, 50, 60), (1, 52, 55))
    assert told.within(0, 100 * MS) == 40 * MS
    assert told.within(25 * MS, 51 * MS) == 16 * MS
    assert told.within(41 * MS, 49 * MS) == 0


def test_longest_counts_only_stalls_that_ended_since() -> None:
    told = machine((0, 10, 90), (1, 95, 110), (0, 100, 130))
    assert told.longest(0) == 80 * MS
    assert told.longest(91 * MS) == 30 * MS
    assert told.longest(130 * MS) == 0


@pytest.mark.alone
def test_a_stopped_witness_reports_how_long_and_when() -> None:
    """A SIGSTOP has the same effect on a process as the loss of its core."""
    others = _children()
    with standstills() as told:
        if not told.is_exact:
            pytest.skip("needs the right to set a real-time priority")
        witness = (_children() - others).pop()
        time.sleep(0.05)
        begin_ns = time.monotonic_ns()
        os.kill(witness, signal.SIGSTOP)
        time.sleep(0.15)
        os.kill(witness, signal.SIGCONT)
        end_ns = time.monotonic_ns()
        while told.longest(begin_ns) <= 100 * MS:
            assert time.monotonic_ns() < end_ns + 5000 * MS, "the witness reports nothing"
            time.sleep(0.01)
        assert told.within(begin_ns, end_ns) > 0.95 * (end_ns - begin_ns)
    assert _children() == others, "witnesses left"


def _children() -> set[int]:
    """The process ids of this process's witnesses."""
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in own if "witness.py" in Path(f"/proc/{pid}/cmdline").read_text()}


TEST_OF_A_CALL = """
import pytest, time
from standstill import Standstill

runs = []

@pytest.mark.{mark}
def test_disturbed(request, tmp_path):
    import stall_retry
    monitor = stall_retry._monitor(request.config)
    runs.append(tmp_path)
    now_ns = time.monotonic_ns()
    monitor._told.append(Standstill(0, now_ns - {n_ms} * 1_000_000, now_ns))
    assert len(runs) >= {n_runs}
"""
AGAIN = "test_it.py::test_disturbed: the machine stalled for 84 ms; "


def run_of(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str, *options: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\nmarkers =\n    alone: so\n    timed: so")
    pytester.makepyfile(test_it=source)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return pytester.runpytest_subprocess("-p", "stall_retry", "-p", "no:cacheprovider", *options)


@pytest.mark.parametrize(
    ("mark", "n_ms", "n_runs", "is_passed"),
    [("alone", 84, 2, True), ("timed", 84, 2, True), ("timed", 84, 3, False), ("alone", 25, 2, False)],
)
def test_a_test_that_fails_in_a_stall_runs_once_more(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mark: str, n_ms: int, n_runs: int, is_passed: bool
) -> None:
    result = run_of(pytester, monkeypatch, TEST_OF_A_CALL.format(mark=mark, n_ms=n_ms, n_runs=n_runs))
    result.assert_outcomes(passed=int(is_passed), failed=int(not is_passed))
    listed = AGAIN + ("passed the second time" if is_passed else "failed again")
    assert (listed in result.stdout.str()) == (n_ms > 40)


def test_the_list_of_retries_comes_from_the_workers_too_and_goes_to_a_file(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TEST_OF_A_CALL.format(mark="timed", n_ms=84, n_runs=2)
    for _ in range(2):
        result = run_of(pytester, monkeypatch, source, "-n", "1", "--retried-to", "list")
        result.assert_outcomes(passed=1)
        assert "1 run again after a stall of the machine" in result.stdout.str()
    assert (pytester.path / "list").read_text() == f"{AGAIN}passed the second time\n" * 2
