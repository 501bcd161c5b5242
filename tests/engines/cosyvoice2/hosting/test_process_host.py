"""The engine in a process of its own: the same engine, and calls survive its end."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conformance import assert_keeps_the_contract, joined, speak
from service_rig import BRIEF, FEW_SLOTS, WAIT_S, host_of, until
from speaking import NEIGHBOUR, SENTENCE

from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.core.orders import CancelOrder, SubmitUtterance
from telephony_tts.engines.cosyvoice2.hosting import process_host
from telephony_tts.engines.cosyvoice2.hosting.process_messages import HEADER
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
from telephony_tts.engines.cosyvoice2.settings import Settings, Timeouts
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps")]

LONG = f"{SENTENCE} {NEIGHBOUR}"
"""Eight seconds of audio, of which a process makes two ahead of its listener."""


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> list[int]:
    """Child processes of this one, zombies included."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def started(model_dir: Path, use: Callable[[CosyVoice2Engine], Awaitable[Any]], **how: Any) -> Any:
    """Run `use` on an engine that is then closed, and see that nothing is left of it."""

    async def run() -> Any:
        n_threads, n_fds, n_tasks = threading.active_count(), fds(), len(asyncio.all_tasks())
        before = children()
        engine = CosyVoice2Engine(model_dir, isolation="process", **how)
        await asyncio.wait_for(engine.start(), WAIT_S)
        try:
            assert len(children()) == len(before) + 1
            return await use(engine)
        finally:
            await asyncio.wait_for(engine.close(), WAIT_S)
            assert engine.stats() == EngineStats()
            assert children() == before, "a process is left"
            assert len(asyncio.all_tasks()) == n_tasks, "a task is left"
            assert threading.active_count() == n_threads, "a thread is left"
            await asyncio.sleep(0)
            assert fds() == n_fds, "a file descriptor is left"

    return asyncio.run(run())


@pytest.mark.usefixtures("forks")
def test_it_keeps_the_contract(model_dir: Path) -> None:
    before = children()
    assert_keeps_the_contract(
        lambda: CosyVoice2Engine(model_dir, n_workers=2, isolation="process", limits=FEW_SLOTS), BRIEF
    )
    assert children() == before


@pytest.mark.usefixtures("forks")
def test_it_says_what_it_says_in_a_thread(model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same samples and timings, also of text that comes while it is spoken; and nothing on its standard error."""

    async def both(engine: CosyVoice2Engine) -> list[list[Chunk]]:
        feed = TextFeed()
        growing = asyncio.create_task(speak(engine, Utterance("g", "Thank", seed=3, more=feed)))
        for word in SENTENCE.split()[1:]:
            feed.push(f" {word}")
            await asyncio.sleep(0)
        feed.end()
        return [await speak(engine, Utterance("u", SENTENCE, voice="prompted", seed=1)), await growing]

    async def in_a_thread() -> list[list[Chunk]]:
        engine = CosyVoice2Engine(model_dir)
        await engine.start()
        try:
            return await both(engine)
        finally:
            await engine.close()

    apart, within = started(model_dir, both), asyncio.run(in_a_thread())
    for ours, theirs in zip(apart, within, strict=True):
        assert (joined(ours) == joined(theirs)).all() and len(joined(ours)) > 12_000
        assert [chunk.timings for chunk in ours] == [chunk.timings for chunk in theirs]
    assert capfd.readouterr().err == ""


def test_its_death_is_an_error_that_may_be_tried_again(
    model_dir: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 all its utterances end, another engine's call is not affected, and a new process starts."""

    async def use(engine: CosyVoice2Engine) -> None:
        other = FakeEngine()
        await other.start()
        alone = joined(await speak(engine, Utterance("u", SENTENCE, seed=1)))
        of_other = joined(await speak(other, Utterance("o", SENTENCE)))
        others_call = other.synthesize(Utterance("o", SENTENCE))
        others_chunks = [await anext(others_call)]
        speaking = engine.synthesize(Utterance("a", LONG))
        await anext(speaking)
        waiting = [asyncio.create_task(speak(engine, Utterance(str(i), LONG, seed=i))) for i in range(3)]
        await asyncio.sleep(0)
        first_pid = host_of(engine).pid
        assert first_pid is not None
        os.kill(first_pid, signal.SIGKILL)
        for error in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S):
            assert isinstance(error, EngineError) and error.retryable and "started again" in str(error)
        with pytest.raises(EngineError, match="started again"):
            async for _ in speaking:
                pass
        assert engine.stats().n_running == engine.stats().n_queued == 0
        assert [voice.name for voice in engine.voices] == ["preset", "prompted"], "what it has is known"
        if not host_of(engine).is_ready:
            with pytest.raises(EngineError, match="started again; say it again") as refused:
                await asyncio.wait_for(speak(engine, Utterance("early", SENTENCE)), WAIT_S)
            assert refused.value.retryable
        others_chunks += [chunk async for chunk in others_call]
        assert (joined(others_chunks) == of_other).all()
        await other.close()
        await until(lambda: host_of(engine).is_ready, "it is ready again")
        assert host_of(engine).pid != first_pid
        assert (joined(await speak(engine, Utterance("again", SENTENCE, seed=1))) == alone).all()

    with caplog.at_level(logging.INFO):
        started(model_dir, use, timeouts=Timeouts(restart_wait_s=0.0))
    assert "process failed" in caplog.text and "SIGKILL" in caplog.text and "ready again" in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forks")
