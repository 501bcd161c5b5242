"""benchmarks/engine.py in its tiny form: its counts are right, and its result is machine-readable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmark_here import run_here

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "engine.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the benchmarks read Linux's /proc"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    out = tmp_path_factory.mktemp("bench") / "out.json"
    ended = run("--quick", "--json", str(out))
    assert ended.returncode == 0, ended.stderr
    return ended, json.loads(out.read_text(encoding="utf-8"))


def test_the_result_has_machine_commit_and_settings(done: tuple[Any, dict[str, Any]]) -> None:
    _, document = done
    assert set(document) == {"machine", "commit", "settings", "results"}
    assert document["machine"]["libraries"]["torch"][0].isdigit()
    assert document["settings"]["size"] == "tiny" and document["settings"]["threads"] == 1
    assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(document))


def test_it_counts_the_speech_tokens_before_the_first_sound(done: tuple[Any, dict[str, Any]]) -> None:
    _, document = done
    rows = document["results"]["first_audio"]
    drawn = {(row["profile"], row["prompt_tokens"]): row["speech_tokens"] for row in rows}
    assert drawn == {
        ("default", 87): 25, ("default", 0): 28, ("cpu", 87): 25, ("cpu", 0): 28, ("fast", 87): 13, ("fast", 0): 28,
        ("upstream", 87): 41, ("upstream", 0): 28,
    }  # fmt: skip


def test_every_part_was_measured(done: tuple[Any, dict[str, Any]]) -> None:
    _, document = done
    results = document["results"]
    assert results["utterance"]["tokens"] == 60
    chunks = results["chunks"]
    assert chunks["frames"] == [50, 50] and chunks["frames_seen"] == [200, 250]
    assert min(chunks["gflop_per_s"]) > 0 and chunks["expected_of_attention"] > 1
    # Attention is proportional to the number of keys: 250 frames against 200.
    grown = chunks["gflop_attention"][1] - chunks["gflop_attention"][0]
    assert grown == pytest.approx(chunks["gflop_attention"][0] / 4, rel=0.1)
    totals = results["totals"]
    assert {"ratio_constant_hops", "ratio_growing_hops", "ratio_default_against_upstream"} <= set(totals)
    assert all(totals[way]["flow_s"]["median"] > 0 for way in totals if "," in way)
    for row in results["end_to_end"]:
        assert row["rtf"]["median"] > 0
        # "other" is the engine's own time: planning, handing out audio, and the work between the networks.
        assert min(row["stages"].values()) > 0
        assert {"LM prefill_s", "LM decode_s", "flow_s", "vocoder_s", "LM per token, ms"} <= set(row["stages"])
    memory = results["memory"]
    per_frame = 2 * 2 * 16 * 4 * 10 * 2  # keys and values, 2 heads of 16, 4 layers, 10 steps, 2 branches
    per_token = 2 * 32 * (2 + 2 * 2) + 2 * per_frame
    assert memory["flow, bytes per second"] == 25 * per_token * 4
    assert memory["LM, bytes per second"] == 25 * 2 * 2 * 2 * 16 * 4
    assert results["loading"]["prompt_s"]["median"] > 0


def test_progress_goes_to_stderr_and_figures_to_stdout(done: tuple[Any, dict[str, Any]]) -> None:
    ended, _ = done
    assert "whole utterance, recomputed, 25" in ended.stderr
    assert "memory of one utterance" in ended.stdout and "loading" in ended.stdout
    assert "writing random weights" not in ended.stdout


def test_help_has_examples() -> None:
    told = run_here(SCRIPT, "--help").stdout
    assert "python benchmarks/engine.py" in told and "--recompute" in told and "disk" in told


def test_each_network_can_have_its_own_precision(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    networks = ("--dtype", "bfloat16", "--lm-dtype", "int8", "--vocoder-dtype", "float32")
    tiny = ("--size", "tiny", "--seconds", "1.6", "--repetitions", "1", "--recompute", "0")
    ended = run_here(SCRIPT, *tiny, *networks, "--json", str(out))
    assert ended.returncode == 0, ended.stderr
    results = json.loads(out.read_text(encoding="utf-8"))["results"]
    assert results["utterance"]["precision"] == {"lm": "int8", "flow": "bfloat16", "vocoder": "float32"}
    memory = results["memory"]
    # Keys and values of the flow take half of float32; those of an int8 language model stay in float32.
    assert memory["flow, bytes per second"] == 25 * (2 * 32 * (2 + 2 * 2) + 2 * 2 * 2 * 16 * 4 * 10 * 2) * 2
    assert memory["LM, bytes per second"] == 25 * 2 * 2 * 2 * 16 * 4
    refused = run_here(SCRIPT, "--quick", "--lm-dtype", "mixed")
    assert refused.returncode == 2 and "--lm-dtype" in refused.stderr and "int8" in refused.stderr
