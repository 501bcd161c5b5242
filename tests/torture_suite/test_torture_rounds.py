"""The part of the torture that `make test` has: a round against a server of each shape, and servers with defects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from test_torture_cosyvoice2 import COSYVOICE2_DEFECTS
from test_torture_doors import DOOR_DEFECTS, NAME_DEFECTS

from torture import violations as v
from torture.defects import DEFECTS
from torture.histories import CARRIERS, HTTP_DOORS, SHAPES, CallHistory, Fault, Round, make_call, make_round, only
from torture.recovery import measure
from torture.runner import Outcome, Runner
from torture.sandbox import what_is_allowed

pytestmark = pytest.mark.alone

LEAKS = ("leak_task", "leak_thread", "leak_descriptor", "leak_file", "leak_memory")
FAULTS = {
    "one": (Fault(1000, "step_clock"), Fault(1500, "stop_server", 300), Fault(2500, "squeeze_memory", 300)),
    "fronts": (Fault(1500, "stop_front", 300), Fault(3000, "kill_front", 1)),
    "engine": (Fault(1500, "stop_engine", 300), Fault(3000, "kill_engine")),
    "bridge": (Fault(1500, "stop_bridge", 300), Fault(3000, "kill_bridge")),
    "small": (Fault(1500, "use_up_descriptors", 300), Fault(3000, "fill_disk")),
    "names": (Fault(1500, "stop_server", 300), Fault(2500, "step_clock"), Fault(3000, "lose_names", 100)),
}
DOORS = (*CARRIERS, *HTTP_DOORS)


def tried(rounds: Iterable[Round], *defects: str) -> Outcome:
    return Runner(defects=defects, say=lambda line: print(line)).run(rounds, time.monotonic() + 60)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_with_faults_breaks_no_promise(shape: str) -> None:
    whole = make_round(1, 1, shape=shape, n_calls=16, seconds=4, most_steps=5)
    outcome = tried([only(whole, list(whole.calls), list(FAULTS[shape]))])
    assert outcome.tally.violations == []
    counts = outcome.tally.counts
    assert counts["rounds"] == 1 and counts["turns"] > 15 and counts["neighbours' frames"] > 100
    done = {name.removesuffix(", not possible here") for name in counts if name.startswith("fault ")}
    assert done == {f"fault {f.kind}" for f in FAULTS[shape]}


def of_doors(seed: int, doors: Sequence[str], **options: object) -> list[CallHistory]:
    """A call through each of these doors."""
    calls = [make_call(seed + n, (door,), start_ms=150 * n, n_steps=6) for n, door in enumerate(doors)]
    return [replace(call, options={**call.options, **options}) if call.options else call for call in calls]


def test_calls_through_each_door_keep_their_promises_and_come_back_under_their_names() -> None:
    """A client that was cut off connects again at once, and is let in as soon as its end was noticed."""
    calls = of_doors(7, (*DOORS, "native", "native", *DOORS), comes_back=True)
    tally = tried([Round(7, 1, "one", tuple(calls), ())]).tally
    assert tally.violations == []
    n_back = 2 * len(CARRIERS) + 2
    assert tally.counts["calls that came back"] == n_back and tally.counts["calls"] == len(calls) + n_back
    assert tally.n_checked[v.DONE] > len(HTTP_DOORS) and not tally.counts["calls refused"]


def test_a_step_of_the_clock_is_found_where_calls_depend_on_it() -> None:
    whole = make_round(4, 1, shape="one", n_calls=12, seconds=3, most_steps=6)
    faults = [Fault(1500, "step_clock"), Fault(2500, "step_clock")]
    found = tried([only(whole, list(whole.calls), faults)], "clock_of_the_day").tally.violations
    assert DEFECTS["clock_of_the_day"].check in {each.check for each in found}


def test_an_incomplete_answer_and_a_name_that_stays_taken_are_found() -> None:
    calls = of_doors(7, ("openai", "tts_stream", "native", "twilio"), comes_back=True)
    names = ("http_leaves_out", "name_stays_taken")
    found = tried([Round(7, 1, "one", tuple(calls), ())], *names).tally.violations
    assert {DEFECTS[name].check for name in names} <= {each.check for each in found}


def test_a_lookup_that_stops_all_calls_is_found() -> None:
    whole = Round(7, 1, "names", tuple(of_doors(7, ("no_bot", "native", "no_bot"))), ())
    found = tried([whole], "names_block").tally.violations
    if "yes" not in what_is_allowed()["a DNS server that does not answer"]:
        pytest.skip("names fail at once on this machine")
    assert DEFECTS["names_block"].check in {each.check for each in found}


def test_a_leak_of_the_bridge_is_found() -> None:
    whole = Round(7, 1, "bridge", tuple(of_doors(7, ("bridge",) * 6)), ())
    found = tried([whole], "bridge_leaks").tally.violations
    assert any(each.check == v.LEAKS and "descriptors of the bridge" in each.what for each in found), found


@pytest.mark.parametrize(("victim", "on_it"), [("engine", 0), ("bridge", 3)])
def test_speech_is_back_soon_after_a_kill_and_only_calls_of_the_killed_process_are_lost(
    victim: str, on_it: int
) -> None:
    (found,) = measure(victim, 1)
    assert found.holds, found
    assert (found.calls, found.on_it, found.lost) == (6, on_it, on_it)


@pytest.mark.parametrize(
    ("victim", "defect"),
    [("engine", "finds_engine_late"), ("bridge", "bridge_joins_late"), ("bridge", "ends_other_calls")],
)
def test_a_bad_recovery_is_found(victim: str, defect: str) -> None:
    assert DEFECTS[defect].check == v.RECOVERY
    (found,) = measure(victim, 1, defects=(defect,))
    assert not found.holds, found


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
    others = {"blocked", "raise_in_a_callback", "wrong_exit_status", "another_close_code", *LEAKS} | {
        "clock_of_the_day", "http_leaves_out", "name_stays_taken", "names_block", "bridge_leaks", "bridge_joins_late",
        "ends_other_calls", "finds_engine_late", *DOOR_DEFECTS, *NAME_DEFECTS, *COSYVOICE2_DEFECTS,
    }  # fmt: skip
    assert {name for name, defect in DEFECTS.items() if not defect.is_virtual} == others
