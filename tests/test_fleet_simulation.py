"""The simulated fleet of benchmarks/fleet.py keeps its books, decides as the engine does, and shows faults."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import virtual_loop
from fleet_parts import picture, price_check, sizing
from fleet_parts.calibration import light_replicas
from fleet_parts.callers import WORD_NS, CallPlan, Habits, Rush, TurnPlan, calls
from fleet_parts.events import Events
from fleet_parts.figures import Prices, Targets, figures
from fleet_parts.light_replica import LightReplica
from fleet_parts.prices import NAMED_PRICES, EnginePrices, from_bench_engine, wide
from fleet_parts.simulation import (
    Canary,
    Fleet,
    FleetSettings,
    Loss,
    MakeReplica,
    Record,
    Scaling,
    Violation,
    core_replicas,
)
from fleet_parts.slot_replica import FakeEnginePace, SlotReplica
from harness.cost import Cost

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.ray.settings import RaySettings
from telephony_tts.engines.remote.routing import ReplicaState

MS, S = 1_000_000, 1_000_000_000
ASSUMED_H200 = NAMED_PRICES["h200-assumed"]
SMALL = EnginePrices("small", False, Cost((4, 0), (1, 0.8), (0.3, 4.5), (2, 38)), BatchSizes(decode=4), 8)
"""A CPU: one block at a time."""
SHORT = Habits(call_s=40.0)
FREE = Prices(1.0, 1.0)


def plans(n: int, seconds: float = 20.0, seed: int = 1, habits: Habits = SHORT) -> list[CallPlan]:
    return calls(habits, Rush(seconds, base=1.0).arrivals_ns(n, seed), seed)


def ran(settings: FleetSettings, of: Sequence[CallPlan], **how: Any) -> Fleet:
    fleet = Fleet(settings, of, **how)
    fleet.run()
    return fleet


# -------------------------------------------------------------------- equal to the engine


@pytest.mark.slow
@pytest.mark.parametrize("prices", [ASSUMED_H200, SMALL], ids=lambda prices: prices.label)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_light_replica_decides_as_the_engines_core(prices: EnginePrices, seed: int) -> None:
    """Every time is the same, to the nanosecond, also under more load than the replica can serve."""
    n, found = (24, 5)[prices is SMALL], []
    voices = [f"voice {k}" for k in range(SHORT.n_voices)]
    of = plans(n, 10.0, seed, replace(SHORT, barge_in=0.0))  # for those see `CoreReplica`
    for make in (core_replicas(voices), light_replicas(1, 1)):
        fleet = ran(FleetSettings(prices, 1, n_fronts=2), of, make_replica=make)
        record = fleet.record
        found.append((record.first_audio, record.gaps, record.refused, record.samples, fleet.nodes[0].replica.busy_ns))
    assert found[0] == found[1]
    assert len(found[0][0]) > 10


def test_coarser_steps_cost_exactness_and_little_of_it() -> None:
    exact, coarse = (
        figures(ran(FleetSettings(ASSUMED_H200, 1), plans(10), make_replica=light_replicas(*groups)), FREE)[
            "first_audio_ms"
        ]
        for groups in ((1, 1), (5, 1))
    )
    assert exact != coarse and abs(exact["p50"] - coarse["p50"]) < 0.2 * exact["p50"]


@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_slot_replica_takes_as_long_as_the_fake_engine(n_slots: int) -> None:
    """The real engine on a loop whose time is simulated, pulled at once."""
    asked = [(1, 3, 5 * S), (2, 9, 1 * S), (3, 1, 9 * S), (4, 6, 2 * S), (5, 2, 0)]
    pace = FakeEnginePace(n_slots, 150.0, 0.25)
    events, simulated = Events(), dict[int, int]()

    def pull(key: int, _sound_ns: int) -> None:
        events.at(events.now_ns, replica.pull, key)

    replica = SlotReplica(events, pace, pull, lambda key: simulated.update({key: events.now_ns}))
    for key, n_words, deadline_ns in asked:
        replica.submit(key, n_words, "", deadline_ns, False)
    events.run()

    async def real() -> dict[int, float]:
        engine = FakeEngine(slots=n_slots, first_audio_ms=150.0, speed=1 / 0.25, ms_per_char=100.0)
        ended: dict[int, float] = {}
        loop = asyncio.get_running_loop()
        begun_s = loop.time()

        async def one(key: int, n_words: int, deadline_ns: int) -> None:
            n_chars = round(n_words * WORD_NS / MS / 100)
            async for _ in engine.synthesize(Utterance(str(key), "a" * n_chars, deadline_ns=deadline_ns)):
                pass
            ended[key] = loop.time() - begun_s

        await asyncio.gather(*(one(*each) for each in asked))
        return ended

    measured = virtual_loop.run(real())
    assert {key: round(at_ns / S, 3) for key, at_ns in simulated.items()} == {
        key: pytest.approx(at_s, abs=0.002) for key, at_s in measured.items()
    }
    assert events.now_ns >= replica.busy_ns > 0.3 * events.now_ns


# ------------------------------------------------------------------------------- the books


HARD = FleetSettings(
    ASSUMED_H200, 3, n_fronts=2, start_s=10.0,
    scaling=Scaling(target=0.1, least=2, most=6, up_after_s=2, down_after_s=10),
    losses=(Loss(8.0, 1, silent=True), Loss(15.0, 2, silent=False), Loss(21.0, 1, replaced=False)),
    canary=Canary(0.2, 1, 1.5),
)  # fmt: skip
"""Everything that can happen, in half a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_call_turn_and_sentence_ends_once(seed: int) -> None:
    """`run` raises otherwise; it also compares the words that were heard of each sentence with its text."""
    fleet = ran(HARD, plans(40, 30.0, seed, replace(SHORT, barge_in=0.3)))
    record = fleet.record
    assert record.n_calls == 40 == record.n_ended + len(record.refused)
    assert record.n_moves and record.n_turns_interrupted and record.n_sentences_done
    assert record.n_turns == record.n_turns_heard + record.n_turns_interrupted + record.n_turns_failed
    assert record.n_sentences == record.n_sentences_done + record.n_sentences_cancelled + record.n_sentences_failed
    states = Counter(node.state for node in fleet.nodes)
    assert sum(node.died_ns is not None for node in fleet.nodes) == 4 and states["gone"] >= 4
    row = figures(fleet, FREE)
    assert 0 < row["utilisation"] <= 1 and row["cost"] > 0
    for node in fleet.nodes:
        lived_ns = (node.died_ns or node.gone_ns or fleet.events.now_ns) - node.ordered_ns
        assert node.replica.busy_ns <= lived_ns + S  # the step in which it died counts whole


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    def result(seed: int) -> Record:
        return ran(HARD, plans(25, 30.0, seed)).record

    assert result(1) == result(1)
    assert result(1) != result(2)


