"""The part of the torture that `make test` has: a round against a server of each shape, and servers with defects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from test_torture_cosyvoice2 import COSYVOICE2_DEFECTS
from test_torture_doors import DOOR_DEFECTS, NAME_DEFECTS

from torture import violations as v
from torture.defects import DEFECTS
from torture.histories import (
    CARRIERS,
    HTTP_DOORS,
    SHAPES,
    CallHistory,
    Fault,
    Round,
    Step,
    make_call,
    make_round,
    only,
)
from torture.memory import per_call_interval
from torture.recovery import measure
from torture.round_run import warm_up
from torture.runner import Outcome, Runner, in_loop
from torture.sandbox import what_is_allowed
from torture.soak import soak_server
from torture.subject import Subject

pytestmark = pytest.mark.alone

DISTURBANCES = ("blocked", "raise_in_a_callback", "wrong_exit_status", "another_close_code")
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
    whole = make_round(5, 1, shape=shape, n_calls=16, seconds=3, most_steps=5)
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


def native(start_ms: int, *steps: Step) -> CallHistory:
    options = {"codec": "ulaw", "rate": 8000, "ptime_ms": 20, "audio": "binary", "lead_ms": 200}
    return CallHistory("native", start_ms, start_ms, steps, "close", options)


def test_a_step_of_the_clock_is_found_where_calls_depend_on_it() -> None:
    """The first step of a round is forward."""
    calls = (native(0, Step(0, "say", 5)), native(400, Step(0, "say", 5)))
    found = tried([Round(4, 1, "one", calls, (Fault(600, "step_clock"),))], "clock_of_the_day").tally.violations
    assert DEFECTS["clock_of_the_day"].check in {each.check for each in found}


def test_an_incomplete_answer_and_a_name_that_stays_taken_are_found() -> None:
    calls = of_doors(7, ("openai", "tts_stream", "native", "twilio"), comes_back=True)
    names = ("http_leaves_out", "name_stays_taken")
    found = tried([Round(7, 1, "one", tuple(calls), ())], *names).tally.violations
    assert {DEFECTS[name].check for name in names} <= {each.check for each in found}


def test_a_recording_with_other_samples_and_one_with_a_wrong_header_are_found() -> None:
    """Each call is recorded from its begin, and says a turn that nothing interrupts."""
    steps = (Step(0, "record", 2), Step(400, "say", 3), Step(0, "say", 2))
    calls = [
        replace(call, steps=steps, end="close") for call in of_doors(7, ("twilio", "vonage", "genesys"), late="fixed")
    ]
    whole = [Round(7, n, "one", tuple(calls), ()) for n in range(2)]
    healthy = tried(whole[:1]).tally
    assert healthy.violations == []
    assert healthy.counts["recordings"] == len(calls) and healthy.n_checked[v.RECORDINGS] > 4 * len(calls)
    for name in ("recording_too_loud", "recording_header"):
        found = tried(whole[1:], name).tally.violations
        assert {each.check for each in found} == {DEFECTS[name].check}, found


def test_a_callers_voice_interrupts_on_real_sockets() -> None:
    steps = (Step(0, "listen"), Step(0, "say", 5), Step(900, "voice", 4), Step(2000, "say", 1))
    doors = ("exotel", "vonage", "genesys", "jambonz", "freeswitch", "native media")
    calls = [replace(call, steps=steps, end="close") for call in of_doors(7, doors, late="fixed", delay_ms=0)]
    tally = tried([Round(7, 1, "one", tuple(calls), ())]).tally
    assert tally.violations == []
    assert tally.counts["caller speaks"] == len(doors) and tally.counts["cleared by barge_in"] > len(doors) - 2


def test_a_lookup_that_stops_all_calls_is_found() -> None:
    whole = Round(7, 1, "names", tuple(of_doors(7, ("no_bot", "native", "no_bot"))), ())
    found = tried([whole], "names_block").tally.violations
    if "yes" not in what_is_allowed()["a DNS server that does not answer"]:
        pytest.skip("names fail at once on this machine")
    assert DEFECTS["names_block"].check in {each.check for each in found}


def test_a_leak_of_the_bridge_is_found() -> None:
    calls = tuple(replace(native(100 * n, Step(0, "say", 1)), door="bridge") for n in range(6))
    found = tried([Round(7, 1, "bridge", calls, ())], "bridge_leaks").tally.violations
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


def test_leaks_of_a_server_and_what_disturbs_others_or_the_operator_are_found() -> None:
    """They show at each clear and at the end, so calls that clear often show all of them on one server."""
    calls = tuple(native(300 * n, *[Step(0, "say", 2), Step(100, "clear")] * 4) for n in range(4))
    found = tried([Round(2, n, "one", calls, ()) for n in range(3)], *LEAKS, *DISTURBANCES).tally.violations
    told = " ".join(each.what for each in found if each.check == v.LEAKS)
    for what in ("tasks", "threads", "descriptors", "temporary files", "has grown"):
        assert what in told, f"{what} is missing in {told}"
    assert {DEFECTS[name].check for name in DISTURBANCES} <= {each.check for each in found}


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


def test_objects_that_calls_leave_behind_are_found() -> None:
    _, (server,) = soak_server("one", 6, 60, lambda number: number < 3, ("leak_session",), are_short=True)
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


def test_all_defects_are_tried_here_or_on_the_virtual_clock() -> None:
    others = {*DISTURBANCES, *LEAKS} | {
        "leak_session", "clock_of_the_day", "http_leaves_out", "name_stays_taken", "names_block", "bridge_leaks",
        "bridge_joins_late", "ends_other_calls", "finds_engine_late", "recording_too_loud", "recording_header",
        "leak_slowly", *DOOR_DEFECTS, *NAME_DEFECTS, *COSYVOICE2_DEFECTS,
    }  # fmt: skip
    assert {name for name, defect in DEFECTS.items() if not defect.is_virtual} == others
