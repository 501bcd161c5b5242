"""What several processes of a server do, as one: their calls in the order in which they began, and their engines."""

from __future__ import annotations

from typing import Any

import pytest

from telephony_tts.transport.activity import added
from telephony_tts.transport.call_address import call_of_http


def process(ages_ms: dict[str, int], load: float, queued: int, running: int) -> dict[str, Any]:
    calls = [{"call": call, "age_ms": age_ms} for call, age_ms in ages_ms.items()]
    return {"calls": calls, "engines": {"fake": {"load": load, "queued": queued, "running": running}}}


ONE, TWO = process({"a": 100, "b": 900}, 0.25, 1, 2), process({"c": 500}, 0.75, 3, 4)


def test_the_calls_of_all_are_listed_the_oldest_first() -> None:
    assert [each["call"] for each in added(ONE, [TWO], frozenset())["calls"]] == ["b", "c", "a"]


def test_engines_of_each_process_add_their_work_and_a_shared_one_counts_once() -> None:
    assert added(ONE, [TWO], frozenset())["engines"] == {"fake": {"load": 0.75, "queued": 4, "running": 6}}
    assert added(TWO, [ONE], frozenset())["engines"] == {"fake": {"load": 0.75, "queued": 4, "running": 6}}
    assert added(ONE, [TWO], frozenset({"fake"}))["engines"] == {"fake": {"load": 0.75, "queued": 3, "running": 4}}


def test_a_process_that_does_not_answer_is_counted_and_nothing_of_the_others_is_missing() -> None:
    told = added(ONE, [None, TWO, None], frozenset())
    assert told["n_silent"] == 2 and len(told["calls"]) == 3
    assert added(ONE, [], frozenset()) == {**ONE, "calls": ONE["calls"][::-1], "n_silent": 0}


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("/console/api/calls/CA1", "CA1"),
        ("/console/api/calls/CA1/sound", "CA1"),
        ("/console/api/calls/CA%2F1/sound?x=1", "CA/1"),
        ("/console/api/calls/%3Cscript%3E", "<script>"),
        ("/console/api/calls", None),
        ("/console/api/calls/", None),
        ("/console/api/calls/CA1/other", None),
        ("/console/api/recordings/CA1", None),
    ],
)
def test_a_call_that_is_heard_or_ended_in_the_console_is_named_in_the_address(target: str, call: str | None) -> None:
    assert call_of_http(target) == call
