"""`make ops-demo`: a server, a real Prometheus, an experiment of two voices, and its report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.peer, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]


def test_the_demo_compares_two_voices_and_changes_the_experiment() -> None:
    demo = ROOT / "examples" / "ops_demo" / "demo.py"
    ran = subprocess.run(
        [sys.executable, str(demo), "--calls", "90", "--at-once", "12"],
        capture_output=True, text=True, timeout=300, cwd=ROOT, check=False,
    )  # fmt: skip
    shown = ran.stdout + ran.stderr
    assert ran.returncode == 0, shown
    n_by_arm = {arm: int(n) for n, arm in re.findall(r"^    (\d+) calls: (.+)$", ran.stdout, re.M)}
    assert sum(n_by_arm.values()) == 90 and set(n_by_arm) == {"control", "en-gb"}
    for arm, n in n_by_arm.items():
        row = re.search(rf"^  {arm} +(\d+) +(\d+) +(.+)$", ran.stdout, re.M)
        assert row is not None, shown
        # increase() extrapolates to the edges of its range.
        assert abs(int(row[1]) - n) <= 1 + 0.05 * n and abs(int(row[2]) - 3 * n) <= 3 + 0.05 * 3 * n, shown
        assert "fewer than" not in row[3], shown
    assert "en-gb against control:" in ran.stdout and "5 of 5 calls: en-gb" in ran.stdout
    audit = json.loads(ran.stdout.partition("the audit line of the last call\n")[2].splitlines()[0])
    assert audit["event"] == "call_audit" and audit["key"] == "demo-team" and audit["arm"] == "british-voice/en-gb"
    assert audit["voices"] == ["espeak/en-gb"] and audit["turns"] == 3
