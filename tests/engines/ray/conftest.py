"""The folder with `PreloadedDriver` is on the path. It is last: other folders have files of the same names.

And watchers that are forked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_asyncio import forking
from forked_process import Forks, preloaded

sys.path.append(str(Path(__file__).resolve().parents[2] / "peers"))


@pytest.fixture(scope="module")
def watcher_forks() -> Iterator[Forks]:
    from ray_rig import ray_python, variables

    with preloaded("ray", "telephony_tts.engines.ray.watcher", environment=variables(), python=ray_python()) as forks:
        yield forks


@pytest.fixture
def forked_watchers(watcher_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchers of fronts are forked from a process that has imported Ray."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(watcher_forks, "engines.ray.watcher"))
