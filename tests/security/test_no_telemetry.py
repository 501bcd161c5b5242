"""The server reports to nobody. onnxruntime would: it keeps an id of the machine in the home and sends events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_no_package_keeps_an_id_of_the_machine_to_report_with(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # The same packages report nothing where these are set, as in CI.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    command = [sys.executable, "-m", "telephony_tts", "say", "Hello.", str(tmp_path / "hello.wav")]
    subprocess.run(command, check=True, timeout=120, env={**environment, "HOME": str(home)}, capture_output=True)
    assert (tmp_path / "hello.wav").stat().st_size > 1000
    assert list(home.rglob("*")) == []
