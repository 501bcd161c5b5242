"""For tests of the engine's own process that judge neither its start nor its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from preloaded_engine import PreloadedEngine

from telephony_tts.engines.cosyvoice2.hosting import process_host


@pytest.fixture(scope="module")
def preloaded() -> Iterator[PreloadedEngine]:
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = PreloadedEngine({**process_host.QUIET_THREADS, **os.environ, **own})
    yield process
    process.close()


@pytest.fixture
def forks(preloaded: PreloadedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine processes are forked from one that has imported torch. Without this fixture they are real ones."""
    monkeypatch.setattr(process_host, "subprocess", preloaded)
