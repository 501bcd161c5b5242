"""Engine servers that are forked. With this file pytest also puts the folder on the path, so that other folders can
import `engine_servers`."""

from __future__ import annotations

from collections.abc import Iterator

import engine_servers
import pytest
from forked_process import Forks, preloaded


@pytest.fixture(scope="module")
def server_forks() -> Iterator[Forks]:
    folder = "telephony_tts.engines"
    with preloaded("telephony_tts.cli", "telephony_tts.app", f"{folder}.remote.server", f"{folder}.fake") as forks:
        yield forks


@pytest.fixture
def forks(server_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine servers are forked from a process that has the command line. Without this fixture they are real ones: for
    tests that judge their start or their end."""
    monkeypatch.setattr(engine_servers, "subprocess", server_forks)
