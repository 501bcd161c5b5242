"""Processes that run in idle time: which way works on this machine, and how it is chosen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import idle_time
import pytest
from idle_time import BUSY, Enter, enter_idle_class, leaves_the_cores, way_to_yield

pytestmark = pytest.mark.slow


def nothing() -> None:
    """As every process is."""


def refused() -> None:
    raise PermissionError


@pytest.mark.alone
def test_busy_processes_like_this_one_do_not_leave_it_the_cores() -> None:
    """In the pass of the unmarked tests this process is itself in a group that yields. There the kernel sees hardly any
    load to balance, and may leave this process a core of its own."""
    assert not leaves_the_cores(nothing)


def test_a_way_that_is_refused_is_no_way() -> None:
    assert not leaves_the_cores(refused)


@pytest.mark.alone
def test_the_way_that_was_found_leaves_the_cores() -> None:
    groups = [group.with_name("telephony-tts-test") for group in idle_time.GROUPS]
    with way_to_yield(groups) as found:
        if found is None:
            pytest.skip("this machine shares its cores by session, and control groups are not ours to make")
        assert leaves_the_cores(found)
    assert not any(group.exists() for group in groups)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Enter]:
    """The ways that were measured. None yields."""
    found: list[Enter] = []

    def measure(enter: Enter) -> bool:
        found.append(enter)
        return False

    monkeypatch.setattr(idle_time, "leaves_the_cores", measure)
    return found


def test_without_control_groups_there_is_only_the_idle_class(tried: list[Enter], tmp_path: Path) -> None:
    with way_to_yield([tmp_path / "no" / "group"]) as found:
        assert found is None and tried == [enter_idle_class]


def test_a_control_group_is_tried_next_and_removed(tried: list[Enter], tmp_path: Path) -> None:
    group = tmp_path / "group"
    with way_to_yield([group]) as found:
        assert (group / "cpu.idle").read_text() == "1"
        subprocess.run([sys.executable, "-S", "-c", ""], check=True, preexec_fn=tried[1])
        assert (group / "cgroup.procs").read_text().isdecimal()
        for each in group.iterdir():  # the kernel's go with the folder
            each.unlink()
    assert found is None and not group.exists() and len(tried) == 2


def test_a_control_group_that_cannot_be_made_idle_is_removed(
    tried: list[Enter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has it without `cpu.idle` where the group above it shares no cores."""

    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "write_text", refuse)
    with way_to_yield([tmp_path / "group"]) as found:
        assert found is None and tried == [enter_idle_class]
    assert not (tmp_path / "group").exists()


def test_a_busy_process_ends_by_itself() -> None:
    ended = subprocess.run([sys.executable, "-S", "-c", BUSY, "1"], capture_output=True, timeout=30, check=False)
    assert ended.returncode == -signal.SIGALRM


def test_a_process_that_enters_the_idle_class_is_in_it() -> None:
    program = "import os; print(os.sched_getscheduler(0))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, preexec_fn=enter_idle_class)
    assert int(told.stdout) == os.SCHED_IDLE
