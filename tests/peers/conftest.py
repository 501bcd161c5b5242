"""The tests of this folder start servers as the end-to-end tests and those of several fronts do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_process import Forks
from forked_voice_makers import fork_makers, preloaded_makers

for folder in ("e2e", "fronts"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))


@pytest.fixture(scope="module", autouse=True)
def preloaded_drivers() -> Iterator[None]:
    """The tests of a module share the processes that have imported a client's packages (`preloaded_driver.py`)."""
    yield
    from environment import end_preloaded

    end_preloaded()


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    """A browser that keeps what the console plays."""
    from browser import chromium
    from console_page import recorder_served

    with chromium() as address, recorder_served():
        yield address


@pytest.fixture(scope="module")
def maker_forks() -> Iterator[Forks]:
    with preloaded_makers() as forks:
        yield forks


@pytest.fixture
def forked_makers(maker_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that make voices are forked from one that has imported PyTorch. Without this fixture they are real
    ones: for tests that judge their start or their end."""
    fork_makers(maker_forks, monkeypatch)
