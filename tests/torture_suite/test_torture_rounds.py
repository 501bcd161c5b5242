"""The part of the torture that `make test` has: a round against a server of each shape, and servers with defects."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from torture import violations as v
from torture.defects import DEFECTS
from torture.histories import SHAPES, Fault, Round, make_round, only
from torture.runner import Outcome, Runner

pytestmark = pytest.mark.alone

LEAKS = ("leak_task", "leak_thread", "leak_descriptor", "leak_file", "leak_memory")
FAULTS = {
    "one": (Fault(1500, "stop_server", 300),),
    "fronts": (Fault(1500, "stop_front", 300), Fault(3000, "kill_front", 1)),
    "engine": (Fault(1500, "stop_engine", 300), Fault(3000, "kill_engine")),
    "bridge": (Fault(1500, "stop_bridge", 300), Fault(3000, "kill_bridge")),
    "small": (Fault(1500, "use_up_descriptors", 300), Fault(3000, "fill_disk")),
}


def tried(rounds: Iterable[Round], *defects: str) -> Outcome:
    return Runner(defects=defects, say=lambda line: print(line)).run(rounds, time.monotonic() + 60)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_with_faults_breaks_no_promise(shape: str) -> None:
    whole = make_round(1, 1, shape=shape, n_calls=16, seconds=4, most_steps=5)
    outcome = tried([only(whole, list(whole.calls), list(FAULTS[shape]))])
    assert outcome.tally.violations == []
    counts = outcome.tally.counts
    assert counts["rounds"] == 1 and counts["turns"] > 15 and counts["neighbours' frames"] > 100
    assert {name for name in counts if name.startswith("fault ")} == {f"fault {f.kind}" for f in FAULTS[shape]}


def test_leaks_of_a_server_are_found() -> None:
    rounds = [make_round(2, n, shape="one", n_calls=8, seconds=1, most_steps=5) for n in range(3)]
    found = tried([only(whole, list(whole.calls), []) for whole in rounds], *LEAKS).tally.violations
    told = " ".join(each.what for each in found if each.check == v.LEAKS)
    for what in ("tasks", "threads", "descriptors", "temporary files", "has grown"):
        assert what in told, f"{what} is missing in {told}"


def test_what_disturbs_others_or_the_operator_is_found() -> None:
    names = ("blocked", "raise_in_a_callback", "wrong_exit_status", "another_close_code")
    whole = make_round(3, 1, shape="one", n_calls=12, seconds=3, most_steps=5)
    found = tried([only(whole, list(whole.calls), [])], *names).tally.violations
    assert {DEFECTS[name].check for name in names} <= {each.check for each in found}


def test_all_defects_are_tried_here_or_on_the_virtual_clock() -> None:
    others = {"blocked", "raise_in_a_callback", "wrong_exit_status", "another_close_code", *LEAKS}
    assert {name for name, defect in DEFECTS.items() if not defect.is_virtual} == others
