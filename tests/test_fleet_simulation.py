"""benchmarks/fleet.py answers how many replicas so many calls need, and its figures follow from the prices."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_here import run_here

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import fleet
from harness.cost import Cost
from harness.engine_prices import NAMED_PRICES, EnginePrices, from_bench_engine, wide

from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SMALL = EnginePrices("small", Cost((4, 0), (1, 0.8), (0.3, 4.5), (2, 38)), BatchSizes(decode=4), 8)
"""A CPU: one block at a time."""
COST = Cost((6, 2), (20, 0.5), (4, 0.4), (8, 1), run_ahead=5)


def slower(prices: EnginePrices, factor: float) -> EnginePrices:
    pairs = {name: getattr(prices.cost, name) for name in ("prefill", "decode", "flow", "vocode")}
    slow = {name: (batch * factor, row * factor) for name, (batch, row) in pairs.items()}
    return replace(prices, cost=replace(prices.cost, **slow))


# ------------------------------------------------------------------------------ the answer


@pytest.mark.parametrize("threshold", [0, 1, 3, 7, 40, 333, 999])
def test_the_most_calls_are_found(threshold: int) -> None:
    asked: list[int] = []

    def carries(n: int) -> bool:
        asked.append(n)
        return n <= threshold

    found = fleet.most_calls(carries, 500)
    most = min(threshold, 500)
    assert most * (1 - fleet.TOLERANCE) - 1 < found <= most and (found > 0) == (most > 0)
    assert len(asked) == len(set(asked)) <= 16 and max(asked) <= 500


def test_replicas_carry_all_calls_also_after_the_spare_ones_are_lost() -> None:
    assert [fleet.replicas_needed(n, 100, 2) for n in (1, 100, 101, 1000)] == [3, 3, 4, 12]


def test_a_target_that_is_missed_is_seen() -> None:
    targets = fleet.Targets(500.0, 0.01)
    good = {"turns": 10, "first_audio_ms": {"p99": 500.0}, "turns_with_gap_share": 0.01}
    assert targets.are_met_by(good)
    assert not targets.are_met_by({**good, "first_audio_ms": {"p99": 501.0}})
    assert not targets.are_met_by({**good, "turns_with_gap_share": 0.02})
    assert not targets.are_met_by({"turns": 0, "first_audio_ms": {"n": 0}, "turns_with_gap_share": 0.0})


@pytest.mark.slow
def test_the_command_tells_how_many_replicas(tmp_path: Path) -> None:
    """With a file of bench engine, whose replica carries more than these 4 calls."""
    (tmp_path / "gpu.json").write_text(json.dumps(measured_loads()), encoding="utf-8")
    out = tmp_path / "out.json"
    flags = ("--calls", "4", "--spare", "2", "--engine", str(tmp_path / "gpu.json"), "--seconds", "50")
    done = run_here(BENCHMARKS / "fleet.py", *flags, "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "4 calls need 3 replicas: 4 calls on each, and 2 may be lost." in done.stdout
    results = json.loads(out.read_text(encoding="utf-8"))["results"]
    assert results["replicas_needed"] == 3 and results["calls_on_one_replica"] == 4 and results["simulated"] is True
    assert [row["callers"] for row in results["price_check"]] == [1, 4]


@pytest.mark.slow
def test_the_command_says_if_no_number_is_enough_and_names_a_wrong_engine() -> None:
    done = run_here(BENCHMARKS / "fleet.py", "--calls", "2", "--p99-ms", "1", "--json", "/dev/null")
    assert done.returncode == 0 and "Not even one call reaches the targets" in done.stdout
    done = run_here(BENCHMARKS / "fleet.py", "--engine", "no.json")
    assert done.returncode == 2 and "--engine no.json: no such file" in done.stderr


# ------------------------------------------------------------------------- the simulation


def test_a_call_speaks_the_share_of_its_time_that_is_expected() -> None:
    """One call on an engine that costs next to nothing: 2 sentences of 4.2 s, then 8 s of the caller's."""
    row = fleet.one_replica(slower(NAMED_PRICES["h200"], 0.01), 8, 300.0, 1)
    assert row["turns"] == pytest.approx(8 * 285 / (2 * 10.5 * 0.4 + 8), rel=0.1)
    assert row["turns_with_gap_share"] == 0.0 and row["first_audio_ms"]["p99"] < 5