def test_an_event_in_the_past_is_refused() -> None:
    events = Events()
    events.at(5, events.at, 4, print)
    with pytest.raises(ValueError, match="at 4 ns was added at 5 ns"):
        events.run()


# ------------------------------------------------------------- faults that must be seen


def faulty(**methods: Callable[..., Any]) -> MakeReplica:
    """Replicas with these methods in place of their own."""
    kind = type("FaultyReplica", (LightReplica,), methods)
    return lambda *arguments: kind(*arguments)


def test_a_dead_replica_that_speaks_is_seen() -> None:
    with pytest.raises(Violation, match="is dead and"):
        ran(HARD, plans(40, 30.0), make_replica=faulty(kill=lambda self: None))


def test_a_sentence_whose_end_is_lost_is_seen() -> None:
    def forget(self: Any, key: int) -> None:
        if key % 7:
            LightReplica._pass_end(self, key)

    with pytest.raises(Violation, match="began and"):
        ran(FleetSettings(ASSUMED_H200, 2), plans(10), make_replica=faulty(_pass_end=forget))


def test_lost_and_repeated_audio_is_seen() -> None:
    for factor in (0.9, 1.1):

        def pass_on(self: Any, key: int, sound_ns: int, factor: float = factor) -> None:
            LightReplica._pass_on(self, key, round(sound_ns * factor))

        with pytest.raises(Violation, match="words, and"):
            ran(FleetSettings(ASSUMED_H200, 2), plans(10), make_replica=faulty(_pass_on=pass_on))


