"""The checks of the torture find the defects of real servers.

Nothing here judges that a server is in time: a test looks for what its defect does, and other findings do not matter.
So these tests may run beside others, unlike those of `test_torture_rounds.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_torture_cosyvoice2 import COSYVOICE2_DEFECTS
from test_torture_door_defects import DOOR_DEFECTS, NAME_DEFECTS
from torture_calls import native, of_doors, tried

from torture import violations as v
from torture.defects import DEFECTS
from torture.histories import Fault, Round, Step
from torture.recovery import measure
from torture.sandbox import what_is_allowed

pytestmark = [pytest.mark.timed, pytest.mark.slow, pytest.mark.thorough]  # `slow`: it takes long and begins early

DISTURBANCES = ("blocked", "raise_in_a_callback", "wrong_exit_status", "another_close_code")
LEAKS = ("leak_task", "leak_thread", "leak_descriptor", "leak_file", "leak_memory")


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


def test_all_defects_are_tried_here_or_on_the_virtual_clock() -> None:
    others = {*DISTURBANCES, *LEAKS} | {
        "leak_session", "clock_of_the_day", "http_leaves_out", "name_stays_taken", "names_block", "bridge_leaks",
        "bridge_joins_late", "ends_other_calls", "finds_engine_late", "recording_too_loud", "recording_header",
        "leak_slowly", *DOOR_DEFECTS, *NAME_DEFECTS, *COSYVOICE2_DEFECTS,
    }  # fmt: skip
    assert {name for name, defect in DEFECTS.items() if not defect.is_virtual} == others