@pytest.mark.slow
def test_more_calls_and_a_slower_engine_make_first_audio_later() -> None:
    rows = [
        fleet.one_replica(prices, n_calls, 50.0, 1)
        for prices, n_calls in ((SMALL, 1), (SMALL, 6), (slower(SMALL, 2), 1), (SMALL, 16))
    ]
    alone, six, slow, overloaded = (row["first_audio_ms"]["p99"] for row in rows)
    assert alone < six < overloaded and slow == pytest.approx(2 * alone, rel=0.01)
    assert rows[0]["turns_with_gap_share"] == 0 < rows[3]["turns_with_gap_share"]
    assert 0 < rows[0]["busy"] < rows[1]["busy"] < 1
    assert rows[0] == fleet.one_replica(SMALL, 1, 50.0, 1), "equal seeds give equal runs"


def test_a_late_second_sentence_is_a_gap() -> None:
    class Said:
        underruns_ns: Sequence[int] = ()

        def __init__(self, came_ns: int, deadline_ns: int) -> None:
            self.arrivals, self.deadline_ns = [(came_ns, 100)], deadline_ns

    first, in_time, late = Said(50, 0), Said(149, 150), Said(151, 150)
    assert not fleet.Turn(0, [first, in_time]).has_gap  # type: ignore[list-item]
    assert fleet.Turn(0, [first, late]).has_gap  # type: ignore[list-item]


# --------------------------------------------------------------------------------- prices


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
    assert prices.sizes == wide(32) and prices.cost.run_ahead == 5
    for name in ("prefill", "decode", "flow", "vocode"):
        assert getattr(prices.cost, name) == pytest.approx(getattr(cost, name), rel=1e-6)
    assert ("lanes are simulated as one" in " ".join(prices.notes)) == (workers == 2)


def test_one_load_cannot_tell_a_batch_from_its_rows() -> None:
    prices = from_bench_engine(bench_engine(Cost((6, 2), (20, 0), (4, 1), (8, 1)), [(1, 24)]), "one.json")
    assert prices.cost.decode == pytest.approx((0, 20)) and "costs nothing" in " ".join(prices.notes)


def measured_loads() -> dict[str, Any]:
    """Two loads of a closed loop, of 1 and 4 callers with turns of 4 s."""
    document = bench_engine(COST, [(1, 24), (4, 96)])
    document["settings"]["seconds"] = 4.0
    for row, callers in zip(document["results"], (1, 4), strict=True):
        row |= {"mode": "closed", "concurrency": callers, "turns": 2 * callers, "cancelled": 0, "paced": False}
        row |= {"first_audio_ms_p50": 200.0, "audio_seconds_per_second": 5.0}
    return document


def test_the_measured_loads_are_simulated_again_with_the_derived_prices() -> None:
    """A block of 22 tokens: a prefill that draws one id, 5 steps that draw 5 each, 10 Euler steps, the vocoder."""
    prices = from_bench_engine(measured_loads(), "gpu.json")
    one, four = (fleet.closed_loop(prices, n, 2, 10, False) for n in (1, 4))
    first_block_ms = (6 + 2) + 5 * 20.5 + 10 * (4 + 0.4 * 22 / 25) + 8 + 22 / 25
    assert one["first_audio_ms_p50"] == pytest.approx(first_block_ms, abs=0.1)
    assert four["first_audio_ms_p50"] > first_block_ms
    assert four["audio_seconds_per_second"] > 2 * one["audio_seconds_per_second"]


def test_fewer_euler_steps_are_simulated_as_ten_cheaper_ones() -> None:
    document = bench_engine(COST, [(1, 24), (8, 200)])
    document["settings"]["flow_steps"] = 5
    flow = from_bench_engine(document, "gpu.json").cost.flow
    # A batch of n/2 rows took 4 + 0.4 n ms; two of the ten steps stand for one.
    assert flow == pytest.approx((2.0, 0.4), rel=1e-6)


def test_a_result_of_the_small_model_is_refused() -> None:
    document = bench_engine(COST, [(1, 24), (8, 200)])
    document["settings"]["family"] = "300m"
    with pytest.raises(ValueError, match=r"x\.json: is of CosyVoice-300M"):
        from_bench_engine(document, "x.json")


def test_a_result_without_counters_is_refused() -> None:
    for document in ({}, {"settings": {}, "results": []}, {"results": [{"counters": {}}]}, []):
        with pytest.raises(ValueError, match=r"x\.json"):
            from_bench_engine(document, "x.json")  # type: ignore[arg-type]


def test_the_batches_of_the_h200_are_those_of_the_engine() -> None:
    pytest.importorskip("torch")
    from telephony_tts.engines.cosyvoice2.device import runner

    sizes, cost = NAMED_PRICES["h200"].sizes, NAMED_PRICES["h200"].cost
    assert (sizes.prefill, cost.run_ahead) == (runner.PREFILL_ROWS, runner.RUN_AHEAD)
