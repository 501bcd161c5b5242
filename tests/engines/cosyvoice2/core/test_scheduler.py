"""Which stream is served next: the real plan, slots and jobs, on a simulated clock and by themselves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[4] / "benchmarks"))  # where the simulator is shared with a tool

from harness.cost import NS_PER_MS, Cost, HelpingLanes
from harness.simulated import NS_PER_S, ROW_TOKENS, TOKENS_PER_WORD, Simulation

from telephony_tts.engines.cosyvoice2.core.jobs import MOST_UNVOICED_BLOCKS, TOKEN_STAGES
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    NEW_STREAM_DELAY_NS,
    BatchCost,
    Lane,
    Need,
    OwedWork,
    PendingWork,
    Plan,
    Slots,
    Stage,
    due_after_ns,
    lanes,
    plan,
)
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.cosyvoice2.profile import CPU, DEFAULT, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits

TOKEN_NS = NS_PER_S // 25
EVEN = replace(DEFAULT, later_block_tokens=(25,))
"""Only blocks of a second."""
ONE = BatchSizes(decode=1)

asks = st.fixed_dictionaries(
    {
        "at_ms": st.integers(0, 3000),
        "n_words": st.integers(1, 10),
        "silence_ms": st.sampled_from([0, 0, 700]),
        "cancel_ms": st.none() | st.none() | st.integers(0, 4000),
        "grows": st.sampled_from([False, False, True]),
        "n_more": st.integers(0, 8),
    }
)
engines = st.fixed_dictionaries(
    {
        "n_lanes": st.integers(1, 3),
        "n_slots": st.integers(1, 5),
        "widths": st.sampled_from([ONE, BatchSizes(), BatchSizes(2, 3, 2, 2), BatchSizes(4, 8, 8, 8, all_stages=True)]),
        "ahead": st.sampled_from([AheadLimits(), AheadLimits(500, 5), AheadLimits(1, 0)]),
        "profile": st.sampled_from([DEFAULT, EVEN, UPSTREAM, CPU]),
        "cost": st.sampled_from([Cost(), Cost(vocode=(300, 300)), Cost(flow=(0, 1), run_ahead=5), Cost(flow=(40, 90))]),
    }
)
def n_most(sizes: BatchSizes, stage: Stage) -> int:
    """Rows that a batch of the stage may have."""
    return (sizes.prefill, sizes.decode, sizes.flow, sizes.vocode)[stage]


needs = st.lists(
    st.builds(
        Need, st.integers(-1, 5), st.sampled_from(Stage), st.sampled_from([0, 5, 5, 900]), st.booleans(), st.booleans()
    ),
    unique_by=lambda need: (need.key, need.stage),
    max_size=20,
)
widths = st.builds(BatchSizes, *[st.integers(1, 4)] * 4, st.booleans())


class PlanJudge:
    """Checks every plan of a simulation when it is made, and what is held then."""

    def __call__(self, sim: Simulation, lane: Lane, needs: Sequence[Need], made: Plan) -> None:
        assert bool(made) == bool(needs), "a lane is idle while something could be computed"
        for stage, keys in made.items():
            assert 1 <= len(set(keys)) == len(keys) <= n_most(sim.widths, stage)
            for key in keys:
                said = sim.live[key]
                assert said.cancelled_ns is None, "it was cancelled"
                assert stage not in said.job.busy, "another lane does this now"
                assert not (stage in TOKEN_STAGES and said.job.busy & TOKEN_STAGES)
                (need,) = (need for need in needs if (need.key, need.stage) == (key, stage))
                # A second block is heard after the first.
                assert need.due_ns == said.job.due_ns or (stage is Stage.FLOW and need.due_ns > said.job.due_ns)
        self.first_audio_first_unless_another_would_underrun(sim, lane, needs, made)
        self.no_stream_draws_alone_without_need(sim, lane, needs, made)
        self.slots(sim)
        self.no_stream_runs_too_far_ahead(sim)

    @staticmethod
    def first_audio_first_unless_another_would_underrun(
        sim: Simulation, lane: Lane, needs: Sequence[Need], made: Plan
    ) -> None:
        """A new stream waits for no stream that has audio left, unless one would underrun. Then it waits for those that
        underrun within a second of its deadline."""
        wait_ns = sim.new_delay_ns
        assert wait_ns in (0, NEW_STREAM_DELAY_NS)
        for stage, keys in made.items():
            rivals = [
                need
                for need in needs
                if need.stage == stage or (need.stage in lane.value and not sim.widths.all_stages)
            ]
            first = sim.live[keys[0]].job
            if first.is_new and wait_ns:
                assert all(need.is_new or need.can_wait or need.due_ns >= first.due_ns + wait_ns for need in rivals)
            elif any(need.is_new and not need.can_wait and need.due_ns + wait_ns <= sim.now_ns for need in rivals):
                assert first.due_ns <= sim.now_ns

    @staticmethod
    def no_stream_draws_alone_without_need(sim: Simulation, lane: Lane, needs: Sequence[Need], made: Plan) -> None:
        """Ids that can wait are drawn in a batch with others, or when the lane has no other work."""
        keys = made.get(Stage.DECODE, ())
        may = [need for need in needs if need.stage is Stage.DECODE]
        if sim.widths.all_stages or not keys:
            return
        assert len(keys) == min(len(may), sim.widths.decode), "a stream is left out"
        if not all(need.can_wait for need in may):
            return
        n_drawing = sum(said.job.is_drawing for said in sim.live.values())
        assert len(keys) >= min(n_drawing, sim.widths.decode) or len(may) == len(needs)

    @staticmethod
    def slots(sim: Simulation) -> None:
        streams = [said.job.stream for said in sim.live.values()]
        held = [stream.slot for stream in streams if stream.slot is not None]
        assert len(set(held)) == len(held) and set(held) <= set(range(sim.slots.n))
        assert len(held) + sim.slots.n_free == sim.slots.n
        assert sum(stream.grows and stream.slot is not None for stream in streams) <= sim.slots.n // 2

    @staticmethod
    def no_stream_runs_too_far_ahead(sim: Simulation) -> None:
        """Audio held for a listener stays below the limit plus the block that began below it."""
        for said in sim.live.values():
            piece, profile = said.job.stream.piece, said.job.stream.profile
            if piece is None:
                continue
            # A short end joins the block before it.
            block_ms = 40 * (max(*profile.later_block_tokens, 52) + 2)
            assert said.job.held_ms < sim.ahead.audio_ms + block_ms
            assert piece.n_spare < sim.ahead.n_tokens + sim.cost.run_ahead
            assert piece.n_unvoiced_blocks <= MOST_UNVOICED_BLOCKS


def history(engine: dict[str, Any], calls: Sequence[dict[str, Any]], **more: Any) -> Simulation:
    """Run the simulation to its end."""
    sim = Simulation(**engine, **more)
    for call in calls:
        at_ns = call["at_ms"] * NS_PER_MS
        key = sim.say(call["n_words"], at_ns=at_ns, silence_ns=call["silence_ms"] * NS_PER_MS, grows=call["grows"])
        if call["grows"]:
            sim.push(key, call["n_more"], False, at_ns=at_ns + 300 * NS_PER_MS)
            sim.push(key, 1, True, at_ns=at_ns + 1500 * NS_PER_MS)
        if call["cancel_ms"] is not None:
            sim.cancel(key, at_ns=at_ns + call["cancel_ms"] * NS_PER_MS)
    sim.run()
    return sim


# ------------------------------------------------------------------------ whole histories


@pytest.mark.slow
@settings(max_examples=120)
@given(engines, st.lists(asks, min_size=1, max_size=6))
def test_every_step_is_fair_and_every_stream_ends(
    engine: dict[str, Any], calls: list[dict[str, Any]]
) -> None:
    sim = history(engine, calls, watch=PlanJudge())
    assert not sim.live and sim.slots.n_free == sim.slots.n
    for said, call in zip(sim.said.values(), calls, strict=True):
        assert said.job.error is None and said.ended_ns is not None
        if said.cancelled_ns is None:
            n_words = call["n_words"] + (call["n_more"] + 1 if call["grows"] else 0)
            sound_ns = sum(sound_ns for _, sound_ns in said.arrivals)
            if call["grows"]:
                assert sound_ns >= n_words * TOKENS_PER_WORD * TOKEN_NS / 2
            else:
                assert sound_ns == n_words * TOKENS_PER_WORD * TOKEN_NS


def test_a_lane_that_is_helped_makes_all_steps_sooner() -> None:
    """Twice as fast is as with half the prices."""
    ends = []
    whole, half = Cost((40, 0), (8, 0), (0, 20), (10, 30)), Cost((20, 0), (4, 0), (0, 10), (5, 15))
    for factor, cost in ((2.0, whole), (1.0, half)):
        sim = Simulation(cost, ONE, helping=HelpingLanes(factor, factor, factor, factor))
        sim.say(6)
        sim.run()
        ends.append([round(at_ns / NS_PER_MS, 3) for at_ns, _ in sim.said[0].arrivals])
    assert ends[0] == ends[1] and len(ends[0]) > 5


def test_two_lanes_that_work_do_not_help_each_other() -> None:
    """A decode step of 10 ms that has help for its first half takes 7.5, as long as no other lane works then."""
    cost = Cost((0, 0), (10, 0), (0, 10), (10, 10))
    seen: list[tuple[int, int]] = []
    for together in (1.0, 0.5):
        helping = HelpingLanes(prefill=2, decode=2, flow=2, vocode=2, together=together)
        sim = Simulation(cost, ONE, n_lanes=2, profile=CPU, helping=helping)
        sim.say(12)
        sim.run()
        first_ns, last_ns = sim.said[0].arrivals[0][0], sim.said[0].arrivals[-1][0]
        # A prefill at no price draws the first of 25 ids. Then come the block's flow, and the vocoder for 36 frames.
        assert first_ns >= (24 * 10 / 2 + 10 * 10 * 22 / 25 / 2 + (10 + 10 * 36 / 50) / 2) * NS_PER_MS
        seen.append((first_ns, last_ns))
    assert seen[0][1] < seen[1][1], "ids beside the vocoder take longer where lanes slow each other"


def test_a_lone_caller_on_two_lanes_that_help_hears_no_gap() -> None:
    """The prices of two Zen 4 cores. Without the division of its second block first audio would be 0.1 s later."""
    first_ms = []
    for profile in (CPU, replace(CPU, second_frames=None)):
        cost = Cost((347, 0), (13.5, 3), (0, 75.5), (35, 160))
        sim = Simulation(cost, n_lanes=2, profile=profile, helping=HelpingLanes(), listen_ns=3600 * NS_PER_S)
        # The second turn has the prices that the first has taught.
        second: list[int] = []
        sim.say(20, then=lambda end_ns, second=second, sim=sim: second.append(sim.say(20, at_ns=end_ns)))  # type: ignore[misc]
        sim.run()
        said = sim.said[second[0]]
        assert max(said.underruns_ns, default=0) < 10 * NS_PER_MS
        first_ms.append((said.arrivals[0][0] - said.asked_ns) / NS_PER_MS)
    assert first_ms[0] < first_ms[1] - 80


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.integers(1, 2000),
    st.integers(60, 300),
    st.integers(0, 3),
    st.sampled_from([BatchSizes(), ONE]),
    st.sampled_from([DEFAULT, EVEN]),
)
def test_a_flood_of_new_streams_starves_no_stream(
    at_ms: int, every_ms: int, n_before: int, widths: BatchSizes, profile: Profile
) -> None:
    """More is needed than can be done. A stream still waits only for earlier ones, each of which may take whole batches
    to its end. A later stream delays it only by its rows in shared batches."""
    cost = Cost(decode=(6, 0), flow=(15, 0), vocode=(40, 0))
    sim = Simulation(cost, widths, n_slots=100, profile=profile)
    before = [sim.say(8, at_ns=at_ms * NS_PER_MS - i) for i in range(1, n_before + 1)]
    mine = sim.say(8, at_ns=at_ms * NS_PER_MS)
    for i in range(1, 12):
        sim.say(8, at_ns=(at_ms + i * every_ms) * NS_PER_MS)
    sim.run()
    n_tokens, n_batch_ns = 8 * TOKENS_PER_WORD, 200 * NS_PER_MS
    alone_ns = cost.of(Stage.PREFILL, 1) + n_tokens * cost.of(Stage.DECODE, 1)
    alone_ns += 5 * (10 * cost.of(Stage.FLOW, 1) + cost.of(Stage.VOCODE, 1))
    said = sim.said[mine]
    assert said.arrivals[0][0] - said.asked_ns <= (len(before) + 1) * alone_ns + n_batch_ns
    # Later blocks too: once a block is due, all later streams are less urgent.
    assert said.ended_ns is not None and all(other.ended_ns is not None for other in sim.said.values())
    assert said.ended_ns <= max(other.ended_ns or 0 for other in sim.said.values() if other.key > mine)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 1500), min_size=1, max_size=5),
    st.sampled_from([0.5, 0.8, 0.95]),
    st.integers(5, 20),
    st.sampled_from([AheadLimits(), AheadLimits(1000, 10), AheadLimits(1500, 1)]),
)
@example([0, 0, 0, 0, 0], 0.95, 20, AheadLimits())
def test_feasible_work_has_no_underrun_but_for_new_streams(
    starts_ms: list[int], load: float, n_words: int, ahead: AheadLimits
) -> None:
    """One row at a time, blocks of a second. The work due at any time is at most the first block of each new stream and
    `load` of the time since. So no audio is later than these first blocks and one running batch."""
    per_block_ms = load * 1000 / len(starts_ms)
    # The last block may have up to 27 tokens.
    share_ms = per_block_ms * ROW_TOKENS / 27
    cost = Cost(
        prefill=(30, 0), decode=(0, 0.4 * share_ms / 25), flow=(0, 0.5 * share_ms / 10), vocode=(0, 0.1 * share_ms)
    )
    sim = Simulation(cost, ONE, ahead=ahead, profile=EVEN)
    for at_ms in starts_ms:
        sim.say(n_words, at_ns=at_ms * NS_PER_MS)
    sim.run()
    newcomers_ms = len(starts_ms) * (30 + per_block_ms)
    batch_ms = max(30, 0.5 * share_ms / 10 * 2, 0.1 * share_ms * 2)
    most_ns = (newcomers_ms + 0.12 * load * 1000 + batch_ms) * NS_PER_MS
    for said in sim.said.values():
        assert max(said.underruns_ns, default=0) <= most_ns
        assert said.arrivals[0][0] - said.asked_ns <= most_ns + (30 + per_block_ms) * NS_PER_MS
    if len(starts_ms) == 1:
        assert sim.said[0].underruns_ns == []


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(3, 12), st.integers(0, 3000))
def test_a_new_stream_is_heard_as_soon_as_on_an_idle_engine(n_others: int, n_words: int, at_ms: int) -> None:
    """Streams that are ahead wait meanwhile, except for the running batch and the other rows of its own batches."""
    cost = Cost(decode=(6, 0), flow=(15, 0), vocode=(40, 0))
    alone = Simulation(cost, profile=EVEN)
    alone.say(n_words)
    alone.run()
    sim = Simulation(cost, profile=EVEN)
    others = [sim.say(40, at_ns=i * NS_PER_S) for i in range(n_others)]
    mine = sim.say(n_words, at_ns=(4000 + at_ms) * NS_PER_MS)
    sim.run()
    assert all((sim.said[key].ended_ns or 0) > sim.said[mine].arrivals[0][0] for key in others)
    first_ns = sim.said[mine].arrivals[0][0] - sim.said[mine].asked_ns
    assert first_ns <= alone.said[0].arrivals[0][0] + 50 * NS_PER_MS


def test_two_lanes_keep_both_busy_for_one_stream() -> None:
    cost = Cost(prefill=(10, 0), decode=(12, 0), flow=(1, 24), vocode=(0, 60))
    ended = []
    for n_lanes in (1, 2):
        sim = Simulation(cost, n_lanes=n_lanes, profile=EVEN, ahead=AheadLimits(20_000, 500))
        sim.say(30)
        sim.run()
        assert sum(sim.busy_ns.values()) <= n_lanes * (sim.said[0].ended_ns or 0)
        ended.append(sim.said[0].ended_ns or 0)
    work_ns = sum(sim.busy_ns.values())
    assert ended[0] == work_ns
    # Tokens and audio take about the same time. Only during the first and the last block one lane is idle.
    assert ended[1] < 0.6 * work_ns


def test_a_third_lane_makes_audio() -> None:
    assert lanes(3) == [Lane.TOKENS, Lane.AUDIO, Lane.AUDIO]
    with pytest.raises(ValueError):
        lanes(0)


# ------------------------------------------------------------------------------ one plan


@pytest.mark.slow
@settings(max_examples=200)
@given(needs, st.sampled_from(Lane), widths, st.randoms(use_true_random=False))
def test_a_plan_names_the_most_urgent_once_in_any_order_of_needs(
    needs: list[Need], lane: Lane, widths: BatchSizes, random: Any
) -> None:
    made = plan(needs, lane, widths)
    shuffled = list(needs)
    random.shuffle(shuffled)
    assert plan(shuffled, lane, widths) == made and plan(needs + needs, lane, widths) == made
    assert bool(made) == bool(needs)
    due_ns = {(need.key, need.stage): need.due_ns for need in needs}
    for stage, keys in made.items():
        chosen = [due_ns[key, stage] for key in keys]
        left = [need.due_ns for need in needs if need.stage == stage and need.key not in keys]
        assert chosen == sorted(chosen) and len(keys) == len(set(keys)) <= n_most(widths, stage)
        assert not left or (len(keys) == n_most(widths, stage) and chosen[-1] <= min(left))
    if widths.all_stages:
        assert set(made) == {need.stage for need in needs}
    elif made:
        ((stage, keys),) = made.items()
        own = [need for need in needs if need.stage in lane.value] or needs
        most_urgent = min(need.due_ns for need in own)
        assert due_ns[keys[0], stage] == most_urgent
        # The later stage of a stream first, and the stages that the lane prefers first.
        assert stage == max(need.stage for need in own if (need.key, need.due_ns) == (keys[0], most_urgent))
        assert stage in lane.value or not any(need.stage in lane.value for need in needs)


@settings(max_examples=100)
@given(needs, st.sampled_from(Lane), widths, st.integers(0, 10**9))
def test_delayed_new_streams_are_planned_as_if_due_later(
    needs: list[Need], lane: Lane, widths: BatchSizes, wait_ns: int
) -> None:
    later = [replace(need, due_ns=need.due_ns + (wait_ns if need.is_new else 0)) for need in needs]
    assert plan(needs, lane, widths, new_delay_ns=wait_ns) == plan(later, lane, widths)


@pytest.mark.slow
@settings(max_examples=200)
@given(needs, st.sampled_from(Lane), widths, st.integers(0, 6))
def test_ids_that_can_wait_are_drawn_in_a_batch_or_by_an_idle_lane(
    needs: list[Need], lane: Lane, widths: BatchSizes, n_drawing: int
) -> None:
    made, at_once = plan(needs, lane, widths, n_drawing), plan(needs, lane, widths)
    words = [need for need in needs if need.stage is Stage.DECODE]
    others = [need for need in needs if need.stage is not Stage.DECODE]
    is_small = len(words) < min(n_drawing, widths.decode)
    if words and is_small and all(need.can_wait for need in words) and not widths.all_stages and others:
        assert made == plan(others, lane, widths)
    else:
        assert made == at_once


# --------------------------------------------------------------------------------- slots


@settings(max_examples=100)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.sampled_from(["take", "take growing", "take for a file", "give"]), st.integers(0, 9))),
)
def test_a_slot_is_held_by_one_stream_and_freed_once(n: int, actions: list[tuple[str, int]]) -> None:
    slots, held = Slots(n), dict[int, str]()
    for action, i in actions:
        if action == "give":
            slot = i % n
            if slot in held:
                slots.release(slot)
                del held[slot]
            else:
                with pytest.raises(ValueError):
                    slots.release(slot)
        else:
            got = slots.acquire(action == "take growing", action == "take for a file")
            n_most = {"take": n, "take growing": n // 2, "take for a file": max(1, n // 2)}[action]
            refused = len(held) == n or list(held.values()).count(action) >= n_most
            assert (got is None) == refused
            if got is not None:
                assert got == min(set(range(n)) - set(held))
                held[got] = action
        assert slots.n_free + len(held) == n


@pytest.mark.parametrize("slot", [-1, 2])
def test_an_unknown_or_free_slot_cannot_be_freed(slot: int) -> None:
    slots = Slots(2)
    slots.acquire()
    slots.acquire()
    with pytest.raises(ValueError):
        slots.release(slot)
    with pytest.raises(ValueError):
        Slots(0)


# ----------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize(("audio_ms", "n_tokens"), [(0, 25), (2000, -1)])
def test_limits_with_which_nothing_begins_are_refused(audio_ms: int, n_tokens: int) -> None:
    with pytest.raises(ValueError):
        AheadLimits(audio_ms, n_tokens)


def test_audio_is_over_after_its_duration() -> None:
    assert due_after_ns(5 * NS_PER_S, 36_000, 24_000) == 5 * NS_PER_S + 1500 * NS_PER_MS


WIDE = BatchSizes(prefill=2, decode=8, flow=8, vocode=8)


def test_new_prompts_are_fed_before_ids_are_drawn_where_prompts_are_fed_together() -> None:
    """Else the first stream would be heard before the next one is begun: each step takes as long for one as for all."""
    drawing = Need(1, Stage.DECODE, 0, is_new=True)
    waiting = [Need(key, Stage.PREFILL, key, is_new=True) for key in (2, 3, 4)]
    assert plan([drawing, *waiting], Lane.ALL, WIDE, 4) == {Stage.PREFILL: (2, 3)}
    # Not on a CPU, where each prompt takes its own time;
    assert plan([drawing, *waiting], Lane.ALL, BatchSizes(), 4) == {Stage.DECODE: (1,)}
    # not before a stream that is heard already, or for one that follows speech;
    assert plan([replace(drawing, is_new=False), *waiting], Lane.ALL, WIDE, 4) == {Stage.DECODE: (1,)}
    assert plan([drawing, replace(waiting[0], is_new=False)], Lane.ALL, WIDE, 2) == {Stage.DECODE: (1,)}
    # and not between the steps of the flow, which the new ones could share only when their ids are drawn.
    flow = Need(1, Stage.FLOW, 0, is_new=True)
    assert plan([flow, *waiting], Lane.ALL, WIDE, 4) == {Stage.FLOW: (1,)}


COSTS = {Stage.DECODE: BatchCost(12.0, 6.0), Stage.FLOW: BatchCost(40.0, 40.0), Stage.VOCODE: BatchCost(100.0, 100.0)}


@pytest.mark.parametrize(
    ("others", "n_lanes", "expected"),
    [
        ([], 1, 25 * 12 + 10 * 40 + 100),
        ([], 2, 25 * 12 + 10 * 40 + 100),
        # Due before, so its rows come first: two lanes share both, which is longer than the own batches.
        ([PendingWork(1_000, (0, 25, 10, 1))] * 2, 2, 3 * (25 * 6 + 10 * 40 + 100) / 2),
        ([PendingWork(1_000, (0, 25, 10, 1))], 1, 2 * (25 * 6 + 10 * 40 + 100)),
        # Due later, so they wait.
        ([PendingWork(3_000, (0, 25, 10, 1))] * 2, 1, 25 * 12 + 10 * 40 + 100),
    ],
)
def test_the_next_audio_waits_for_streams_that_are_due_before(
    others: list[PendingWork], n_lanes: int, expected: float
) -> None:
    own = PendingWork(2_000, (0, 25, 10, 1))
    owed = OwedWork([own, *others], COSTS)
    assert owed.time_to_audio_ns(own, 2_000, n_lanes) == expected
    # Its own work counts also if it is asked for an earlier time than that at which it is due.
    assert owed.time_to_audio_ns(own, 1_500, n_lanes) == expected
