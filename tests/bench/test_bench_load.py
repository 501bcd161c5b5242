"""Simulated callers of the fake engine, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise

import numpy as np
import pytest
from virtual_loop import clock, run

from telephony_tts.bench.load import Callers, Load
from telephony_tts.bench.measures import TurnRecord, figures
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.fake.engine import FakeEngine

S = 1_000_000_000
TEXT = "a" * 50
"""3 s of speech: 60 ms a letter."""


def say(index: int, now_ns: int) -> Utterance:
    return Utterance(f"turn {index}", TEXT, seed=index, deadline_ns=now_ns)


def driven(engine: FakeEngine, load: Load) -> list[TurnRecord]:
    async def work() -> list[TurnRecord]:
        callers = Callers(engine, say, load, clock=clock)
        await callers.run()
        return callers.turns

    return run(work())


def seconds(turns: list[TurnRecord]) -> list[float]:
    return [round(turn.asked_ns / S, 3) for turn in turns]


def test_a_paced_caller_begins_its_next_turn_when_it_has_heard_the_one_before() -> None:
    turns = driven(FakeEngine(first_audio_ms=200, speed=10), Load(1, 3, 3.0))
    assert seconds(turns) == [0.0, 3.2, 6.4]
    assert all(turn.is_whole and turn.sound_ns == 3 * S for turn in turns)


def test_a_paced_caller_is_never_much_more_than_a_second_ahead() -> None:
    (turn,) = driven(FakeEngine(chunk_ms=500, speed=100), Load(1, 1, 3.0))
    heard_ns = turn.arrivals[0][0]
    came_ns = 0
    for at_ns, sound_ns in turn.arrivals:
        assert came_ns - (at_ns - heard_ns) <= S, "it took a chunk with more than a second left"
        came_ns += sound_ns
    # 0.5 s at once, two more while at most a second is left, then one whenever one was heard.
    assert [round((at_ns - heard_ns) / S, 3) for at_ns, _ in turn.arrivals] == [0, 0.005, 0.01, 0.505, 1.005, 1.505]


def test_an_unpaced_caller_takes_audio_as_fast_as_it_comes() -> None:
    turns = driven(FakeEngine(speed=10), Load(1, 2, 3.0, paced=False))
    assert seconds(turns) == [0.0, 0.29]
    found = figures(turns)
    assert found["rtf"] == pytest.approx(0.29 / 3, abs=1e-4)
    assert found["audio_seconds_per_second"] == pytest.approx(6 / 0.58, abs=0.01)


def test_all_callers_of_a_closed_loop_begin_at_once() -> None:
    turns = driven(FakeEngine(speed=10), Load(3, 2, 3.0))
    assert seconds(turns) == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]


@pytest.mark.slow
def test_the_open_loop_does_not_wait_for_the_engine() -> None:
    slow, quick = FakeEngine(first_audio_ms=60_000), FakeEngine()
    load = Load(4, 100, 3.0, is_open=True, seed=1)
    arrivals = seconds(driven(slow, load))
    assert arrivals == seconds(driven(quick, load)), "the times depend on the seed alone"
    assert len(arrivals) == 400
    gaps = np.array([b - a for a, b in pairwise(arrivals)])
    # In an exponential distribution the standard deviation is the mean, here 3 s / 4.
    assert gaps.mean() == pytest.approx(0.75, rel=0.15) and gaps.std() == pytest.approx(0.75, rel=0.2)
    assert seconds(driven(quick, Load(4, 100, 3.0, is_open=True, seed=2))) != arrivals


@pytest.mark.slow
def test_an_open_loop_of_a_given_rate() -> None:
    load = Load.at_rate(2.0, 100, 3.0, seed=1)
    assert (load.concurrency, load.is_open, load.arrivals_per_s) == (6, True, 2.0)
    arrivals = seconds(driven(FakeEngine(first_audio_ms=60_000), load))
    assert len(arrivals) == 600
    assert np.mean([b - a for a, b in pairwise(arrivals)]) == pytest.approx(0.5, rel=0.1)
    longer = load.with_seconds(4.5)
    assert (longer.concurrency, longer.arrivals_per_s, longer.seconds) == (9, 2.0, 4.5)
    assert Load(4, 2, 3.0, is_open=True).with_seconds(2.0).arrivals_per_s == 2.0
    # Poisson arrivals: hardly ever more than four standard deviations above the mean, here 9 + 4 * 3.
    assert longer.most_at_once == 21 and Load(4, 2, 3.0, is_open=True).most_at_once == 4
    assert Load.at_rate(0.1, 2, 3.0).concurrency == 1


class LateVoice(FakeEngine):
    """Speaks chunks of 100 ms; the first `n_silent` of them are too quiet to be heard, and half of the next one."""

    def __init__(self, n_silent: int, pause_s: float = 0.0) -> None:
        super().__init__()
        self.n_silent, self.pause_s = n_silent, pause_s

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        for n in range(3):
            await asyncio.sleep(0.05 if n == 0 else self.pause_s)
            pcm = np.full(2400, 5000, np.int16)
            pcm[: {True: 2400, False: 1200 if n == self.n_silent else 0}[n < self.n_silent]] = 50
            yield Chunk(pcm, 24_000)


@pytest.mark.parametrize(("n_silent", "pause_s", "ms"), [(0, 0.0, 100), (1, 0.0, 200), (1, 0.15, 250), (3, 0.0, None)])
def test_the_audible_first_audio_counts_silence_and_gaps_before_it(n_silent: int, pause_s: float, ms: int) -> None:
    """The first chunk comes after 50 ms. With pauses the second is 50 ms late."""
    found = figures(driven(LateVoice(n_silent, pause_s), Load(1, 1, 0.3)))
    assert found["first_audio_ms_p50"] == 50
    assert found["audible_ms_p50"] == ms and found["silent"] == (ms is None)


def test_an_engine_that_is_too_slow_causes_underruns() -> None:
    found = figures(driven(FakeEngine(chunk_ms=500, speed=0.5), Load(1, 1, 3.0)))
    # 0.5 s of sound a second: 0.5 s of silence before each of the five that follow.
    assert (found["underruns"], found["underrun_ms_max"], found["c100"]) == (5, 500.0, 0.0)
    smooth = figures(driven(FakeEngine(chunk_ms=500, speed=1.0), Load(1, 1, 3.0)))
    assert (smooth["underruns"], smooth["c100"]) == (0, 1.0)


def test_an_engine_that_fails_ends_the_turn_and_not_the_run() -> None:
    turns = driven(FakeEngine(fail_after_chunks=2), Load(2, 2, 3.0))
    assert [turn.error for turn in turns] == ["fake was told to fail after 2 chunks"] * 4
    assert all(len(turn.arrivals) == 2 and turn.ended_ns is not None for turn in turns)


class MisbehavingEngine(FakeEngine):
    """Misbehaves in the given way instead of speaking."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        if self.what == "crash":
            raise ZeroDivisionError("of its own")
        if self.what == "cancel itself":
            raise asyncio.CancelledError
        yield Chunk(np.zeros(0, np.int16), 24_000)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("crash", "ZeroDivisionError: of its own"),
        ("cancel itself", "the engine cancelled the utterance"),
        ("nothing", "the engine made no audio"),
    ],
)
def test_every_failure_of_an_engine_is_recorded(what: str, told: str) -> None:
    turns = driven(MisbehavingEngine(what), Load(1, 2, 3.0))
    assert [turn.error for turn in turns] == [told, told]


