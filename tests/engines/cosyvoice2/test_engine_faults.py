"""Faults of a running engine, in its own process and with the real networks: no memory, storms, voices that go, a
model that never ends, a checkpoint that is damaged meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import resource
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance import joined, speak
from service_rig import BRIEF, WAIT_S, core_of, host_of, started, until
from speaking import NEIGHBOUR, SENTENCE

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.cosyvoice2.hosting import process_host
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
from telephony_tts.engines.cosyvoice2.settings import Timeouts
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, UnknownVoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps", "forks")]

LONG = f"{SENTENCE} {NEIGHBOUR} " * 6


@pytest.fixture
def directory(model_dir: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    shutil.copytree(model_dir, tmp_path / "model")
    return tmp_path / "model"


def apart(model_dir: Path, use: Callable[[CosyVoice2Engine], Awaitable[Any]], **how: Any) -> Any:
    """Run `use` on an engine in a process of its own."""
    return started(CosyVoice2Engine(model_dir, isolation="process", **how), use)


def pid_of(engine: CosyVoice2Engine) -> int:
    pid = host_of(engine).pid
    assert pid is not None
    return pid


def size_of(pid: int) -> int:
    """Bytes of its address space."""
    n_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


async def killed_and_back(engine: CosyVoice2Engine) -> None:
    pid = pid_of(engine)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: host_of(engine).is_ready and host_of(engine).pid != pid, "it is ready again")


# ------------------------------------------------------------------------------ memory


def test_out_of_memory_ends_the_utterances_that_need_some_and_the_engine_goes_on(model_dir: Path) -> None:
    """Without memory, utterances end with an error. With memory again, all is as before. The process may end; it is
    then replaced."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        pid = pid_of(engine)
        resource.prlimit(pid, resource.RLIMIT_AS, (size_of(pid), resource.RLIM_INFINITY))
        crowd = [Utterance(str(i), LONG, voice="prompted", seed=i) for i in range(12)]
        told = await asyncio.gather(*(speak(engine, utterance) for utterance in crowd), return_exceptions=True)
        errors = [error for error in told if isinstance(error, BaseException)]
        assert errors, "it had memory enough"
        for error in errors:
            assert isinstance(error, EngineError) and error.retryable and "\n" not in str(error)
        assert engine.stats().n_queued == engine.stats().n_running == 0
        if pid_of(engine) == pid:
            resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await until(lambda: host_of(engine).is_ready, "it is ready")
        again = [speak(engine, Utterance(str(i), SENTENCE, seed=1)) for i in range(5)]
        assert all((joined(chunks) == alone).all() for chunks in await asyncio.gather(*again))

    apart(model_dir, use, limits=EngineLimits(n_slots=4))


