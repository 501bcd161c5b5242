"""Engine servers that are forked. With this file pytest also puts the folder on the path, so that other folders can
import `engine_servers`."""

from __future__ import annotations

from collections.abc import Iterator

import engine_servers
import pytest
from forked_process import ForkServer, fork_server


@pytest.fixture(scope="module")
def server_forks() -> Iterator[ForkServer]:
    folder = "telephony_tts.engines"
    engines = (f"{folder}.remote.server", f"{folder}.fake.engine")
    with fork_server("telephony_tts.cli.main", "telephony_tts.app.serving", *engines) as forks:
        yield forks


@pytest.fixture
def forks(server_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server that has the command line forks the engine servers. Tests that judge the start or the end of such
    a server do not use this fixture."""
    monkeypatch.setattr(engine_servers, "subprocess", server_forks)
