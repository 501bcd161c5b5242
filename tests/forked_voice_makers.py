"""The processes that check recordings and make voices, forked from one that has imported PyTorch (`forked_process`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from forked_asyncio import forking
from forked_process import Forks, preloaded

_ENGINE = "telephony_tts.engines.cosyvoice2"


@contextmanager
def preloaded_makers() -> Iterator[Forks]:
    """A process with the imports of a voice maker's."""
    modules = (f"{_ENGINE}.hosting.voice_maker_process", f"{_ENGINE}.voices.enrolment", "av", "soundfile")
    with preloaded(*modules, environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}) as forks:
        yield forks


def fork_makers(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forking(forks, "voice_maker_process"))
