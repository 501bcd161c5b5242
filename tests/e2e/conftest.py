"""Calls here are on the real clock, a frame every 20 ms: little else may keep the machine busy meanwhile, and where a
test itself does, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUSY = ("cosyvoice2", "embedded_voice", "voice_barge_in", "command_line", "floods", "server", "faults")
"""Files that compute speech, flood a server, or measure what it costs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            is_busy = item.path.stem.removeprefix("test_").startswith(BUSY)
            item.add_marker(pytest.mark.alone if is_busy else pytest.mark.timed)