def test_a_replica_that_computes_for_longer_than_it_lives_is_seen() -> None:
    make = faulty(_settle=lambda self, *rest: (setattr(self, "busy_ns", 10**15), LightReplica._settle(self, *rest)))
    with pytest.raises(Violation, match="has computed for longer"):
        ran(FleetSettings(ASSUMED_H200, 2), plans(10), make_replica=make)


@pytest.mark.slow
def test_a_router_that_does_not_level_is_seen() -> None:
    """The server's own router levels: over 1,000 sentences the most used replica is at most 1.1 times as busy as the
    least used one."""
    busy = {}
    habits = replace(SHORT, call_s=60)
    for name, how in (("ours", {}), ("first", {"router": lambda states, _voice: states[0] if states else None})):
        n, seconds = (200, 200.0) if name == "ours" else (20, 20.0)
        row = figures(ran(FleetSettings(ASSUMED_H200, 3), plans(n, seconds, habits=habits), **how), FREE)
        busy[name] = row["utilisation_of_whole_lives"] | {"sentences": row["sentences"]}
    assert busy["ours"]["sentences"] > 1000
    assert busy["ours"]["n"] == 3 and busy["ours"]["most"] <= 1.1 * busy["ours"]["least"]
    assert busy["first"]["least"] == 0 < busy["first"]["most"]


def test_a_router_that_chooses_a_lost_replica_is_seen() -> None:
    kept: list[ReplicaState] = []

    def router(states: Sequence[ReplicaState], _voice: str | None) -> ReplicaState | None:
        kept[:] = kept or states[:1]
        return kept[0] if kept else None

    with pytest.raises(Violation, match="is gone and gets a sentence"):
        ran(FleetSettings(ASSUMED_H200, 2, losses=(Loss(5.0),)), plans(10), router=router)


# ---------------------------------------------------------------- losses, scaling, canary


@pytest.mark.slow
def test_a_lost_replica_costs_the_silence_until_it_is_noticed() -> None:
    """A closed connection is noticed at once, silence after a second. Audio that was ahead plays meanwhile."""
    silences = {}
    for silent in (False, True):
        settings = FleetSettings(ASSUMED_H200, 3, losses=(Loss(12.0, silent=silent, replaced=False),))
        record = ran(settings, plans(30)).record
        silences[silent] = [ms for _, ms in record.moved]
        assert record.n_moves >= len(record.moved) > 0 and record.n_turns_failed == 0
        assert record.repeated_ns <= record.n_moves * WORD_NS
    assert max(silences[False]) < 1000 and sum(silences[False]) < sum(silences[True])
    assert max(silences[True]) < 1000 + 1500


def test_without_any_replica_turns_fail_after_the_wait_and_calls_are_refused() -> None:
    settings = FleetSettings(ASSUMED_H200, 1, losses=(Loss(8.0, replaced=False),))
    row = figures(ran(settings, plans(20, 15.0)), FREE)
    assert row["turns_failed"] > 0 and row["refused_why"].get("no replica ready", 0) > 0


@pytest.mark.slow
def test_a_replica_comes_when_its_start_is_over_and_no_earlier() -> None:
    found = {}
    for start_s in (5.0, 25.0):
        scaling = Scaling(target=0.05, up_after_s=2, every_s=1)
        fleet = ran(FleetSettings(ASSUMED_H200, 1, start_s=start_s, scaling=scaling), plans(90, 30.0))
        later = [node for node in fleet.nodes if node.ordered_ns]
        assert later and all((node.ready_ns or 0) - node.ordered_ns == start_s * S for node in later)
        before = [sample for sample in fleet.record.samples if sample[0] < later[0].ordered_ns + start_s * S]
        assert {sample[3] for sample in before} == {1}
        found[start_s] = figures(fleet, FREE)["first_audio_ms"]["p99"]
    assert found[5.0] < found[25.0]


