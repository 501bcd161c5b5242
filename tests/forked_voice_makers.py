"""The processes that check recordings and make voices, forked from one that has imported PyTorch (`forked_process`).

The `conftest.py` of a folder whose tests make voices imports both fixtures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from forked_asyncio import forking
from forked_process import Forks, preloaded

_ENGINE = "telephony_tts.engines.cosyvoice2"


@pytest.fixture(scope="module")
def maker_forks() -> Iterator[Forks]:
    """A process with the imports of a voice maker's."""
    modules = (f"{_ENGINE}.hosting.voice_maker_process", f"{_ENGINE}.voices.enrolment", "av", "soundfile")
    with preloaded(*modules, environment={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}) as forks:
        yield forks


@pytest.fixture
def forked_makers(maker_forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that make voices are forked from one that has imported PyTorch. Without this fixture they are real
    ones: for tests that judge their start or their end."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(maker_forks, "voice_maker_process"))
