"""The checks of the doors of other vendors' protocols, and of HTTP requests that join a call, find the defects of real
servers. A test looks for what its defect does, and other findings do not matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_torture_doors import JOINED_OPTIONS, of_requests, of_vendors, tried

from torture.defects import DEFECTS
from torture.histories import JOINED, VENDORS, CallHistory, Fault, Step, make_call
from torture.sandbox import what_is_allowed

pytestmark = [pytest.mark.timed, pytest.mark.slow, pytest.mark.thorough]  # `slow`: it takes long and begins early

DOOR_DEFECTS = sorted(name for name, defect in DEFECTS.items() if defect.door in (*VENDORS, JOINED))
NAME_DEFECTS = ("engine_names_block", "error_kept_back")
WITHOUT_TELEPHONE = CallHistory(JOINED, 9, 0, (), "close", {**JOINED_OPTIONS, "no_media": True})
"""A healthy server waits for its telephone for 10 s, so only the server with defects gets it here."""


def test_each_defect_of_these_doors_is_found_through_its_door() -> None:
    calls = [*of_vendors(), *of_requests(), WITHOUT_TELEPHONE]
    found = {(each.check, calls[each.call].door) for each in tried("one", calls, *DOOR_DEFECTS).tally.violations
             if each.call is not None}  # fmt: skip
    missed = [name for name in DOOR_DEFECTS if (DEFECTS[name].check, DEFECTS[name].door) not in found]
    assert not missed, found


@pytest.mark.alone  # names are lost for eleven seconds, in which all calls have to begin
def test_engines_that_are_not_found_are_told_late_or_stop_other_calls() -> None:
    if "yes" not in what_is_allowed()["a DNS server that does not answer"]:
        pytest.skip("this user may not have a DNS server of its own")
    calls = [
        replace(
            make_call(n, ("far_engine",), start_ms=400 * n), steps=(Step(0, "say", 2),), end="close",
            options={"lang": "de"},
        )
        for n in range(4)
    ]  # fmt: skip
    found = tried("names", calls, *NAME_DEFECTS, faults=[Fault(0, "lose_names", 550)]).tally.violations
    assert {DEFECTS[name].check for name in NAME_DEFECTS} <= {each.check for each in found}
