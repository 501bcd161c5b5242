"""The states of a mark: which follow which, and the order of marks with the same state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.session.marks import NO_SAMPLE, MarkState, TurnMarks


def test_the_states_of_a_mark_from_its_text_to_the_peers_report() -> None:
    marks = TurnMarks()
    marks.ask("m", 5)
    mark = marks.first(MarkState.ASKED)
    assert mark is not None and marks.next_sample == NO_SAMPLE
    marks.place(mark, 800)
    assert marks.next_sample == 800 and marks.sent_as("1.1") is None
    marks.send(mark, "1.1")
    assert marks.next_sample == NO_SAMPLE and marks.sent_as("1.1") is mark
    marks.end(mark, MarkState.PLAYED)
    assert not len(marks) and marks.sent_as("1.1") is None


@pytest.mark.parametrize("end", [MarkState.PLAYED, MarkState.CLEARED])
def test_a_mark_ends_once(end: MarkState) -> None:
    marks = TurnMarks()
    marks.ask("m", 0)
    (mark,) = marks
    marks.end(mark, end)
    for state in (MarkState.PLAYED, MarkState.CLEARED):
        with pytest.raises(AssertionError):
            marks.end(mark, state)
    with pytest.raises(AssertionError):
        marks.place(mark, 0)


def test_marks_after_lost_frames_are_sent_again() -> None:
    marks = TurnMarks()
    for n, sample in enumerate((160, 320, 480)):
        marks.ask(f"m{n}", n)
        mark = marks.first(MarkState.ASKED)
        assert mark is not None
        marks.place(mark, sample)
        marks.send(mark, f"1.{n}")
    marks.take_back(320)
    assert [mark.name for mark in marks.in_state(MarkState.SENT)] == ["m0", "m1"]
    assert [mark.name for mark in marks.in_state(MarkState.PLACED)] == ["m2"] and marks.next_sample == 480


def test_if_the_peer_lacks_a_mark_ours_ends_and_the_bots_waits_for_the_clock() -> None:
    marks = TurnMarks()
    marks.add_ours(160)
    marks.ask("m", 3)
    mark = marks.first(MarkState.ASKED)
    assert mark is not None
    marks.place(mark, 160)
    for placed in marks.in_state(MarkState.PLACED):
        marks.leave_to_clock(placed)
    assert [each.name for each in marks] == ["m"] and mark.state is MarkState.TIMED


def test_a_mark_that_is_taken_back_goes_behind_those_that_the_peer_still_has() -> None:
    """A mark behind a gap is sent before one of the text whose place becomes known later. Then the gap is closed."""
    marks = TurnMarks()
    marks.ask("b", 5)
    marks.add_ours(520)
    (mark,) = marks.in_state(MarkState.ASKED)
    marks.place(mark, 480)
    for _ in range(2):
        placed = marks.first(MarkState.PLACED)
        assert placed is not None
        marks.send(placed, "1")
    marks.take_back(490)
    again = marks.first(MarkState.PLACED)
    assert again is not None and again.sample == 520
    marks.send(again, "2")
    assert [each.sample for each in marks.in_state(MarkState.SENT)] == [480, 520]


ORDER = {MarkState.PLACED: 1, MarkState.ASKED: 2}
"""Sent marks and those left to the clock come first."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ours", "beginning", "place", "send", "time", "back", "again", "end"]),
        st.integers(0, 2000),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_happens_the_marks_are_sent_first_then_placed_then_asked_for(history: list[tuple[str, int]]) -> None:
    """`next_sample` is always that of the first placed mark, and marks that are asked for stay in the order of the
    text."""
    marks = TurnMarks()
    n_named = n_ended = 0
    ended: list[Any] = []
    for what, number in history:
        first = {state: marks.first(state) for state in MarkState}
        asked, placed, sent = (first[s] for s in (MarkState.ASKED, MarkState.PLACED, MarkState.SENT))
        if what == "ask":
            n_named += 1
            marks.ask(f"m{n_named}", number)
        elif what == "ours":
            marks.add_ours(number)
        elif what == "beginning":
            marks.add_beginning(number)
            assert marks.next_sample == number
        elif what == "place" and asked is not None:
            marks.place(asked, number)
        elif what == "send" and placed is not None:
            marks.send(placed, str(number))
        elif what == "time" and placed is not None:
            marks.leave_to_clock(placed)
        elif what == "back":
            marks.take_back(number)
        elif what == "again" and sent is None and first[MarkState.TIMED] is None:
            marks.begin_again()
        elif what == "end" and (mark := sent or placed or asked) is not None:
            n_ended += mark.name is not None
            ended.append(mark)
            marks.end(mark, MarkState.PLAYED)
        offsets = [mark.offset for mark in marks.in_state(MarkState.ASKED)]
        assert offsets == sorted(offsets)
        ranks = [ORDER.get(mark.state, 0) for mark in marks.live]
        assert ranks == sorted(ranks)
        waiting = marks.first(MarkState.PLACED)
        assert marks.next_sample == (NO_SAMPLE if waiting is None else waiting.sample)
        assert sum(mark.name is not None for mark in marks) == n_named - n_ended
        assert not any(mark in ended for mark in marks)
