"""Watchers that are forked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from forked_asyncio import forking
from forked_process import Forks, preloaded


@pytest.fixture(scope="module")
def watcher_forks() -> Iterator[Forks]:
    from ray_rig import ray_python, variables

    with preloaded("ray", "telephony_tts.engines.ray.watcher", environment=variables(), python=ray_python()) as forks:
        yield forks


@pytest.fixture
def forked_watchers(watcher_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchers of fronts are forked from a process that has imported Ray."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(watcher_forks, "engines.ray.watcher"))
