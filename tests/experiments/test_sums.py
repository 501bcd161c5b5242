"""Means per turn with intervals that hold for calls as the unit, and stop rules."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from telephony_tts.experiments.sums import FEWEST_CALLS, SUMS, CallSums, StopRules, mean


def added(calls: Iterable[CallSums]) -> dict[str, float]:
    sums = dict.fromkeys(SUMS, 0.0)
    for call in calls:
        for name, amount in call.terms().items():
            sums[name] += amount
    return sums


def simulated(random: np.random.Generator, n: int, rate: float) -> list[CallSums]:
    """Calls whose callers differ: some interrupt often, others never."""
    calls = []
    for _ in range(n):
        turns = int(random.integers(1, 12))
        habit = random.beta(0.5 * rate, 0.5 * (1 - rate))
        started = turns - int(random.integers(0, 2))
        first_audio_ms = float(random.normal(200, 30, started).sum())
        calls.append(CallSums(turns, started, first_audio_ms, 0, int(random.binomial(turns, habit))))
    return calls


def test_a_call_gives_all_sums_and_no_other() -> None:
    terms = CallSums(3, 2, 500.0, 1, 2, 1).terms()
    assert set(terms) == set(SUMS)
    assert terms["calls"] == 1 and terms["turns_squared"] == 9 and terms["started_squared"] == 4
    assert terms["first_audio_ms_times_started"] == 1000.0 and terms["interruptions_times_turns"] == 6
    assert terms["first_audio_ms_squared"] == 250_000.0


def test_the_mean_is_per_turn_and_not_per_call() -> None:
    sums = added([CallSums(1, 1, 100.0, 1), CallSums(9, 9, 2700.0, 0)])
    first, underruns = mean(sums, "first_audio_ms"), mean(sums, "underruns")
    assert first is not None and first.value == pytest.approx(280.0)
    assert underruns is not None and underruns.value == pytest.approx(0.1)


def test_without_turns_there_is_no_mean() -> None:
    assert mean(added([]), "underruns") is None
    assert mean(added([CallSums()] * 50), "underruns") is None
    failed = added([CallSums(turns=1, errors=1)] * 50)
    assert mean(failed, "first_audio_ms") is None
    errors = mean(failed, "errors")
    assert errors is not None and errors.interval == (1.0, 1.0)


def test_few_calls_have_no_interval() -> None:
    calls = [CallSums(2, 2, 400.0)] * (FEWEST_CALLS - 1)
    few = mean(added(calls), "first_audio_ms")
    enough = mean(added([*calls, calls[0]]), "first_audio_ms")
    assert few is not None and few.interval is None
    assert enough is not None and enough.interval == pytest.approx((200.0, 200.0))


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["interruptions", "first_audio_ms"])
def test_the_interval_holds_the_truth_in_95_of_100_cases(measure: str) -> None:
    """Turns of one call are alike: an interval over turns would hold it far less often."""
    random = np.random.default_rng(7)
    truth, n_runs, n_held, n_held_naively = {"interruptions": 0.3, "first_audio_ms": 200.0}[measure], 400, 0, 0
    for _ in range(n_runs):
        sums = added(simulated(random, 120, 0.3))
        found = mean(sums, measure)
        assert found is not None and found.interval is not None
        low, high = found.interval
        n_held += low <= truth <= high
        naive = 1.96 * math.sqrt(found.value * (1 - found.value) / sums["turns"]) if measure == "interruptions" else 0.0
        n_held_naively += abs(found.value - truth) <= naive
    assert 0.92 <= n_held / n_runs <= 0.98
    if measure == "interruptions":
        assert n_held_naively / n_runs < 0.85


def test_the_difference_of_two_arms_is_as_uncertain_as_both_together() -> None:
    random = np.random.default_rng(3)
    here = mean(added(simulated(random, 200, 0.5)), "interruptions")
    there = mean(added(simulated(random, 100, 0.2)), "interruptions")
    assert here is not None and there is not None
    found = here.minus(there)
    assert found.value == pytest.approx(here.value - there.value)
    assert found.variance == pytest.approx(here.variance + there.variance)
    low, high = found.interval or (0.0, 0.0)
    assert 0 < low < 0.3 < high
    assert here.minus(mean(added([CallSums(1)] * 5), "interruptions") or here).interval is None


def test_sums_of_two_servers_add_up() -> None:
    random = np.random.default_rng(5)
    one, two = simulated(random, 50, 0.3), simulated(random, 70, 0.3)
    together, apart = added([*one, *two]), [added(one), added(two)]
    for name in SUMS:
        assert together[name] == pytest.approx(apart[0][name] + apart[1][name])


# ------------------------------------------------------------------ stop rules


def test_an_arm_is_stopped_when_it_is_above_its_limit_beyond_doubt() -> None:
    rules = StopRules(after_calls=40, errors=0.05)
    bad = [CallSums(turns=2, started=1, first_audio_ms=100.0, errors=1)] * 40
    why = rules.why_to_stop(added(bad))
    assert why is not None and "errors per turn is 0.5" in why and "above 0.05" in why and "after 40 calls" in why
    assert rules.why_to_stop(added(bad[:-1])) is None, "too few calls"


def test_an_arm_that_may_be_below_its_limit_goes_on() -> None:
    rules = StopRules(after_calls=30, interruptions=0.3)
    calls = [CallSums(turns=1, interruptions=n % 3 == 0) for n in range(60)]
    found = mean(added(calls), "interruptions")
    assert found is not None and found.value > 0.3 and found.interval is not None and found.interval[0] < 0.3
    assert rules.why_to_stop(added(calls)) is None
    assert rules.why_to_stop(added([CallSums(turns=1, interruptions=n % 2) for n in range(200)])) is not None


def test_a_slow_arm_is_stopped_and_measures_without_a_limit_are_not_judged() -> None:
    slow = added([CallSums(2, 2, 900.0 + n, 5, 2, 2) for n in range(60)])
    assert StopRules(30, first_audio_ms=500.0).why_to_stop(slow) is None
    why = StopRules(30, first_audio_ms=400.0).why_to_stop(slow)
    assert why is not None and why.startswith("first_audio_ms per turn is 465")
