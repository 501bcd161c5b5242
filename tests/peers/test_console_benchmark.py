"""benchmarks/console.py runs, and its figures are of what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def test_a_tiny_run_has_all_figures(tmp_path: Path) -> None:
    out = tmp_path / "console.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "console.py"), "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["machine"]["cores"] >= 1 and document["settings"]["quick"] is True
    results = document["results"]
    sound = results["first_sound"]
    assert sound["turns"] == 2
    turn = sound["first_turn"]
    assert 0 < turn["server_first_ms"] < turn["network_first_ms"] < turn["audible_first_ms"]
    assert 50_000 < results["page"]["bytes"] < 150_000
    assert [row["cpu_slowed"] for row in results["page"]["loads"]] == [1, 4]
    none, one = results["watching"]
    assert (none["snapshots"], none["errors"], one["errors"]) == (0, [], []) and one["snapshots"] >= 1
    assert none["frames"] > 0 and one["frames"] > 0