@pytest.mark.parametrize("kind", [MemoryError, EngineError])
def test_text_that_cannot_be_read_fails_alone(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", BRIEF.sentence)))
        tokenizer = core_of(engine).runner.model.tokenizer
        works = tokenizer.encode

        def fails_for_one(of: Any, *args: Any, **named: Any) -> Any:
            if "zebra" in str(of):
                raise kind("no room")
            return works(of, *args, **named)

        monkeypatch.setattr(tokenizer, "encode", fails_for_one)
        bad, good = await asyncio.gather(
            speak(engine, Utterance("b", "A zebra.")),
            speak(engine, Utterance("g", BRIEF.sentence)),
            return_exceptions=True,
        )
        assert isinstance(bad, EngineError) and "no room" in str(bad)
        assert not isinstance(good, BaseException) and (joined(good) == alone).all()
        assert engine.stats() == EngineStats()

    started(CosyVoice2Engine(model_dir), use)


# ------------------------------------------------------------------------------ storms


@pytest.mark.parametrize("n", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_thousands_of_tiny_ones_come_and_go(model_dir: Path, n: int) -> None:
    """Most are cancelled before they begin, while they wait for a slot, or later. Some are heard to their end and sound
    as alone. There are two slots, so that a lost one would show."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", "Yes.", seed=1)))
        order = random.Random(1)
        n_heard = 0

        async def one(i: int) -> None:
            nonlocal n_heard
            if i % 200 == 0:
                assert (joined(await speak(engine, Utterance(str(i), "Yes.", seed=1, deadline_ns=1))) == alone).all()
                n_heard += 1
                return
            stream = engine.synthesize(Utterance(str(i), "Yes.", seed=1))
            asking = asyncio.ensure_future(anext(stream))
            for _ in range(order.randrange(30)):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await stream.aclose()

        for begin in range(0, n, 200):
            await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(begin, begin + 200))), WAIT_S)
            assert engine.stats().n_queued == engine.stats().n_running == 0
        assert n_heard == n // 200
        both = await asyncio.gather(*(speak(engine, Utterance(str(i), "Yes.", seed=1)) for i in range(4)))
        assert all((joined(chunks) == alone).all() for chunks in both)

    apart(model_dir, use, n_workers=2, limits=EngineLimits(n_slots=2))


def test_a_storm_of_cancels_changes_no_other_utterance(model_dir: Path) -> None:
    """Long sentences cancelled in every stage, while two other utterances are complete."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        speaking = [asyncio.create_task(speak(engine, Utterance(str(i), SENTENCE, seed=1))) for i in range(2)]
        n_given_up = 0
        while not all(task.done() for task in speaking) or n_given_up < 24:
            streams = [engine.synthesize(Utterance("x", LONG, seed=n, deadline_ns=1)) for n in range(4)]
            for n_taken, stream in enumerate(streams):
                for _ in range(n_taken):
                    await anext(stream)
                await asyncio.wait_for(stream.aclose(), WAIT_S)
                n_given_up += 1
        for task in speaking:
            assert (joined(task.result()) == alone).all()
        assert engine.stats().n_queued == engine.stats().n_running == 0

    apart(model_dir, use, n_workers=2, limits=EngineLimits(n_slots=4))


# ------------------------------------------------------------------------------ voices


def test_a_voice_that_is_removed_while_it_is_in_use(model_dir: Path, tmp_path: Path) -> None:
    """The utterance that is being spoken keeps it. For all others it is gone when the folder was looked at again, also
    after the engine was loaded again, and a voice that was stored meanwhile is there."""
    store = VoiceStore(tmp_path)
    features = read_spk2info(model_dir / "spk2info.pt")[0]["prompted"]
    store.save("anna", features)

    async def use(engine: CosyVoice2Engine) -> None:
        anna = Utterance("u", BRIEF.sentence, voice="anna", seed=1)
        alone = joined(await speak(engine, anna))
        speaking = engine.synthesize(anna)
        heard = [await anext(speaking)]
        store.remove("anna")
        store.save("bert", features)
        heard += [chunk async for chunk in speaking]
        assert (joined(heard) == alone).all()
        await engine.read_voices()
        for kill in (False, True):
            if kill:
                await killed_and_back(engine)
            assert [voice.name for voice in engine.voices] == ["preset", "prompted", "bert"]
            with pytest.raises(UnknownVoice, match="'anna'; it has preset, prompted, bert"):
                await speak(engine, anna)
            assert (joined(await speak(engine, Utterance("u", BRIEF.sentence, voice="bert", seed=1))) == alone).all()

    apart(model_dir, use, voice_dir=tmp_path)


# ------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_that_never_draws_a_stop_id(directory: Path) -> None:
    """Its sentences are cut at the longest length, and another utterance gets the only slot next."""
    state = torch.load(directory / "llm.pt", weights_only=True)
    state["llm_decoder.bias"][6561:] = -50.0
    torch.save(state, directory / "llm.pt")
    n_text = len(TextTokenizer(directory / "CosyVoice-BlankEN").encode("no."))

    async def use(engine: CosyVoice2Engine) -> None:
        heard = await asyncio.gather(*(speak(engine, Utterance(str(i), "no", seed=i)) for i in range(3)))
        assert [len(joined(chunks)) for chunks in heard] == [20 * n_text * 960] * 3
        assert engine.stats().n_queued == engine.stats().n_running == 0

    apart(directory, use, limits=EngineLimits(n_slots=1))


def test_a_checkpoint_that_is_damaged_while_it_is_in_use(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The running engine does not read it again and goes on. A new process cannot load it, names the file, and is tried
    again until the file is repaired."""
    monkeypatch.setattr(process_host, "BACKOFF_S", (0.0, 0.1))

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1)))
        whole = (directory / "flow.pt").read_bytes()
        (directory / "flow.pt").write_bytes(whole[: len(whole) // 2])
        assert (joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1))) == alone).all()
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: caplog.text.count("flow.pt cannot be read") >= 2, "it was tried twice")
        assert not engine.stats().is_ready
        with pytest.raises(EngineError, match="being started again") as refused:
            await speak(engine, Utterance("u", BRIEF.sentence))
        assert refused.value.retryable
        (directory / "flow.pt").write_bytes(whole)
        await until(lambda: engine.stats().is_ready, "it is ready again")
        assert (joined(await speak(engine, Utterance("u", BRIEF.sentence, seed=1))) == alone).all()

    with caplog.at_level(logging.INFO):
        apart(directory, use, timeouts=Timeouts(restart_wait_s=0.0))


# ----------------------------------------------------------------------------- threads


@pytest.mark.parametrize("refused", ["cosyvoice2-load", "cosyvoice2-voices", "cosyvoice2-0", "cosyvoice2-1"])
def test_a_thread_that_cannot_be_started_is_an_error_of_the_start(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Pinned: the end of that thread was waited for."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        before = set(threading.enumerate())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(EngineUnavailable, match="can't start new thread"):
            await asyncio.wait_for(CosyVoice2Engine(model_dir, n_workers=2).start(), WAIT_S)
        assert set(threading.enumerate()) == before

    asyncio.run(main())


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_lane_that_fails_ends_the_utterances_and_the_engine_is_not_ready(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, n_workers: int
) -> None:
    """Pinned: without another lane it counted as ready, its turns timed out, and to close them took for ever."""

    async def use(engine: CosyVoice2Engine) -> None:
        core = core_of(engine)
        speaking = engine.synthesize(Utterance("a", LONG, seed=1))
        await anext(speaking)
        waiting = asyncio.create_task(speak(engine, Utterance("b", LONG, voice="prompted", seed=2)))
        await until(lambda: engine.stats().n_running == 2, "both have begun")
        find, failures = core._find, iter([ZeroDivisionError("a bug of ours")])

        def fail_once(lane: Any) -> Any:
            for failure in failures:
                raise failure
            return find(lane)

        monkeypatch.setattr(core, "_find", fail_once)
        with pytest.raises(EngineError):
            async with asyncio.timeout(WAIT_S):
                async for _ in speaking:
                    pass
        with pytest.raises(EngineError):
            await asyncio.wait_for(waiting, WAIT_S)
        stats = engine.stats()
        assert not stats.is_ready and stats.n_queued == stats.n_running == 0
        with pytest.raises(EngineError, match="not running"):
            await speak(engine, Utterance("c", BRIEF.sentence))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("cosyvoice2")]

    started(CosyVoice2Engine(model_dir, n_workers=n_workers), use)
    assert "a lane of cosyvoice2 failed" in caplog.text and "a bug of ours" in caplog.text
