"""Our client against a real Triton, whose model has the recipe's inputs and output and is decoupled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conformance import Subject, assert_keeps_the_contract
from others_rig import TRANSCRIPT, engine, recording, speak, started
from triton_rig import RealTriton, real_triton

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

pytestmark = [pytest.mark.slow, pytest.mark.peer]

TEXT = "hello there my friend"


@pytest.fixture(scope="module")
def triton() -> Iterator[RealTriton]:
    with real_triton() as running:
        yield running


def test_it_speaks_with_a_recording_and_without(triton: RealTriton, tmp_path: Path) -> None:
    path = recording(tmp_path)

    async def main() -> None:
        voices = {"anna": {"wav": path, "text": TRANSCRIPT + " ü"}}
        for given in ({"voices": voices}, {}):
            async with started(kind="triton", url=triton.address, model="cosyvoice2", **given) as theirs:
                chunks = await speak(theirs, TEXT)
                heard = np.concatenate([chunk.pcm for chunk in chunks])
                assert np.array_equal(heard, render(TEXT))
                assert len(chunks) > 10, "it comes in pieces"
        with_recording, without = triton.asked[-2:]
        assert with_recording["text"] == without["text"] == TEXT
        assert without["inputs"] == ["target_text"]
        assert with_recording["transcript"] == TRANSCRIPT + " ü"
        n_samples = with_recording["n_samples"]
        assert with_recording["shape"] == [1, -(-n_samples // 16_000) * 16_000] and 0.05 < with_recording["peak"] <= 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_its_errors_and_a_cancel(triton: RealTriton) -> None:
    async def main() -> None:
        async with started(kind="triton", url=triton.address, model="cosyvoice2", slots=2) as theirs:
            with pytest.raises(EngineError, match=r"Triton says: .*the language model failed"):
                await speak(theirs, "fail")
            with pytest.raises(EngineError, match="sent no audio"):
                await speak(theirs, "empty")
            for _ in range(3):
                stream = theirs.synthesize(Utterance("u", TEXT))
                await anext(stream)
                await stream.aclose()
                stats = theirs.stats()
                assert (stats.n_queued, stats.n_running) == (0, 0) and 1 <= theirs.n_orphans <= 2
            assert np.array_equal(np.concatenate([chunk.pcm for chunk in await speak(theirs, TEXT)]), render(TEXT))
        away = engine(kind="triton", url=triton.address, model="cosyvoice7", start_timeout_s=0.5)
        with pytest.raises(EngineUnavailable, match="cosyvoice7"):
            await away.start()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_it_keeps_the_contract(triton: RealTriton) -> None:
    texts = "Thank you for calling.", "It left on Tuesday."
    subject = Subject(*texts, n_most=12, changes_speed=False, times_words=False)
    given = {"kind": "triton", "url": triton.address, "model": "cosyvoice2"}
    assert_keeps_the_contract(lambda: engine(**given), subject)
