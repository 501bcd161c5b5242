"""Calls to real servers leave no objects behind. No clock is judged, so this runs in parallel."""

from __future__ import annotations

import pytest

from torture import violations as v
from torture.defects import DEFECTS
from torture.soak import soak_server

pytestmark = pytest.mark.slow


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
