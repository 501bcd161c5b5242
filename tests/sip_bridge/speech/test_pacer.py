"""One schedule: a late frame does not delay later ones, and a stall is not followed by a burst."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.speech.pacer import FRAME_NS, MAX_AT_ONCE, Pacer

MS = 1_000_000


def test_the_first_frame_is_due_at_once_and_the_next_20_ms_later() -> None:
    pacer = Pacer(5 * MS)
    assert pacer.due(5 * MS) == (1, 0)
    assert pacer.due(25 * MS - 1) == (0, 0)
    assert pacer.due(25 * MS) == (1, 0)


def test_a_late_frame_does_not_move_the_others() -> None:
    pacer = Pacer(0)
    pacer.due(0)
    assert pacer.due(33 * MS) == (1, 13 * MS)
    assert pacer.next_ns == 40 * MS


def test_an_hour_of_late_timers_does_not_drift() -> None:
    pacer, now_ns, n = Pacer(0), 0, 0
    while n < 180_000:
        now_ns = pacer.next_ns + (n * 7919) % (19 * MS)
        n += pacer.due(now_ns)[0]
    assert pacer.next_ns == 180_000 * 20 * MS


def test_after_a_stall_a_few_frames_go_at_once_and_the_schedule_moves_by_whole_frames() -> None:
    pacer = Pacer(0)
    pacer.due(0)
    assert pacer.due(1005 * MS) == (MAX_AT_ONCE, 985 * MS)
    assert pacer.next_ns == 1020 * MS
    assert pacer.due(1006 * MS) == (0, 0)


@given(st.lists(st.integers(0, 200 * MS), max_size=60))
def test_never_more_than_the_clock_allows(waits_ns: list[int]) -> None:
    pacer, now_ns, n_written = Pacer(0), 0, 0
    for wait_ns in waits_ns:
        now_ns += wait_ns
        n, late_ns = pacer.due(now_ns)
        n_written += n
        assert 0 <= n <= MAX_AT_ONCE and late_ns >= 0
        assert n_written <= now_ns // FRAME_NS + 1
        assert now_ns < pacer.next_ns <= now_ns + FRAME_NS and pacer.next_ns % FRAME_NS == 0
