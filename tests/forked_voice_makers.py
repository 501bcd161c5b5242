"""The processes that check recordings and make voices, from a fork server that has PyTorch (`forked_process`).

The `conftest.py` of a folder whose tests make voices imports both fixtures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from forked_asyncio import forking
from forked_process import ForkServer, fork_server

_ENGINE = "telephony_tts.engines.cosyvoice2"


@pytest.fixture(scope="module")
def maker_forks() -> Iterator[ForkServer]:
    """A fork server with the imports of the process that makes voices."""
    modules = (f"{_ENGINE}.hosting.voice_maker_process", f"{_ENGINE}.voices.enrolment", "av", "soundfile")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with fork_server(*modules, environment=one_thread) as forks:
        yield forks


@pytest.fixture
def forked_makers(maker_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server forks the processes that make voices. Tests that judge the start or the end of such a process do
    not use this fixture."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(maker_forks, "voice_maker_process"))