def test_one_that_hangs_is_replaced(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stopped process sends no heartbeats and is replaced after `stall_s`."""

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("u", SENTENCE)))
        host = host_of(engine)
        assert host.pid is not None
        speaking = engine.synthesize(Utterance("a", LONG))
        await anext(speaking)
        pid = host.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match="started again") as error:
            async for _ in speaking:
                pass
        assert error.value.retryable
        await until(lambda: host.is_ready and host.pid != pid, "it is ready again")
        assert (joined(await speak(engine, Utterance("u", SENTENCE))) == alone).all()

    started(model_dir, use, timeouts=Timeouts(stall_s=3.0))
    assert "sent nothing for 3 s, SIGKILL" in caplog.text


@pytest.mark.usefixtures("forks")
def test_a_step_that_takes_too_long_is_a_hang(model_dir: Path) -> None:
    """However lively its other threads are."""

    async def use(engine: CosyVoice2Engine) -> None:
        host = host_of(engine)
        first_pid = host.pid
        speaking = asyncio.create_task(speak(engine, Utterance("a", LONG)))
        await asyncio.sleep(0)
        read = process_host._read
        with pytest.MonkeyPatch.context() as patch:

            async def slow_step(reader: asyncio.StreamReader) -> Any:
                messages = await read(reader)
                return messages and [
                    replace(message, step_s=99.0) if isinstance(message, process_host.Heartbeat) else message
                    for message in messages
                ]

            patch.setattr(process_host, "_read", slow_step)
            with pytest.raises(EngineError, match="started again"):
                await asyncio.wait_for(speaking, WAIT_S)
        await until(lambda: host.is_ready and host.pid != first_pid, "it is ready again")
        assert await speak(engine, Utterance("u", "yes"))

    started(model_dir, use, timeouts=Timeouts(step_s=50.0))


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("what", ["open", "watch"])
def test_it_ends_where_no_file_is_left_to_wait_by(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """`started` sees that the process is gone."""

    def no_file(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def use(engine: CosyVoice2Engine) -> None:
        assert await speak(engine, Utterance("u", "yes"))
        if what == "open":
            monkeypatch.setattr(process_host.os, "pidfd_open", no_file)
        else:
            monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", no_file)

    started(model_dir, use)
    assert "cleared away" not in caplog.text


@pytest.mark.usefixtures("forks")
@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="the system has no real-time signals")
def test_one_that_dies_of_a_signal_without_a_name_ends_its_utterances(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = signal.SIGRTMIN + 1
    assert number not in set(signal.Signals)

    async def use(engine: CosyVoice2Engine) -> None:
        speaking = asyncio.create_task(speak(engine, Utterance("u", LONG)))
        await until(lambda: engine.stats().n_running == 1, "it is taken up")
        pid = host_of(engine).pid
        assert pid is not None
        os.kill(pid, number)
        with pytest.raises(EngineError, match="started again"):
            await asyncio.wait_for(speaking, WAIT_S)
        await until(lambda: host_of(engine).is_ready, "it is ready again")

    started(model_dir, use)
    assert f"signal {number}" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.usefixtures("forks")
def test_a_loading_error_is_reported_as_in_a_thread(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    (tmp_path / "flow.pt").unlink()
    before, told = children(), []
    for isolation in ("thread", "process"):
        with pytest.raises(EngineUnavailable, match=r"flow\.pt is missing") as error:
            asyncio.run(CosyVoice2Engine(tmp_path, isolation=isolation).start())
        told.append((type(error.value), str(error.value), error.value.retryable))
    (tmp_path / "flow.pt").write_bytes(b"PK no zip")
    for isolation in ("thread", "process"):
        with pytest.raises(EngineUnavailable) as error:
            asyncio.run(CosyVoice2Engine(tmp_path, isolation=isolation).start())
        told.append((type(error.value), str(error.value), error.value.retryable))
    assert told[0] == told[1] and told[2] == told[3]
    assert children() == before


def test_a_process_that_cannot_be_started(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    n_fds = fds()
    with pytest.raises(EngineUnavailable, match=r"could not load .*No such file"):
        asyncio.run(CosyVoice2Engine(model_dir, isolation="process").start())
    assert fds() == n_fds


def test_one_that_dies_while_it_loads(model_dir: Path) -> None:
    async def main() -> None:
        engine = CosyVoice2Engine(model_dir, isolation="process")
        starting = asyncio.create_task(engine.start())
        await until(lambda: engine._host is not None and host_of(engine).pid is not None, "it has begun")
        pid = host_of(engine).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match=r"ended while it was loading \(SIGKILL"):
            await asyncio.wait_for(starting, WAIT_S)

    before = children()
    asyncio.run(main())
    assert children() == before


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["closed", "cancelled"])
def test_closed_while_it_loads(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_cancelled: bool
) -> None:
    monkeypatch.setattr(process_host, "TERM_S", 0.05)

    async def main() -> None:
        n_fds = fds()
        engine = CosyVoice2Engine(model_dir, isolation="process")
        starting = asyncio.create_task(engine.start())
        await until(lambda: engine._host is not None and host_of(engine).pid is not None, "it has begun")
        if is_cancelled:
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(starting, WAIT_S)
        else:
            await asyncio.wait_for(engine.close(), WAIT_S)
            with pytest.raises(EngineUnavailable, match="closed while it was loading"):
                await asyncio.wait_for(starting, WAIT_S)
        assert engine.voices == () and engine.stats() == EngineStats()
        await asyncio.sleep(0)
        assert fds() == n_fds and len(asyncio.all_tasks()) == 1

    before = children()
    asyncio.run(main())
    assert children() == before
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("forks")
def test_its_log_is_the_parents(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records of the child reach the handlers here, at the parent's level, each once."""

    async def use(engine: CosyVoice2Engine) -> None:
        assert await speak(engine, Utterance("u", "yes"))

    with caplog.at_level(logging.INFO):
        started(model_dir, use)
    loads = [record for record in caplog.records if record.getMessage() == f"loading cosyvoice2 from {model_dir}"]
    assert len(loads) == 1 and loads[0].name == "telephony_tts.engines.cosyvoice2.hosting.loading"
    assert loads[0].process != os.getpid() and "random weights" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        started(model_dir, use)
    assert "random weights" in caplog.text and "loading cosyvoice2" not in caplog.text


@pytest.mark.usefixtures("forks")
def test_its_counters_are_known_here(model_dir: Path) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        assert engine.counters()["steps"] > 0, "what it counted while warming up, before anybody has spoken"
        await speak(engine, Utterance("u", SENTENCE))
        before = engine.counters().get("steps", 0.0)
        await speak(engine, Utterance("u", SENTENCE))
        await until(lambda: engine.counters().get("steps", 0.0) > before, "it counts")
        assert engine.counters()["decode_rows"] > 20

    started(model_dir, use)


@pytest.mark.usefixtures("forks")
def test_close_ends_all_utterances(model_dir: Path) -> None:
    """Running utterances, those that wait for a slot, and one whose text has not ended."""

    async def use(engine: CosyVoice2Engine) -> None:
        speaking = engine.synthesize(Utterance("a", LONG))
        await anext(speaking)
        waiting = [asyncio.create_task(speak(engine, Utterance(str(i), LONG, seed=i))) for i in range(3)]
        waiting.append(asyncio.create_task(speak(engine, Utterance("g", "Well", more=TextFeed()))))
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.close(), WAIT_S)
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, EngineError) and "was closed" in str(error)
        with pytest.raises(EngineError, match="was closed"):
            async for _ in speaking:
                pass

    started(model_dir, use, limits=EngineLimits(n_slots=2))


