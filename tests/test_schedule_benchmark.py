"""benchmarks/schedule.py says that its costs are inputs, and its figures follow from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_here import run_here

from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "schedule.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_here(SCRIPT, *arguments)


def test_higher_prices_make_first_audio_later(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for price in ("flow=0,10", "flow=0,60"):
        out = tmp_path / "out.json"
        done = run("--seconds", "15", "--callers", "1,3", "--price", price, "--json", str(out))
        assert done.returncode == 0, done.stderr
        assert "prices are inputs and nothing was measured" in done.stdout
        results = json.loads(out.read_text(encoding="utf-8"))["results"]
        assert results["measured"] is False and results["prices_ms"]["flow"] == [0.0, float(price[7:])]
        found += results["runs"]
    assert [row["callers"] for row in found] == [1, 3, 1, 3]
    # The first block of a single caller has 22 tokens: ten Euler steps of 22/25 of a row.
    assert abs(found[2]["first_audio_ms_p50"] - found[0]["first_audio_ms_p50"] - 10 * 50 * 22 / 25) < 1
    assert found[3]["first_audio_ms_p95"] > found[1]["first_audio_ms_p95"]
    assert found[1]["audio_seconds_per_second"] > 2 * found[0]["audio_seconds_per_second"]


def test_a_caller_that_starts_and_cancels_causes_gaps_only_without_the_rules_of_the_schedule(tmp_path: Path) -> None:
    """Its own utterances are not part of the figures."""
    found: list[dict[str, Any]] = []
    cancelling = ("--cancelling", "1")
    for more in ((), cancelling, (*cancelling, "--without", "delay"), ("--without", "delay", "--without", "batching")):
        out = tmp_path / "out.json"
        done = run("--seconds", "25", "--cost", "zen5", "--callers", "4", "--scale", "0.33", *more, "--json", str(out))
        assert done.returncode == 0, done.stderr
        found += json.loads(out.read_text(encoding="utf-8"))["results"]["runs"]
    undisturbed, with_cancelling, without_delay, by_deadline = found
    assert undisturbed["turns"] <= with_cancelling["turns"] + 3 and with_cancelling["cancelled"] == 0
    assert undisturbed["underruns"] == 0 and with_cancelling["underruns"] < without_delay["underruns"]
    assert undisturbed["decode_rows"] > by_deadline["decode_rows"]


def test_first_audio_grows_with_the_scale_of_the_prices(tmp_path: Path) -> None:
    found = []
    for scale in ("1", "1.5"):
        out = tmp_path / "out.json"
        done = run("--seconds", "10", "--callers", "1", "--scale", scale, "--json", str(out))
        assert done.returncode == 0, done.stderr
        found.append(json.loads(out.read_text(encoding="utf-8"))["results"]["runs"][0]["first_audio_ms_p50"])
    assert abs(found[1] - 1.5 * found[0]) < 1
    done = run("--quick", "--scale", "0")
    assert done.returncode == 2 and "--scale 0.0: expected more than 0" in done.stderr


def test_a_step_of_a_wide_machine_is_one_stage_as_in_the_engine(tmp_path: Path) -> None:
    assert not BatchSizes().all_stages
    found = []
    for steps in ((), ("--steps", "one"), ("--steps", "all")):
        out = tmp_path / "out.json"
        done = run("--cost", "h200", "--seconds", "10", "--callers", "8", *steps, "--json", str(out))
        assert done.returncode == 0, done.stderr
        found.append(json.loads(out.read_text(encoding="utf-8"))["results"]["runs"])
    by_default, one, all_at_once = found
    assert by_default == one != all_at_once
    assert "(default one, as in the engine)" in " ".join(run("--help").stdout.split())


def test_a_malformed_price_is_refused_with_the_expected_form() -> None:
    for price in ("flow=1", "speak=1,2", "flow=-1,2"):
        done = run("--quick", "--price", price)
        assert done.returncode == 2 and f"--price {price}: expected STAGE=BATCH,ROW" in done.stderr


def test_help_says_that_nothing_is_measured() -> None:
    command = [sys.executable, str(SCRIPT), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "python benchmarks/schedule.py --cost" in done.stdout and "Nothing is measured" in done.stdout