class SlowToStop(FakeEngine):
    """Takes 40 ms to stop after a cancel."""

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        try:
            async for chunk in super().synthesize(utterance):
                yield chunk
        finally:
            await asyncio.sleep(0.04)


@pytest.mark.parametrize("speed", [0.5, 100])
def test_a_barge_in_is_timed_until_the_engine_has_released_it(speed: float) -> None:
    """Both while the engine works and while the caller hears a chunk."""
    engine = SlowToStop(speed=speed)
    turns = driven(engine, Load(2, 3, 3.0, cancel_every_s=0.9))
    cancelled = [turn for turn in turns if turn.cancel_ns is not None]
    assert len(cancelled) >= 3 and engine.n_live == 0
    assert {round((turn.ended_ns or 0) - (turn.cancel_ns or 0)) for turn in cancelled} == {40_000_000}
    assert figures(turns)["cancel_ms_p95"] == 40.0
    first = min(cancelled, key=lambda turn: turn.cancel_ns or 0)
    assert first.cancel_ns == 0.9 * S
    assert first.ended_ns in [turn.asked_ns for turn in turns], "an interrupted caller begins its next turn at once"


def test_a_cancelled_run_releases_the_engine_and_keeps_its_turns() -> None:
    engine = SlowToStop(speed=1.0)

    async def work() -> Callers:
        callers = Callers(engine, say, Load(2, 5, 3.0, cancel_every_s=0.7), clock=clock)
        running = asyncio.create_task(callers.run())
        await asyncio.sleep(5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return callers

    callers = run(work())
    assert engine.n_live == 0
    open_ones = [turn for turn in callers.turns if turn.ended_ns is None]
    assert len(open_ones) == 2 and all(turn.error is None and not turn.is_whole for turn in open_ones)


def test_a_turn_is_due_at_once_and_has_a_seed_of_its_own() -> None:
    asked: list[Utterance] = []

    class Listening(FakeEngine):
        def check(self, utterance: Utterance) -> None:
            asked.append(utterance)

    turns = driven(Listening(), Load(2, 2, 3.0))
    assert sorted(utterance.seed or 0 for utterance in asked) == [0, 1, 2, 3]
    assert sorted(utterance.deadline_ns for utterance in asked) == sorted(turn.asked_ns for turn in turns)
