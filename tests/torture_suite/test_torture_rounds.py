"""The part of the torture that `make test` has: a round against a healthy server of each shape.

These tests judge that nothing is late, so nothing runs beside them. `test_torture_defects.py` has servers with defects.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from torture_calls import DOORS, of_doors, tried

from torture import violations as v
from torture.defects import DEFECTS
from torture.histories import CARRIERS, HTTP_DOORS, SHAPES, Fault, Round, Step, make_round, only
from torture.recovery import measure

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

FAULTS = {
    "one": (Fault(1000, "step_clock"), Fault(1500, "stop_server", 300), Fault(2500, "squeeze_memory", 300)),
    "fronts": (Fault(1500, "stop_front", 300), Fault(3000, "kill_front", 1)),
    "engine": (Fault(1500, "stop_engine", 300), Fault(3000, "kill_engine")),
    "bridge": (Fault(1500, "stop_bridge", 300), Fault(3000, "kill_bridge")),
    "small": (Fault(1500, "use_up_descriptors", 300), Fault(3000, "fill_disk")),
    "names": (Fault(1500, "stop_server", 300), Fault(2500, "step_clock"), Fault(3000, "lose_names", 100)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_with_faults_breaks_no_promise(shape: str) -> None:
    whole = make_round(5, 1, shape=shape, n_calls=16, seconds=3, most_steps=5)
    outcome = tried([only(whole, list(whole.calls), list(FAULTS[shape]))])
    assert outcome.tally.violations == []
    counts = outcome.tally.counts
    assert counts["rounds"] == 1 and counts["turns"] > 15 and counts["neighbours' frames"] > 100
    done = {name.removesuffix(", not possible here") for name in counts if name.startswith("fault ")}
    assert done == {f"fault {f.kind}" for f in FAULTS[shape]}


def test_calls_through_each_door_keep_their_promises_and_come_back_under_their_names() -> None:
    """A client that was cut off connects again at once, and is let in as soon as its end was noticed."""
    calls = of_doors(7, (*DOORS, "native", "native", *DOORS), comes_back=True)
    tally = tried([Round(7, 1, "one", tuple(calls), ())]).tally
    assert tally.violations == []
    n_back = 2 * len(CARRIERS) + 2
    assert tally.counts["calls that came back"] == n_back and tally.counts["calls"] == len(calls) + n_back
    assert tally.n_checked[v.DONE] > len(HTTP_DOORS) and not tally.counts["calls refused"]


def test_a_recording_with_other_samples_and_one_with_a_wrong_header_are_found() -> None:
    """Each call is recorded from its begin, and says a turn that nothing interrupts."""
    steps = (Step(0, "record", 2), Step(400, "say", 3), Step(0, "say", 2))
    streams = of_doors(7, ("twilio", "vonage", "genesys"), late="fixed")
    files = of_doors(8, ("freeswitch", "freeswitch"), late="fixed", format=("pcm", 8000), delay_ms=80)
    calls = [replace(call, steps=steps, end="close") for call in (*streams, *files)]
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


@pytest.mark.parametrize(("victim", "on_it"), [("engine", 0), ("bridge", 3)])
def test_speech_is_back_soon_after_a_kill_and_only_calls_of_the_killed_process_are_lost(
    victim: str, on_it: int
) -> None:
    (found,) = measure(victim, 1)
    assert found.holds, found
    assert (found.calls, found.on_it, found.lost) == (6, on_it, on_it)
