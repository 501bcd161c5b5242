"""New streams against active ones, and which streams draw ids in one batch: the real plan on a simulated clock."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[4] / "benchmarks"))  # where the simulator is shared with a tool

from harness.cost import NS_PER_MS, Cost
from harness.simulated import NS_PER_S, Planner, Simulation

from telephony_tts.engines.cosyvoice2.core.scheduler import (
    NEW_STREAM_DELAY_NS,
    UNDERRUN_MARGIN_NS,
    BatchCost,
    Lane,
    Need,
    PendingWork,
    Plan,
    Stage,
    new_stream_delay_ns,
    plan,
)
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.settings import AheadLimits

EVEN = replace(DEFAULT, later_block_tokens=(25,))
"""Only blocks of a second."""
ONE = BatchSizes(decode=1)

owed = st.lists(
    st.builds(PendingWork, st.integers(0, 3 * 10**9), st.tuples(*[st.integers(0, 25)] * 4)),
    max_size=5,
)
prices = st.dictionaries(
    st.sampled_from(Stage), st.builds(BatchCost, st.integers(0, 10**8), st.integers(0, 10**7)), max_size=4
)


@settings(max_examples=200)
@given(owed, prices, st.integers(0, 10**9))
def test_new_streams_wait_if_an_active_stream_would_underrun(
    owed: list[PendingWork], prices: dict[Stage, BatchCost], now_ns: int
) -> None:
    """If serving the active streams by deadline is late, every other order is late too."""

    def is_late(order: Sequence[PendingWork]) -> bool:
        at_ns = now_ns + UNDERRUN_MARGIN_NS
        for each in order:
            rows = zip(Stage, each.n_batches, strict=True)
            at_ns += sum(n * prices.get(stage, BatchCost()).row_ns for stage, n in rows)
            if at_ns > each.due_ns:
                return True
        return False

    def takes_too_long(each: PendingWork) -> bool:
        spent = sum(n * prices.get(stage, BatchCost()).batch_ns for stage, n in zip(Stage, each.n_batches, strict=True))
        return now_ns + UNDERRUN_MARGIN_NS + spent > each.due_ns

    wait_ns = new_stream_delay_ns(owed, prices, now_ns)
    is_tight = any(takes_too_long(each) for each in owed) or all(is_late(o) for o in itertools.permutations(owed))
    assert wait_ns == (NEW_STREAM_DELAY_NS if is_tight else 0)
    assert new_stream_delay_ns(owed[::-1], prices, now_ns) == wait_ns
    assert new_stream_delay_ns([], prices, now_ns) == 0


def test_a_stream_near_its_underrun_precedes_a_new_one_and_others_do_not() -> None:
    """Two streams are two seconds ahead. A third begins, right after a fourth took all of the engine."""
    cost = Cost(prefill=(10, 0), decode=(4, 0), flow=(20, 0), vocode=(40, 0))
    sim = Simulation(cost, ONE, profile=EVEN)
    served: list[tuple[int, bool, bool]] = []

    def watch(sim: Simulation, lane: Lane, needs: Sequence[Need], made: Plan) -> None:
        heard = [need for need in needs if not need.is_new]
        if heard and any(need.is_new for need in needs):
            ((_, keys),) = made.items()
            left_ns = min(need.due_ns for need in heard) - sim.now_ns
            served.append((left_ns, sim.live[keys[0]].job.is_new, bool(sim.new_delay_ns)))

    sim = Simulation(cost, ONE, profile=EVEN, watch=watch)
    sim.say(30)
    for i in range(120):
        key = sim.say(20, at_ns=(1500 + i * 100) * NS_PER_MS)
        sim.cancel(key, at_ns=(1590 + i * 100) * NS_PER_MS)
    sim.run()
    # A block takes 100 + 200 + 40 ms.
    assert all(is_new for left_ns, is_new, _ in served if left_ns > (340 + 200) * NS_PER_MS)
    assert not any(is_new for left_ns, is_new, _ in served if left_ns < 200 * NS_PER_MS)
    assert {is_new for _, is_new, _ in served} == {True, False}
    assert sim.said[0].underruns_ns == []


@pytest.mark.slow
@settings(max_examples=30)
@given(
    st.integers(1, 6), st.sampled_from([0.5, 0.7, 0.85]), st.integers(60, 250), st.integers(5, 95), st.integers(1, 2)
)
def test_a_caller_that_asks_again_and_again_causes_no_underrun(
    n_others: int, load: float, every_ms: int, held_percent: int, n_lanes: int
) -> None:
    """However much of the machine it could use: the other streams get what they need."""
    sim = beside_a_nervous_caller(n_others, load, every_ms, held_percent, n_lanes=n_lanes)
    assert all(sim.said[key].underruns_ns == [] for key in range(n_others))


@pytest.mark.slow
def test_without_the_delay_it_would_cause_underruns() -> None:
    """Why there is `new_stream_delay_ns`: one of the histories above without it."""

    def deadlines_alone(needs: Sequence[Need], lane: Lane, widths: BatchSizes, n_drawing: int, wait_ns: int) -> Plan:
        return plan(needs, lane, widths, n_drawing)

    starved = beside_a_nervous_caller(4, 0.85, 100, 90, planner=deadlines_alone)
    assert sum(len(starved.said[key].underruns_ns) for key in range(4)) > 10
    assert not any(beside_a_nervous_caller(4, 0.85, 100, 90).said[key].underruns_ns for key in range(4))


def beside_a_nervous_caller(n_others: int, load: float, every_ms: int, held_percent: int, **more: Any) -> Simulation:
    """`n_others` streams of 8 s each begin half a second apart and need `load` of one lane in all. One more caller asks
    every `every_ms` and cancels after `held_percent` of that time. It begins last."""
    share_ms = load * 1000 / n_others
    cost = Cost((share_ms / 10, 0), (0, 0.4 * share_ms / 25), (0, 0.05 * share_ms), (0, 0.1 * share_ms))
    sim = Simulation(cost, ONE, profile=EVEN, n_slots=20, **more)
    for i in range(n_others):
        sim.say(20, at_ns=i * 500 * NS_PER_MS)
    for i in range(12_000 // every_ms):
        at_ns = (500 * n_others + i * every_ms) * NS_PER_MS
        sim.cancel(sim.say(20, at_ns=at_ns), at_ns=at_ns + every_ms * held_percent * NS_PER_MS // 100)
    sim.run()
    return sim


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(2, 6), st.sampled_from([1.2, 2.0, 4.0]), st.integers(3000, 6000))
def test_a_new_stream_is_heard_although_all_others_underrun(n_others: int, load: float, at_ms: int) -> None:
    """More is needed than can be done, so some stream is always near its underrun. A new stream waits a second, for one
    block of each stream that is due before, and for the batches that run."""
    share_ms = load * 1000 / n_others
    cost = Cost((share_ms / 10, 0), (0, 0.4 * share_ms / 25), (0, 0.05 * share_ms), (0, 0.1 * share_ms))
    sim = Simulation(cost, ONE, profile=EVEN, n_slots=20)
    for i in range(n_others):
        sim.say(40, at_ns=i * 200 * NS_PER_MS)
    mine = sim.say(10, at_ns=at_ms * NS_PER_MS)
    sim.run()
    assert any(said.underruns_ns for key, said in sim.said.items() if key != mine)
    first_ns = sim.said[mine].arrivals[0][0] - sim.said[mine].asked_ns
    # The next block may begin while the first pauses, and no batch is interrupted.
    assert first_ns <= NEW_STREAM_DELAY_NS + 1.1 * share_ms * (n_others + 1) * NS_PER_MS + 0.5 * share_ms * NS_PER_MS


# ----------------------------------------------------------------------------- in company

FULL_SIZE = Cost(prefill=(330, 0), decode=(17, 3), flow=(0, 85), vocode=(0, 120))
"""About what a core of the machine in docs/experiments.md takes."""


def at_once(planner: Planner, n: int, cost: Cost = FULL_SIZE, between_ms: int = 0) -> Simulation:
    """Several streams of 8 s each, on two lanes."""
    sim = Simulation(cost, BatchSizes(), n_lanes=2, ahead=AheadLimits(20_000), listen_ns=20 * NS_PER_S, planner=planner)
    for i in range(n):
        sim.say(20, at_ns=i * between_ms * NS_PER_MS)
    sim.run()
    return sim


def without_waiting(needs: Sequence[Need], lane: Lane, widths: BatchSizes, n_drawing: int, wait_ns: int) -> Plan:
    return plan(needs, lane, widths, 0, wait_ns)


@pytest.mark.parametrize(("n", "most_batches", "faster"), [(2, 1.25, 1.05), (4, 1.5, 1.1)])
@pytest.mark.parametrize("between_ms", [0, 400])
def test_streams_draw_ids_that_can_wait_in_one_batch(
    n: int, most_batches: float, faster: float, between_ms: int
) -> None:
    """200 ids each: fewer batches, all of it sooner, and no first audio later."""
    together = at_once(plan, n, between_ms=between_ms)
    apart = at_once(without_waiting, n, between_ms=between_ms)
    assert together.n_rows[Stage.DECODE] == apart.n_rows[Stage.DECODE]
    assert together.n_batches[Stage.DECODE] <= most_batches * 200 < apart.n_batches[Stage.DECODE]
    assert together.now_ns * faster < apart.now_ns
    for key in range(n):
        assert together.said[key].arrivals[0][0] <= apart.said[key].arrivals[0][0]


def test_a_single_stream_waits_for_no_other() -> None:
    assert at_once(plan, 1).said[0].arrivals == at_once(without_waiting, 1).said[0].arrivals
