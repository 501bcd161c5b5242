"""benchmarks/isolation.py in its tiny form: it measures both isolations beside a busy engine. No figure is judged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "isolation.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the benchmarks read Linux's /proc"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_thread_and_process_are_measured_beside_an_engine_that_speaks(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"results": {"other": {"kept": True}, "tiny": {"kept": False}}}), encoding="utf-8")
    done = run("--quick", "--add", "--json", str(out))
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert set(document) == {"machine", "commit", "settings", "results"}
    assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(document))
    assert document["results"]["other"] == {"kept": True}
    (one,) = document["results"]["tiny"]["rounds"]
    assert list(one) == ["thread", "process"]
    for name, found in one.items():
        assert found["errors"] == [], name
        assert found["late_ms"]["n"] > 50, name
        assert found["audio_seconds_per_second"] > 0 and found["lanes_busy_share"] > 0, name


def test_an_unknown_arm_is_refused_with_the_known_ones() -> None:
    done = run("--arms", "thread,fibre")
    assert done.returncode == 2 and "no arm 'fibre'; the arms are idle, thread, process" in done.stderr


def test_help_has_examples() -> None:
    done = run("--help")
    assert done.returncode == 0 and "python benchmarks/isolation.py" in done.stdout
