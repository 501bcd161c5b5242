"""`make fleet-demo`, run in the environment that has Ray."""

from __future__ import annotations

import re
import subprocess

import pytest
from ray_rig import ROOT, ray_python, variables

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def test_the_demo_kills_a_replica_and_loses_no_call() -> None:
    demo = ROOT / "examples" / "fleet_demo" / "demo.py"
    ran = subprocess.run(
        [str(ray_python()), str(demo), "--calls", "4", "--speak-s", "12"],
        capture_output=True, text=True, timeout=300, env=variables(), cwd=ROOT, check=False,
    )  # fmt: skip
    shown = ran.stdout + ran.stderr
    assert ran.returncode == 0, shown
    assert "4 of 4 calls went on without an error" in shown and "three replicas again" in shown
    rows = dict(re.findall(r"^(front processes|turns that failed|turns spoken to their end) .* (\d+)$", shown, re.M))
    assert rows["front processes"] == "2" and rows["turns that failed"] == "0"
    assert int(rows["turns spoken to their end"]) >= 4, shown
