"""The benchmark of files that are read again beside speaking calls, in its tiny form. Lateness is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the benchmarks read Linux's /proc"),
]


def test_no_turn_changes_its_sound_while_files_are_read_again(tmp_path: Path) -> None:
    out = tmp_path / "reload.json"
    command = [sys.executable, "-m", "benchmarks.ops_parts.reload", "--quick", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))["results"]
    assert found["wrong_turns"] == 0 and found["errors"] == [] and found["turns"] >= found["calls"]
    assert found["reloads"] >= 2 and all(n >= 1 for n in found["files_loaded"].values()), found["files_loaded"]
    assert [set(row) for row in found["rows"]] == [{"what", "reached", "to_reach"}] * 2