@pytest.mark.usefixtures("forks")
def test_closed_while_a_dead_one_is_cleared_away(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        may_end = asyncio.Event()
        end = process_host._EngineProcess.end

        async def slowly(self: process_host._EngineProcess) -> str:
            await may_end.wait()
            return await end(self)

        monkeypatch.setattr(process_host._EngineProcess, "end", slowly)
        host = host_of(engine)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: not host.is_ready, "its death is noticed")
        closing = asyncio.create_task(engine.close())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done(), "the dead process is still there"
        may_end.set()
        await asyncio.wait_for(closing, WAIT_S)

    started(model_dir, use)


@pytest.mark.parametrize(
    ("n_threads", "given", "wait"), [(None, None, "PASSIVE"), (2, None, "PASSIVE"), (2, "ACTIVE", "ACTIVE")]
)
def test_idle_threads_of_openmp_sleep_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, n_threads: int | None, given: str | None, wait: str
) -> None:
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(process_host.subprocess, "Popen", lambda *_, env, **__: environments.append(env))
    process = process_host._EngineProcess(Settings(Path("nowhere"), n_threads=n_threads))
    process._socket.close()
    (environment,) = environments
    assert environment["OMP_WAIT_POLICY"] == wait and environment["OMP_NUM_THREADS"] == str(n_threads or 1)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The process's end of the socket; the process itself is not started."""
    ends: list[socket.socket] = []

    def starts(*_: object, pass_fds: list[int], **__: object) -> SimpleNamespace:
        ends.append(socket.socket(fileno=os.dup(pass_fds[0])))
        return SimpleNamespace(poll=lambda: 0, wait=lambda: 0)

    monkeypatch.setattr(process_host.subprocess, "Popen", starts)
    yield ends
    for end in ends:
        end.close()


