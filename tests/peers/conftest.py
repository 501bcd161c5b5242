"""The tests of this folder start servers as the end-to-end tests and those of several fronts do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_voice_makers import forked_makers, maker_forks  # noqa: F401

for folder in ("e2e", "fronts"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))


@pytest.fixture(scope="module", autouse=True)
def drivers_fork_servers() -> Iterator[None]:
    """The tests of a module share the fork servers that have imported a client's packages (`forked_process.py`)."""
    yield
    from environment import end_fork_servers

    end_fork_servers()


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    """A browser that keeps what the console plays."""
    from browser import chromium
    from console_page import recorder_served

    with chromium() as address, recorder_served():
        yield address
