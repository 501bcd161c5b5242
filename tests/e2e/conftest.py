"""Calls here are on the real clock, a frame every 20 ms: little else may keep the machine busy meanwhile, and nothing
else where a test does so itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUSY = ("cosyvoice2", "embedded_voice", "languages", "voice_barge_in", "floods", "server", "faults")
"""Files that compute speech, flood a server, or measure what it costs."""
WITHOUT_CLOCK = ("command_line",)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem.removeprefix("test_")
        if item.path.is_relative_to(HERE) and not name.startswith(WITHOUT_CLOCK):
            item.add_marker(pytest.mark.alone if name.startswith(BUSY) else pytest.mark.timed)
