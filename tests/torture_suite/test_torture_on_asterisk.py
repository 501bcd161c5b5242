"""The part of the torture with a real Asterisk and telephones."""

from __future__ import annotations

import time

import pytest

from torture.histories import ASTERISK, Fault, make_round, only
from torture.recovery import measure
from torture.runner import Runner

pytestmark = [pytest.mark.peer, pytest.mark.alone, pytest.mark.thorough]


def test_telephone_calls_keep_their_promises_while_asterisk_stops() -> None:
    whole = make_round(1, 1, shape=ASTERISK, n_calls=5, seconds=2, most_steps=5)
    faults = [Fault(2500, "stop_asterisk", 300), Fault(4500, "stop_bridge", 300)]
    outcome = Runner(say=print).run([only(whole, list(whole.calls), faults)], time.monotonic() + 60)
    assert outcome.tally.violations == []
    counts = outcome.tally.counts
    assert counts["calls"] == 5 and counts["frames"] > 100 and counts["turns"] >= 5
    assert counts["fault stop_asterisk"] == 1 and not counts["calls refused"]
    assert {call.options["extension"] for call in whole.calls} == {"700", "701"}


def test_a_new_telephone_call_speaks_soon_after_asterisk_was_killed() -> None:
    """The two telephone calls are lost with it, and their bots know at once. The others speak on."""
    (found,) = measure(ASTERISK, 1)
    assert found.holds, found
    assert (found.calls, found.on_it, found.lost) == (6, 2, 2)
    assert found.noticed_ms - found.stops_ms < 2000
