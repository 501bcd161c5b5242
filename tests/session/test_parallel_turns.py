"""A peer that may stop to play a turn without telling us: no turn waits for the pace of another."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

LONG = "one two three four five six seven eight nine ten. " * 8
"""19.6 s of speech at 50 ms per character."""


def world(*, parallel: bool = True) -> World:
    settings = SessionSettings(
        first_clause_chars=0, separate_turns=True, parallel_turns=parallel, lead_ms=1000, ahead_ms=2000
    )
    return World(settings)


def sent_ms(one: World, number: int) -> float:
    return 20.0 * sum(heard == number for _, heard, _ in one.frames)


@pytest.mark.parametrize("parallel", [True, False])
def test_the_next_turn_is_heard_at_once(parallel: bool) -> None:
    one = world(parallel=parallel)
    one.say(LONG, "a")
    one.run(500)
    assert sent_ms(one, 1) == pytest.approx(1500, abs=60)
    one.say("Next.", "b")
    one.run(100)
    assert (sent_ms(one, 2) > 0) is parallel
    if parallel:
        assert sent_ms(one, 1) == pytest.approx(19_600, abs=60), "the turn before was not sent to its end"
        assert [event.turn for event in one.of(m.TurnSent)] == ["a", "b"]
        assert [heard for _, heard, _ in one.frames if heard] == sorted(heard for _, heard, _ in one.frames if heard)


def test_a_turn_is_paced_while_none_waits_behind_it() -> None:
    one = world()
    one.say("One two three.", "a")
    one.say(LONG, "b")
    one.run(100)
    assert sent_ms(one, 2) == pytest.approx(1100, abs=60)
    one.run(1000)
    assert sent_ms(one, 2) == pytest.approx(2100, abs=60)


def test_a_turn_that_waits_for_text_is_not_hurried_and_holds_back_the_next() -> None:
    """The text that it has was not all spoken, and more may come."""
    one = world()
    one.send(m.Text(LONG, "a"))
    one.run(100)
    one.say("Next.", "b")
    one.run(100)
    assert sent_ms(one, 2) == 0
    one.send(m.End("a"))
    one.run(100)
    assert sent_ms(one, 2) > 0


def test_a_hurried_turn_that_is_cleared_is_sent_no_further() -> None:
    one = world()
    one.first_audio_ms = 50
    one.chunk_interval_ms = 20
    one.say(LONG, "a")
    one.run(200)
    one.say("Next.", "b")
    one.run(40)
    n_before = len(one.frames)
    one.send(m.Clear("a"))
    one.run(2000)
    assert {heard for _, heard, _ in one.frames[n_before:]} <= {0, 2}
    assert [event.turn for event in one.of(m.Done)] == ["b"]
