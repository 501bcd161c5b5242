"""How long an utterance waited for the engine, as its first chunk reports it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conformance import speak
from service_rig import core_of, started
from speaking import NEIGHBOUR, SENTENCE

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
from telephony_tts.runtime.clock import monotonic_ns

pytestmark = pytest.mark.slow

LONG = f"{SENTENCE} {NEIGHBOUR} " * 3


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_first_chunk_tells_how_long_it_waited_for_a_slot(model_dir: Path, isolation: str) -> None:
    """With one slot the second waits until the first has ended."""

    async def use(engine: CosyVoice2Engine) -> None:
        begun_ns = monotonic_ns()
        times_ns: dict[str, list[int]] = {"first": [], "second": []}
        chunks: dict[str, list[Chunk]] = {"first": [], "second": []}

        async def heard(name: str) -> None:
            async for chunk in engine.synthesize(Utterance(name, SENTENCE, seed=1)):
                times_ns[name].append(monotonic_ns() - begun_ns)
                chunks[name].append(chunk)

        first = asyncio.create_task(heard("first"))
        await asyncio.sleep(0)
        await asyncio.gather(first, heard("second"))
        waited_ns = {name: heard[0].queued_ns for name, heard in chunks.items()}
        assert 0 <= waited_ns["first"] < times_ns["first"][0], "before its first audio"
        assert times_ns["first"][0] < waited_ns["second"] < times_ns["second"][0]
        for name in chunks:
            assert all(chunk.queued_ns == 0 for chunk in chunks[name][1:]), "reported once"
        assert engine.stats().n_running == engine.stats().n_queued == 0

    started(CosyVoice2Engine(model_dir, isolation=isolation, limits=EngineLimits(n_slots=1)), use)


@pytest.mark.parametrize("follows", [False, True])
def test_the_core_is_told_whether_a_listener_has_heard_the_sentence_before(model_dir: Path, follows: bool) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        chunks = engine.synthesize(Utterance("u", LONG, follows=follows))
        await anext(chunks)
        (job,) = core_of(engine)._jobs.values()
        assert job.follows is follows
        await chunks.aclose()

    started(CosyVoice2Engine(model_dir), use)


def test_waiting_utterances_are_queued_and_the_others_run(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        speaking = engine.synthesize(Utterance("a", LONG))
        await anext(speaking)
        waiting = asyncio.create_task(speak(engine, Utterance("b", "Yes.")))
        await asyncio.sleep(0)
        assert (engine.stats().n_running, engine.stats().n_queued) == (1, 1)
        await speaking.aclose()
        (first, *_) = await waiting
        assert first.queued_ns > 0

    started(CosyVoice2Engine(model_dir, limits=EngineLimits(n_slots=1)), use)