@pytest.mark.slow
def test_the_default_target_adds_replicas_before_listeners_hear_gaps() -> None:
    """A rush in five minutes that begins with one replica. With 0.9 replicas come too late. With 0.7 they did, before
    new prompts were fed together: first audio took 2 s then, and takes 0.7 s now."""
    assert Scaling().target == RaySettings().target_load
    rush = calls(Habits(call_s=60.0), Rush(300.0).arrivals_ns(400, 1), 1)
    row = {}
    for target in (RaySettings().target_load, 0.9):
        settings = FleetSettings(ASSUMED_H200, 1, start_s=45.0, scaling=Scaling(target, most=40))
        row[target] = figures(ran(settings, rush, make_replica=light_replicas(5, 1)), FREE)
    chosen, late = row.values()
    assert chosen["turns_with_gap_share"] == 0 == chosen["refused_share"]
    assert chosen["first_audio_ms"]["p99"] < 700 and chosen["utilisation"] > 0.6, "and not with idle replicas"
    assert late["turns_with_gap_share"] > 0.03 and late["first_audio_ms"]["p99"] > 2 * chosen["first_audio_ms"]["p99"]


def test_replicas_leave_when_the_load_is_gone_and_finish_what_they_speak() -> None:
    scaling = Scaling(target=0.5, least=1, every_s=1, down_after_s=5)
    fleet = ran(FleetSettings(ASSUMED_H200, 4, scaling=scaling), plans(12, 20.0))
    left = [node for node in fleet.nodes if node.state == "gone"]
    assert 1 <= len(left) <= 3 and all(node.died_ns is None for node in left)
    assert fleet.record.n_moves == 0 == fleet.record.n_turns_failed
    hours = figures(fleet, FREE)["replica_hours"]
    assert hours < 4 * fleet.events.now_ns / S / 3600


@pytest.mark.slow
def test_a_canary_gets_its_share_of_the_calls_and_is_slower() -> None:
    fleet = ran(FleetSettings(ASSUMED_H200, 3, canary=Canary(0.25, 1, 2.0)), plans(60, 60.0))
    row = figures(fleet, FREE)["canary"]
    assert 0.1 < row["canary"]["n"] / (row["canary"]["n"] + row["others"]["n"]) < 0.4
    assert row["canary"]["p50"] > 1.2 * row["others"]["p50"]
    assert fleet.nodes[3].is_canary and 0 < fleet.nodes[3].n_spoken < sum(node.n_spoken for node in fleet.nodes)


def test_the_limit_of_calls_is_the_servers_own() -> None:
    row = figures(ran(FleetSettings(ASSUMED_H200, 3, n_fronts=2, calls_per_front=3), plans(30)), FREE)
    assert row["live_calls_peak"] == 6 and row["refused_why"]["limit of calls"] > 0


def test_a_sentence_counts_at_its_replica_only_until_all_its_audio_has_come() -> None:
    """As in `EngineConnection`: the load that admission judges is without audio that is only to be heard."""
    call = CallPlan(0, 0, 1, "voice 0", 0.5, (TurnPlan((16,), S, None),))
    fleet = Fleet(FleetSettings(ASSUMED_H200, 1, n_fronts=1), [call])
    front, seen = fleet._fronts[0], []
    for at_ms in range(20, 7000, 20):
        fleet.events.at(at_ms * MS, lambda: seen.append((any(c.sentence for c in fleet.live), front.n_own[0])))
    fleet.run()
    assert [key for key, _ in itertools.groupby(seen)] == [(True, 1), (True, 0), (False, 0)]


@pytest.mark.slow
def test_an_overloaded_engine_refuses_calls() -> None:
    row = figures(ran(FleetSettings(SMALL, 1), plans(30)), FREE)
    assert row["refused_why"]["engine overloaded"] > 0 and row["sentences_begun_overloaded"] > 0


# --------------------------------------------------------------------- inputs and figures