def test_orders_of_one_moment_go_in_one_message(theirs: list[socket.socket]) -> None:
    """Otherwise the engine begins with the first of many turns while the others are on their way."""

    async def use() -> None:
        process = process_host._EngineProcess(Settings(Path("nowhere")))
        await process.connect()
        reader, writer = await asyncio.open_connection(sock=theirs[0])
        orders = [SubmitUtterance(key, "anna", Request("Yes.")) for key in range(3)]
        for order in orders:
            process.send(order)
        await asyncio.sleep(0)
        process.send(CancelOrder(0))
        read = [pickle.loads(await reader.readexactly(*HEADER.unpack(await reader.readexactly(4)))) for _ in range(3)]
        assert read[1:] == [orders, [CancelOrder(0)]]
        await process.end()
        writer.close()

    asyncio.run(asyncio.wait_for(use(), WAIT_S))


def test_a_process_that_cannot_be_sent_its_orders_is_ended(theirs: list[socket.socket]) -> None:
    """Memory may be used up. Utterances whose orders are lost would wait for ever; with the process they end."""

    async def use() -> None:
        process = process_host._EngineProcess(Settings(Path("nowhere")))
        await process.connect()
        reader, writer = await asyncio.open_connection(sock=theirs[0])
        await reader.readexactly(*HEADER.unpack(await reader.readexactly(4)))
        process.send(CancelOrder(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_host, "packed", lambda _: bytes(10**18))
            assert await reader.read() == b""
        await process.end()
        writer.close()

    asyncio.run(asyncio.wait_for(use(), WAIT_S))
