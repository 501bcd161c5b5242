"""The figures of turns for which they are known."""

from __future__ import annotations

import numpy as np
import pytest

from telephony_tts.bench.audible import audible_sample
from telephony_tts.bench.measures import Listener, TurnRecord, errors, figures, holds, percentile, underruns_ms

MS = 1_000_000


def turn(asked_ms: int, *arrivals: tuple[int, int], ended_ms: int | None = None, **also: object) -> TurnRecord:
    """A turn with arrivals (when, length) in ms. It ends with the last arrival unless `ended_ms` says otherwise."""
    made = TurnRecord(asked_ms * MS, [(at * MS, sound * MS) for at, sound in arrivals])
    made.ended_ns = (ended_ms if ended_ms is not None else arrivals[-1][0]) * MS
    for name, value in also.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("arrivals", "silences"),
    [
        ([(50, 100)], []),
        ([(50, 100), (150, 100)], []),  # at the end of the chunk before: still in time
        ([(50, 100), (151, 100)], [1]),
        ([(50, 100), (60, 100), (250, 100)], []),  # audio that came early fills the time
        ([(50, 100), (60, 100), (300, 100), (390, 10), (500, 10)], [50, 90]),  # a late chunk delays the next ones
        ([], []),
    ],
)
def test_a_listener_hears_silence_wherever_the_next_sound_is_late(
    arrivals: list[tuple[int, int]], silences: list[float]
) -> None:
    assert underruns_ms(TurnRecord(0, [(at * MS, sound * MS) for at, sound in arrivals])) == silences


def test_a_listener_hears_chunks_one_after_the_other() -> None:
    listener = Listener()
    assert listener.until_ns is None
    for at, sound, heard, until in ((5, 100, 5, 105), (6, 20, 105, 125), (200, 10, 200, 210)):
        assert listener.arrive(at, sound) == heard
        assert listener.until_ns == until


@pytest.mark.parametrize(
    ("n", "share", "wanted"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (20, 0.95, 19), (21, 0.95, 20), (100, 0.99, 99), (101, 0.99, 100)],
)
def test_a_percentile_is_by_nearest_rank(n: int, share: float, wanted: int) -> None:
    assert percentile(list(range(n, 0, -1)), share) == wanted


def test_the_percentile_of_no_values_is_none() -> None:
    assert percentile([], 0.5) is None


def test_the_figures_of_a_run() -> None:
    turns = [
        turn(0, (100, 400), (300, 600)),
        turn(0, (200, 500), (800, 500)),  # 100 ms of silence: at the limit
        turn(1000, (1300, 500), (1901, 500)),  # 101 ms: above the limit
        turn(1000, (1400, 1000), ended_ms=1500, cancel_ns=1497 * MS),
    ]
    found = figures(turns)
    assert [found[f"first_audio_ms_p{n}"] for n in (50, 95, 99)] == [200, 400, 400]
    assert found["rtf"] == pytest.approx((300 + 800 + 901) / 3000, abs=1e-4)
    assert found["c100"] == 0.75
    assert (found["underruns"], found["underrun_ms_max"]) == (2, 101)
    assert (found["first_gap_ms_p50"], found["first_gap_ms_max"]) == (0, 101)
    assert (found["turns"], found["failed"], found["cancelled"]) == (4, 0, 1)
    assert (found["cancel_ms_p50"], found["cancel_ms_p95"]) == (3, 3)
    assert (found["audio_s"], found["wall_s"]) == (4.0, 1.901)
    assert found["audio_seconds_per_second"] == pytest.approx(4 / 1.901, abs=1e-4)


def test_the_first_gap_of_a_turn_is_its_first_silence_and_not_its_longest() -> None:
    short_first = turn(0, (10, 100), (130, 100), (530, 100))  # 20 ms, then 300
    smooth, unheard = turn(0, (10, 100), (110, 100)), turn(0, ended_ms=50, error="no")
    found = figures([short_first, short_first, smooth, unheard])
    assert (found["first_gap_ms_p50"], found["first_gap_ms_max"], found["underrun_ms_max"]) == (20, 20, 300)
    assert figures([smooth, smooth, short_first])["first_gap_ms_p50"] == 0


def test_a_failed_turn_counts_against_c100_and_not_for_the_rtf() -> None:
    good = turn(0, (10, 100), (20, 100))
    broken = turn(0, (500, 100), ended_ms=900, error="no")
    silent = turn(0, ended_ms=50, error="no")
    found = figures([good, broken, silent])
    assert found["c100"] == pytest.approx(1 / 3, abs=1e-4) and found["failed"] == 2
    assert found["rtf"] == 0.1
    assert found["first_audio_ms_p95"] == 500
    assert errors([good, broken, silent]) == ["no"]


def test_turns_active_at_the_end_of_a_run_are_not_failures() -> None:
    heard, unheard = TurnRecord(0, [(10 * MS, 100 * MS)]), TurnRecord(0)
    found = figures([turn(0, (20, 100)), heard, unheard])
    assert (found["turns"], found["failed"], found["cancelled"], found["c100"]) == (3, 0, 0, 1.0)
    assert found["rtf"] == 0.2, "only the whole turn counts"


def test_without_audio_the_figures_are_none_and_not_zero() -> None:
    found = figures([turn(0, ended_ms=5, error="no")])
    assert found["c100"] == 0.0 and found["audio_s"] == 0.0
    for name in ("first_audio_ms_p50", "rtf", "first_gap_ms_p50", "first_gap_ms_max", "cancel_ms_p50"):
        assert found[name] is None
    assert found["underrun_ms_max"] is None
    assert figures([])["c100"] is None


def test_the_interquartile_range_is_that_of_the_middle_half() -> None:
    turns = [turn(0, (ms, 100), audible_ns=(ms + 5) * MS) for ms in (10, 20, 30, 40, 50, 60, 70, 900)]
    found = figures(turns)
    assert found["first_audio_ms_iqr"] == 60 - 20 and found["audible_ms_iqr"] == 40
    assert [found[f"audible_ms_p{n}"] for n in (50, 95, 99)] == [45, 905, 905]


@pytest.mark.parametrize("length", [0, 1, 119, 2000])
def test_quiet_audio_is_not_audible(length: int) -> None:
    assert audible_sample(np.full(length, 150, np.int16), 24_000) is None


@pytest.mark.parametrize(("begins", "found"), [(0, 0), (1200, 1200), (1290, 1200), (1990, 1920)])
def test_audio_is_audible_from_its_first_loud_5_ms(begins: int, found: int) -> None:
    pcm = np.zeros(2000, np.int16)
    pcm[begins:] = 2000
    assert audible_sample(pcm, 24_000) == found


def test_a_click_is_not_speech() -> None:
    pcm = np.zeros(2000, np.int16)
    pcm[700] = 1500
    assert audible_sample(pcm, 24_000) is None


def test_a_load_holds_only_if_nothing_at_all_went_wrong() -> None:
    good = turn(0, (10, 100), (105, 100), audible_ns=10 * MS)
    assert holds(figures([good, good]))
    gap = turn(0, (10, 100), (111, 100), audible_ns=10 * MS)
    for bad in (gap, turn(0, (10, 100)), turn(0, ended_ms=5, error="no")):
        assert not holds(figures([good, bad])), "a gap of 1 ms, a silent turn, a failed one"
    assert not holds(figures([])) and not holds({**figures([good]), "interrupted": True})
