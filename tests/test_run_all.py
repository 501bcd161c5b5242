"""`make test`: the passes, which tests belong to which, and the exit status of all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import run_all

HERE = Path(__file__).parent
ONE_OF_EACH = """
import os, pytest

def test_unmarked():
    assert (os.sched_getscheduler(0) == os.SCHED_IDLE) == {gives_way}, "the class of the scheduler"

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.timed
def test_timed():
    assert os.sched_getscheduler(0) == os.SCHED_OTHER

@pytest.mark.timed
@pytest.mark.alone
def test_alone():
    assert {is_well}
"""


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [((0, 5, 5), 0), ((5, 5, 5), 5), ((0, 1, 0), 1), ((1, 5, 0), 1), ((0, 2, 1), 2), ((0, -15, 0), -15)],
)
def test_the_status_of_all_passes(statuses: tuple[int, ...], whole: int) -> None:
    assert run_all.combined(statuses) == whole


@pytest.mark.parametrize(("text", "has_quota"), [("max 100000\n", False), ("200000 100000\n", True), (None, False)])
def test_a_cpu_quota_is_recognised(tmp_path: Path, text: str | None, has_quota: bool) -> None:
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert run_all.has_cpu_quota(tmp_path / "cpu.max") == has_quota


def project(folder: Path, gives_way: bool = False, is_well: bool = True) -> None:
    (folder / "test_it.py").write_text(ONE_OF_EACH.format(gives_way=gives_way, is_well=is_well))
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone: x\n    timed: x\n    slow: x\n")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.run(
        [sys.executable, *command, "-p", "no:cacheprovider", "-rA"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.timed  # only there the scheduler's class is not the idle one from the start
@pytest.mark.parametrize(("n_processes", "is_well"), [(1, True), (2, True), (2, False)])
def test_all_passes_run_and_one_failure_fails_the_run(tmp_path: Path, n_processes: int, is_well: bool) -> None:
    project(tmp_path, gives_way=n_processes > 1 and not run_all.has_cpu_quota(), is_well=is_well)
    done = run(tmp_path, str(HERE / "run_all.py"), "--processes", str(n_processes))
    assert done.returncode == int(not is_well), done.stdout
    passed = set(re.findall(r"PASSED test_it.py::test_(\w+)", done.stdout))
    assert passed == {"unmarked", "slow", "timed"} | ({"alone"} if is_well else set())
    assert re.search(r"^== .*beside \d+ s.*alone \d+ s$", done.stdout, re.M)


@pytest.mark.parametrize(
    ("name", "names"),
    [("beside", ["slow", "unmarked"]), ("quick", ["unmarked"]), ("timed", ["timed"]), ("alone", ["alone"])],
)
def test_each_pass_has_its_tests(tmp_path: Path, name: str, names: list[str]) -> None:
    project(tmp_path)
    done = run(tmp_path, "-m", "pytest", "--only", name, "--collect-only", "-q")
    assert sorted(re.findall(r"^test_it.py::test_(\w+)$", done.stdout, re.M)) == names