def test_calls_arrive_as_the_rush_says() -> None:
    rush = Rush(1000.0, base=0.25, peak_at=0.5)
    arrivals = rush.arrivals_ns(20_000, 1)
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0 and arrivals[-1] <= 1000 * S
    by_tenth = Counter(min(9, at_ns // (100 * S)) for at_ns in arrivals)
    assert 2.5 < by_tenth[4] / by_tenth[0] < 4 and 0.9 < by_tenth[4] / by_tenth[5] < 1.1


@pytest.mark.slow
def test_a_call_speaks_the_share_of_its_time_that_is_expected() -> None:
    habits = Habits(call_s=200.0)
    fleet = ran(FleetSettings(ASSUMED_H200, 4), plans(30, 30.0, habits=habits))
    assert fleet.record.speech_ns / fleet.record.call_ns == pytest.approx(habits.speaking_share, rel=0.15)


def bench_engine(cost: Cost, rows: Sequence[tuple[float, float]], *, workers: int = 1) -> dict[str, Any]:
    """A result of `bench engine` on an engine with these prices: for each load (rows of a batch, seconds of speech)."""
    results = []
    for n, audio_s in rows:
        counters = {"audio_s": audio_s}
        for name, n_rows in (
            ("prefill", audio_s / 4), ("decode", audio_s * 25 / cost.run_ahead), ("flow", audio_s * 10),
            ("vocode", audio_s),
        ):  # fmt: skip
            batch_ms, row_ms = getattr(cost, name)
            n_batches = n_rows / n
            counters |= {f"{name}_rows": n_rows, f"{name}_batches": n_batches}
            counters[f"{name}_s"] = (n_batches * batch_ms + n_rows * row_ms) * workers / 1000
        results.append({"counters": counters})
    settings = {"workers": workers, "slots": 32, "device": "cuda", "profile": "default", "ahead_ms": 2000}
    return {"settings": settings, "results": results, "commit": "abc"}


@pytest.mark.parametrize("workers", [1, 2])
def test_prices_follow_from_the_counters_of_bench_engine(workers: int) -> None:
    cost = Cost((6, 2), (20, 0.5), (4, 0.4), (8, 1), run_ahead=5)
    prices = from_bench_engine(bench_engine(cost, [(1, 24), (8, 200), (30, 700)], workers=workers), "gpu.json")
    assert prices.measured and prices.sizes == wide(32) and prices.cost.run_ahead == 5
    for name in ("prefill", "decode", "flow", "vocode"):
        assert getattr(prices.cost, name) == pytest.approx(getattr(cost, name), rel=1e-6)
    assert ("lanes are simulated as one" in " ".join(prices.notes)) == (workers == 2)


def test_one_load_cannot_tell_a_batch_from_its_rows() -> None:
    prices = from_bench_engine(bench_engine(Cost((6, 2), (20, 0), (4, 1), (8, 1)), [(1, 24)]), "one.json")
    assert prices.cost.decode == pytest.approx((0, 20)) and "costs nothing" in " ".join(prices.notes)


def test_the_measured_loads_are_simulated_again_with_the_derived_prices() -> None:
    """A block of 22 tokens: a prefill that draws one id, 5 steps that draw 5 each, 10 Euler steps, the vocoder."""
    cost = Cost((6, 2), (20, 0.5), (4, 0.4), (8, 1), run_ahead=5)
    document = bench_engine(cost, [(1, 24), (4, 96)])
    document["settings"]["seconds"] = 4.0
    for row, callers in zip(document["results"], (1, 4), strict=True):
        row |= {"mode": "closed", "concurrency": callers, "turns": 2 * callers, "cancelled": 0, "paced": False}
        row |= {"first_audio_ms_p50": 200.0, "audio_seconds_per_second": 5.0}
    one, four = price_check.check(from_bench_engine(document, "gpu.json"), document)
    first_block_ms = (6 + 2) + 5 * 20.5 + 10 * (4 + 0.4 * 22 / 25) + 8 + 22 / 25
    assert one["simulated"]["first_audio_ms_p50"] == pytest.approx(first_block_ms, abs=0.1)
    assert one["apart"]["first_audio_ms_p50"] == pytest.approx(first_block_ms / 200 - 1, abs=0.001)
    assert four["simulated"]["first_audio_ms_p50"] > first_block_ms
    assert four["simulated"]["audio_seconds_per_second"] > 2 * one["simulated"]["audio_seconds_per_second"]


def test_a_result_without_counters_is_refused() -> None:
    for document in ({}, {"settings": {}, "results": []}, {"results": [{"counters": {}}]}, []):
        with pytest.raises(ValueError, match=r"x\.json"):
            from_bench_engine(document, "x.json")  # type: ignore[arg-type]


def test_the_batches_of_the_h200_are_those_of_the_engine() -> None:
    pytest.importorskip("torch")
    from telephony_tts.engines.cosyvoice2.device import runner

    sizes, cost = NAMED_PRICES["h200"].sizes, NAMED_PRICES["h200"].cost
    assert (sizes.prefill, cost.run_ahead) == (runner.PREFILL_ROWS, runner.RUN_AHEAD)


def test_prices_say_whether_they_are_assumed() -> None:
    for name, prices in NAMED_PRICES.items():
        told, is_assumed = prices.described(), "assumed" in name
        assert told["assumed"] is is_assumed and told["measured"] is not is_assumed and prices.label == name
        assert any("ASSUMED" in note for note in told["notes"]) is is_assumed
        assert prices.scaled(2, "x").cost.flow[0] == 2 * prices.cost.flow[0]
    with pytest.raises(ValueError, match="more than 0"):
        ASSUMED_H200.scaled(0, "x")


@pytest.mark.parametrize("threshold", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("guess", [1, 5, 16, 60])
def test_the_least_number_is_found(threshold: int, guess: int) -> None:
    asked: list[int] = []

    def reaches(n: int) -> bool:
        asked.append(n)
        return n >= threshold

    found, tried = sizing.least_number(guess, reaches)
    assert found == threshold and len(asked) == len(set(asked)) == len(tried) <= sizing.MOST_RUNS
    near, _ = sizing.least_number(guess, lambda n: n >= threshold, 0.25)
    assert threshold <= near <= max(threshold + 1, 1.34 * threshold)
    with pytest.raises(ValueError, match="no number of replicas"):
        sizing.least_number(guess, lambda _: False)


def test_listeners_in_time_follow_from_the_prices() -> None:
    """25 tokens: 5 steps of 20 + n/2 ms, 10 of 4 + 0.4 n, one of 8 + n, and a prefill of 6/4 + 2 n every 4 s."""
    n = sizing.listeners_in_time(ASSUMED_H200, 4.0)
    per_s = [5 * (20 + k / 2) + 10 * (4 + 0.4 * k) + 8 + k + (-(-k // 4) * 6 + 2 * k) / 4 for k in (n, n + 1)]
    assert per_s[0] <= 1000 < per_s[1]


def test_targets_name_what_was_missed() -> None:
    good = {"refused_share": 0.0, "turns_with_gap_share": 0.0, "first_audio_ms": {"p99": 400.0}, "turns_failed": 0}
    assert Targets().missed_by(good) == []
    bad = {"refused_share": 0.1, "turns_with_gap_share": 0.1, "first_audio_ms": {"p99": 501.0}, "turns_failed": 1}
    assert Targets().missed_by(bad) == ["refused_share", "turns_with_gap_share", "first_audio_ms.p99", "turns_failed"]


@pytest.mark.slow
def test_the_cost_is_that_of_the_hours() -> None:
    turn = TurnPlan((5,), 1 * S, None)
    call = CallPlan(0, 0, 3600 * S, "voice 0", 0.5, (turn,) * 2000)
    fleet = ran(FleetSettings(ASSUMED_H200, 2, n_fronts=9), [call])
    row = figures(fleet, Prices(4.0, 0.5, fronts_per_node=8))
    hours = fleet.events.now_ns / S / 3600
    assert row["cost"] == pytest.approx(hours * (2 * 4.0 + 2 * 0.5), abs=0.01)
    assert row["cost_per_call_hour"] == pytest.approx(9.0, rel=0.01)


@pytest.mark.slow
def test_the_picture_has_the_series_of_each_run(tmp_path: Path) -> None:
    record = ran(FleetSettings(SMALL, 1), plans(20)).record
    series = picture.series(record.samples, record.first_audio, record.refused)
    assert sum(series["refused"]) == len(record.refused) > 0 and len(series["first_audio_ms_p99"]) == picture.BINS
    assert max(series["live_calls"]) == max(sample[1] for sample in record.samples)
    out = tmp_path / "fleet.png"
    picture.draw({"one": series, "two": series}, "a title", out)
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and out.stat().st_size > 10_000
