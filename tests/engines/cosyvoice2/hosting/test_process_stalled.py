"""An engine process that is stopped or computes one step for long, and how the host reacts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from conformance import joined, speak
from engine_child import Hold, fixture_of_hold, is_alive  # noqa: F401
from service_rig import WAIT_S, host_of, started, until
from slow_engine_process import STEP_S, slow_child
from speaking import NEIGHBOUR, SENTENCE

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.cosyvoice2.hosting import process_host
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import Timeouts
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import EngineError

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("few_steps", "forks"), pytest.mark.thorough]

LONG = f"{SENTENCE} {NEIGHBOUR}"
"""Eight seconds of audio, of which a process makes two ahead of its listener."""
STALL_S, SHORT_STALL_S = 4.0, 2.3
NOTICED_S = 3.0
"""A stop is detected within this time: 2 s of silence, and the time between checks."""


def used(model_dir: Path, use: Callable[[CosyVoice2Engine, int], Awaitable[None]], **timeouts: float) -> None:
    """Run `use` with a started engine and its process."""

    async def bounded(engine: CosyVoice2Engine) -> None:
        pid = host_of(engine).pid
        assert pid is not None
        # A test that fails would wait for ever for what the stopped process has of it.
        waking = asyncio.get_running_loop().call_later(WAIT_S - 5.0, wake, pid)
        try:
            async with asyncio.timeout(WAIT_S):
                await use(engine, pid)
        finally:
            waking.cancel()
            wake(pid)

    started(CosyVoice2Engine(model_dir, isolation="process", timeouts=Timeouts(**timeouts)), bounded)


def wake(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGCONT)


async def rest_of(stream: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    return [chunk async for chunk in stream]


def test_a_stopped_process_takes_no_utterances_and_continues_without_a_loss(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGCONT comes before `stall_s`: what was under way is whole, also a sentence that was asked for meanwhile by a
    turn that had begun. A new turn is refused, and told when to come again."""

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        alone = joined(await speak(engine, Utterance("u", LONG, seed=1)))
        stream = engine.synthesize(Utterance("a", LONG, seed=1))
        chunks = [await anext(stream)]
        os.kill(pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        await until(lambda: not engine.stats().is_ready, "its silence is noticed")
        assert 1.9 < time.monotonic() - begun_s < NOTICED_S
        assert 0 < engine.stats().retry_after_ms < 60_000
        with pytest.raises(EngineError, match="does not respond") as refused:
            await asyncio.wait_for(speak(engine, Utterance("new", SENTENCE)), 0.5)
        assert refused.value.retryable and refused.value.code == "engine_failed"
        assert refused.value.retry_after_ms is not None and 0 < refused.value.retry_after_ms < 60_000
        rest = asyncio.create_task(rest_of(stream))
        next_sentence = asyncio.create_task(speak(engine, Utterance("b", LONG, seed=1, follows=True)))
        await asyncio.sleep(0.3)
        assert not rest.done() and not next_sentence.done() and host_of(engine).pid == pid
        os.kill(pid, signal.SIGCONT)
        await until(lambda: engine.stats().is_ready, "it is back")
        assert engine.stats().retry_after_ms == 0
        assert (joined(chunks + await rest) == alone).all(), "nothing is lost"
        assert (joined(await next_sentence) == alone).all()
        assert host_of(engine).pid == pid

    with caplog.at_level(logging.INFO):
        used(model_dir, use, stall_s=29.0)
    assert "sent nothing for 2 s" in caplog.text and "responds again" in caplog.text
    assert "process failed" not in caplog.text


def test_a_process_that_stays_stopped_is_replaced_and_other_engines_are_not_affected(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its utterances end after `stall_s` with a retry hint. Another engine's call goes on in time."""

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        other = FakeEngine()
        await other.start()
        of_other = joined(await speak(other, Utterance("o", SENTENCE)))
        waits_s: list[float] = []

        async def neighbour() -> None:
            while host_of(engine).pid == pid:
                begun_s = time.monotonic()
                assert (joined(await speak(other, Utterance("o", SENTENCE))) == of_other).all()
                waits_s.append(time.monotonic() - begun_s)
                await asyncio.sleep(0.02)

        stream = engine.synthesize(Utterance("a", LONG))
        await anext(stream)
        os.kill(pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        speaking = asyncio.create_task(neighbour())
        with pytest.raises(EngineError, match="started again") as error:
            await rest_of(stream)
        assert STALL_S - 0.3 < time.monotonic() - begun_s < STALL_S + 1.0
        assert error.value.retryable and error.value.retry_after_ms is not None
        assert 500 <= error.value.retry_after_ms < 60_000
        assert not engine.stats().is_ready
        again = await speak(engine, Utterance("again", SENTENCE, seed=1))  # waits for the new process
        assert (joined(again) == alone).all()
        assert host_of(engine).pid != pid and not is_alive(pid)
        await speaking
        assert len(waits_s) > 50 and max(waits_s) < 0.5, "it was never held up"
        await other.close()

    used(model_dir, use, stall_s=STALL_S, restart_wait_s=29.0)
    assert f"sent nothing for {STALL_S:g} s, SIGKILL" in caplog.text


@pytest.mark.parametrize("how", ["python", "numpy"])
def test_a_long_step_is_not_taken_for_a_hang(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """One step takes longer than `stall_s`, and another thread sends heartbeats."""
    monkeypatch.setattr(process_host, "_CHILD", slow_child(how))

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        begun_s = time.monotonic()
        speaking = asyncio.create_task(speak(engine, Utterance("u", SENTENCE)))
        while not speaking.done():
            assert engine.stats().is_ready, "it was taken for stalled"
            await asyncio.sleep(0.02)
        assert len(joined(await speaking)) > 12_000
        assert time.monotonic() - begun_s > STEP_S > SHORT_STALL_S + 0.5, "the step was long"
        assert host_of(engine).pid == pid

    used(model_dir, use, stall_s=SHORT_STALL_S)
    assert "said nothing" not in caplog.text and "process failed" not in caplog.text


def test_a_step_without_an_end_is_replaced_by_its_own_limit(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lane is stuck while the heartbeats continue."""
    monkeypatch.setattr(process_host, "_CHILD", slow_child("numpy"))

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        with pytest.raises(EngineError, match="started again") as error:
            await speak(engine, Utterance("u", SENTENCE))
        assert error.value.retry_after_ms is not None
        await until(lambda: engine.stats().is_ready and host_of(engine).pid != pid, "it is replaced")

    used(model_dir, use, step_s=1.0)
    assert "a step has taken 1 s" in caplog.text
    assert "said nothing" not in caplog.text


def test_utterances_of_a_killed_process_and_those_that_wait_for_the_next(model_dir: Path, hold: Hold) -> None:
    """The one under way ends with when to come again; one asked for meanwhile is spoken; one given up is gone at
    once."""

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        stream = engine.synthesize(Utterance("a", LONG))
        await anext(stream)
        with hold():
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="started again") as error:
                await rest_of(stream)
            hint_ms = error.value.retry_after_ms
            assert hint_ms is not None and 500 <= hint_ms <= 1000 * WAIT_S
            begun_s = time.monotonic()
            waiting: list[asyncio.Task[Any]] = [
                asyncio.create_task(speak(engine, Utterance(str(i), SENTENCE, seed=1))) for i in range(2)
            ]
            given_up = asyncio.create_task(speak(engine, Utterance("c", SENTENCE)))
            await asyncio.sleep(0.05)
            assert engine.stats().n_queued == 3 and not engine.stats().is_ready
            given_up.cancel()
            await asyncio.wait([given_up])
            assert engine.stats().n_queued == 2 and not engine.stats().is_ready, "it is gone before the engine is back"
        await until(lambda: engine.stats().is_ready, "it is back")
        back_ms = 1000 * (time.monotonic() - begun_s)
        assert 0.2 * hint_ms < back_ms < 5 * hint_ms + 1000, "the hint was of the right size"
        for task in waiting:
            assert (joined(await task) == alone).all()
        assert engine.stats().n_queued == engine.stats().n_running == 0

    used(model_dir, use, restart_wait_s=29.0)


def test_a_process_whose_lane_has_failed_is_replaced(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its heartbeats would continue, and no step would ever be made."""
    monkeypatch.setattr(process_host, "_CHILD", slow_child("fail"))

    async def use(engine: CosyVoice2Engine, pid: int) -> None:
        with pytest.raises(EngineError, match="started again") as error:
            await speak(engine, Utterance("u", SENTENCE))
        assert error.value.retryable
        await until(lambda: engine.stats().is_ready and host_of(engine).pid != pid, "it is replaced")

    used(model_dir, use)
    assert "a lane of cosyvoice2 failed" in caplog.text
