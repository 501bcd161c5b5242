"""Watchers from a fork server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from forked_asyncio import forking
from forked_process import ForkServer, fork_server


@pytest.fixture(scope="module")
def watcher_forks() -> Iterator[ForkServer]:
    from ray_rig import ray_python, variables

    with fork_server("ray", "telephony_tts.engines.ray.watcher", environment=variables(), python=ray_python()) as forks:
        yield forks


@pytest.fixture
def forked_watchers(watcher_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server that has imported Ray forks the watchers of fronts."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(watcher_forks, "engines.ray.watcher"))
