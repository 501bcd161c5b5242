"""Calls to real servers leave no objects and no memory behind. No clock is judged, so this runs in parallel."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from torture import violations as v
from torture.defects import DEFECTS
from torture.memory import per_call_interval
from torture.round_run import warm_up
from torture.runner import in_loop
from torture.soak import soak_server
from torture.subject import Subject

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize(
    ("shape", "others"),
    [("one", []), ("bridge", ["bridge"]), ("engine", ["engine"]), ("fronts", ["front 1", "front 2"])],
)
def test_short_calls_leave_no_objects_behind_in_any_process(shape: str, others: list[str]) -> None:
    """After twice as many calls each process has as many objects of each type, up to tables of fixed size."""
    tally, memories = soak_server(shape, 6, 100, lambda number: number < 3, are_short=True)
    assert [each for each in tally.violations if each.check != v.LEAKS] == []
    assert tally.counts["calls"] == tally.n_checked[v.CLOSE] == 300
    assert {memory.name: memory.grown_types() for memory in memories} == {memory.name: {} for memory in memories}
    assert [memory.name for memory in memories][1:] == others
    assert all(len(memory.resident_kib) == 3 and sum(memory.types[0].values()) > 10 for memory in memories)


def test_calls_through_all_doors_leave_no_objects_behind() -> None:
    tally, (server,) = soak_server("one", 6, 24, lambda number: number < 3)
    assert tally.counts["rounds"] == 3 and tally.counts["calls"] > 60
    assert server.grown_types() == {}


def test_objects_that_calls_leave_behind_and_errors_in_the_log_are_found() -> None:
    names = ("leak_session", "raise_in_a_callback")
    tally, (server,) = soak_server("one", 6, 60, lambda number: number < 3, names, are_short=True)
    assert DEFECTS["raise_in_a_callback"].check in {each.check for each in tally.violations}
    assert server.grown_types()["telephony_tts.session.session.Session"] >= 60


def test_some_hundred_bytes_that_each_call_leaves_behind_are_found() -> None:
    """They are in objects that the garbage collector does not know. 24 samples are enough to be sure of them."""
    _, (server,) = soak_server("one", 6, 30, lambda number: number < 24, ("leak_slowly",), are_short=True)
    low, high = per_call_interval(server.in_use_kib, server.n_calls)
    assert 200 < low < high < 2000
    assert any("more bytes are in use after each call" in problem for problem in server.problems())


_HEAP_BYTES = 64 << 20


def arenas_of_threads(pid: int) -> list[str]:
    """The first heaps of arenas. Each has 64 MiB at a multiple of that, of which glibc reserves those it does not use
    yet."""
    regions = []
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        begin, end = (int(each, 16) for each in line.partition(" ")[0].split("-"))
        regions.append((begin, end, line.split(" ")[1]))
    return [
        hex(begin)
        for (begin, end, rights), (rest, last, rest_rights) in pairwise(regions)
        if begin % _HEAP_BYTES == 0 and rights == "rw-p" and rest_rights == "---p" and end == rest
        and last == begin + _HEAP_BYTES
    ]  # fmt: skip


@pytest.mark.parametrize("shape", ["engine", "fronts"])
def test_the_threads_of_a_server_share_one_arena(shape: str) -> None:
    with Subject(shape) as subject:
        in_loop(warm_up(subject))
        found = {name: arenas_of_threads(pid) for name, pid in subject.processes().items()}
    assert len(found) > 1 and not any(found.values()), found
