"""The host while its process is replaced: on a clock that jumps, with processes that do what they are told; and real
ones whose parent is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_child import engine_pid, is_alive
from virtual_loop import VirtualLoop, run

from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance
from telephony_tts.engines.cosyvoice2.core.orders import (
    CancelOrder,
    Event,
    Order,
    PushText,
    SubmitUtterance,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.hosting import process_host
from telephony_tts.engines.cosyvoice2.hosting.process_host import (
    BACKOFF_S,
    LOADING_SILENCE_S,
    RETRY_LEAST_MS,
    STEADY_S,
    ProcessHost,
)
from telephony_tts.engines.cosyvoice2.hosting.process_messages import (
    EngineReady,
    Heartbeat,
    LoadFailed,
    Message,
    UtteranceEvent,
    packed,
)
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import DEFAULT_TIMEOUTS, Settings, Timeouts
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, UnknownVoice

WAIT_S = 30.0
MOST = 200
"""Processes of a test."""
MOST_S = 3600.0
"""Of a test, on the clock that jumps: the host has a timer as long as a process runs, so the test always has one."""


class Staged:
    """A scripted process: sends what the test wants, and keeps the orders that it gets."""

    made: list[Staged]
    first_words: Callable[[Staged], None]
    """What each process does when it starts."""

    def __init__(self, *_: object) -> None:
        self.born_s = asyncio.get_running_loop().time()
        self.reader = asyncio.StreamReader()
        self.orders: list[Order] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.child = SimpleNamespace(pid=1000 + len(self.made), kill=lambda: None)
        self.made.append(self)
        if len(self.made) > MOST:
            pytest.fail("it is started again and again without a pause")
        type(self).first_words(self)

    async def connect(self) -> asyncio.StreamReader:
        return self.reader

    def send(self, order: Order) -> None:
        self.orders.append(order)

    async def end(self) -> str:
        await self.may_end.wait()
        return "exit status 1"

    def says(self, message: Message) -> None:
        self.reader.feed_data(packed([message]))

    def dies(self) -> None:
        self.reader.feed_eof()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Staged]:
    """The processes in their order; each is ready at once."""
    Staged.made = []
    Staged.first_words = lambda staged: staged.says(EngineReady({"anna": ""}))
    monkeypatch.setattr(process_host, "_EngineProcess", Staged)
    return Staged.made


def hosted(use: Callable[[ProcessHost, list[tuple[int, Event]]], Awaitable[None]]) -> None:
    """Run `use` on a host that is ready, and close it. Where anything waits for ever, the loop raises."""

    async def main() -> None:
        heard: list[tuple[int, Event]] = []
        host = ProcessHost(Settings(Path("nowhere")), lambda key, event: heard.append((key, event)))
        await host.start()
        try:
            async with asyncio.timeout(MOST_S):
                await use(host, heard)
        finally:
            await host.close()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def submit(key: int) -> SubmitUtterance:
    return SubmitUtterance(key, "anna", Request("yes"))


async def some_turns() -> None:
    """Run all tasks that need no time to pass."""
    for _ in range(20):
        await asyncio.sleep(0)


def pauses_s(made: list[Staged]) -> list[float]:
    return [later.born_s - earlier.born_s for earlier, later in itertools.pairwise(made)]


# ----------------------------------------------------------------------------- orders


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_cancel_while_it_is_replaced_ends_the_utterance_and_reaches_no_new_one(
    made: list[Staged], in_a_thread: bool
) -> None:
    """Orders that arrive when the process is dead, when the next one loads, and when that is ready."""

    async def use(host: ProcessHost, heard: list[tuple[int, Event]]) -> None:
        def send(order: Order) -> None:
            if in_a_thread:
                thread = threading.Thread(target=host.send, args=(order,))
                thread.start()
                thread.join()
            else:
                host.send(order)

        Staged.first_words = lambda staged: None
        for key in range(4):
            host.send(submit(key))
        (first,) = made
        first.may_end.clear()
        first.dies()
        await some_turns()
        assert not host.is_ready and heard == []
        send(CancelOrder(0))
        await some_turns()
        first.may_end.set()
        await some_turns()
        send(CancelOrder(1))
        await some_turns()
        (_, second) = made
        assert not host.is_ready
        second.says(EngineReady({"anna": ""}))
        await some_turns()
        assert host.is_ready
        send(CancelOrder(2))
        send(PushText(3, "more", True))
        host.send(submit(4))
        send(CancelOrder(4))
        await some_turns()
        assert [key for key, _ in heard] == [0, 1, 2, 3], "each has ended, and once"
        for _, event in heard:
            assert isinstance(event, UtteranceEnded) and event.error is not None and event.error.retryable
        assert first.orders == [submit(key) for key in range(4)] + [CancelOrder(0)]
        assert second.orders == [submit(4), CancelOrder(4)]

    hosted(use)


def test_what_was_cancelled_in_a_thread_when_it_died_reaches_no_new_one(made: list[Staged]) -> None:
    """The order is on its way to the loop while the process is replaced."""

    async def use(host: ProcessHost, heard: list[tuple[int, Event]]) -> None:
        host.send(submit(0))
        made[0].dies()
        late: list[Order] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host, "_forward", late.append)
            for order in (PushText(0, "x", False), CancelOrder(0)):
                thread = threading.Thread(target=host.send, args=(order,))
                thread.start()
                thread.join()
            await some_turns()
        assert len(made) == 2 and host.is_ready and len(late) == 2
        for order in late:
            host._forward(order)
        assert made[1].orders == [] and [key for key, _ in heard] == [0]

    hosted(use)


def test_closing_a_stream_while_it_is_replaced_returns(made: list[Staged]) -> None:
    """As the service does it: at every moment of the replacement, and nothing of the stream is left."""

    async def main() -> None:
        engine = CosyVoice2Engine(Path("nowhere"), isolation="process")
        await engine.start()
        streams = [engine.synthesize(Utterance(str(i), "Yes.", more=TextFeed() if i == 2 else None)) for i in range(3)]
        asking = [asyncio.create_task(anext(stream)) for stream in streams]
        await some_turns()
        Staged.first_words = lambda staged: None
        made[0].may_end.clear()
        made[0].dies()
        await some_turns()
        asking[0].cancel()
        await some_turns()
        assert not asking[0].done(), "it may not return before its end is known"
        made[0].may_end.set()
        await asyncio.wait(asking)
        for task in asking[1:]:
            assert isinstance(task.exception(), EngineError)
        assert asking[0].cancelled()
        assert engine.stats().n_queued == engine.stats().n_running == 0 and not engine.stats().is_ready
        made[1].says(EngineReady({"anna": ""}))
        await some_turns()
        assert engine.stats().is_ready and made[1].orders == []
        again = asyncio.create_task(anext(engine.synthesize(Utterance("again", "Yes."))))
        await some_turns()
        (order,) = made[1].orders
        made[1].says(UtteranceEvent(order.key, UtteranceEnded()))
        await asyncio.wait([again])
        assert isinstance(again.exception(), StopAsyncIteration)
        await engine.close()

    run(main())


def test_closed_in_the_moment_in_which_it_says_something(made: list[Staged]) -> None:
    """The waiting task is cancelled when its message is there already: it may not go on as if nothing was."""

    async def use(host: ProcessHost, heard: list[tuple[int, Event]]) -> None:
        host.send(submit(0))
        made[0].says(Heartbeat(0.0, {}, 0.0))
        async with asyncio.timeout(1):
            await host.close()
        assert len(made) == 1 and [key for key, _ in heard] == [0]

    hosted(use)


def test_voices_are_those_of_the_last_time_it_loaded(made: list[Staged]) -> None:
    """One voice was removed and another stored while it ran. The default voice is one that exists."""

    async def main() -> None:
        engine = CosyVoice2Engine(Path("nowhere"), isolation="process")
        await engine.start()
        assert [voice.name for voice in engine.voices] == ["anna"]
        Staged.first_words = lambda staged: staged.says(EngineReady({"bert": "", "carl": ""}))
        made[0].dies()
        await some_turns()
        assert [voice.name for voice in engine.voices] == ["bert", "carl"]
        speaking = asyncio.create_task(anext(engine.synthesize(Utterance("u", "Yes."))))
        await some_turns()
        (order,) = made[1].orders
        assert isinstance(order, SubmitUtterance) and order.voice == "bert"
        speaking.cancel()
        await some_turns()
        made[1].says(UtteranceEvent(order.key, UtteranceEnded()))
        await asyncio.wait([speaking])
        await engine.close()
        assert engine.voices == ()

    run(main())


def test_one_that_cannot_be_cleared_away_is_killed_and_replaced_and_its_utterances_end(
    made: list[Staged], caplog: pytest.LogCaptureFixture
) -> None:
    async def use(host: ProcessHost, heard: list[tuple[int, Event]]) -> None:
        killed: list[int] = []

        async def fail() -> str:
            raise RuntimeError("whatever it is")

        host.send(submit(1))
        made[0].end, made[0].child.kill = fail, lambda: killed.append(1)  # type: ignore[method-assign]
        made[0].dies()
        await some_turns()
        ((key, event),) = heard
        assert key == 1 and isinstance(event, UtteranceEnded) and event.error is not None and event.error.retryable
        assert killed and len(made) == 2 and host.is_ready

    hosted(use)
    assert "could not be cleared away: whatever it is" in caplog.text


# ------------------------------------------------------------------------------ pauses


@pytest.mark.parametrize("how", ["dead at once", "cannot load", "ready and dead"])
def test_one_that_fails_again_and_again_is_started_ever_more_slowly(made: list[Staged], how: str) -> None:
    def fail(staged: Staged) -> None:
        if how == "cannot load":
            staged.says(LoadFailed(EngineUnavailable("flow.pt is missing")))
        elif how == "ready and dead":
            staged.says(EngineReady({"anna": ""}))
        staged.dies()

    async def use(host: ProcessHost, _: object) -> None:
        Staged.first_words = fail
        made[0].dies()
        await asyncio.sleep(sum(BACKOFF_S) + 3 * BACKOFF_S[-1] + 1)
        assert pauses_s(made) == [*BACKOFF_S, BACKOFF_S[-1], BACKOFF_S[-1], BACKOFF_S[-1]]
        assert pauses_s(made)[:6] == [0, 1, 2, 5, 10, 30], "and after half a minute it is tried for ever"
        Staged.first_words = lambda staged: staged.says(EngineReady({"anna": ""}))
        await asyncio.sleep(BACKOFF_S[-1])
        assert host.is_ready

    hosted(use)


def test_one_that_was_steady_is_started_again_at_once(made: list[Staged]) -> None:
    async def use(host: ProcessHost, _: object) -> None:
        for _ in range(3):
            made[-1].dies()
            await asyncio.sleep(3.0)
        assert pauses_s(made) == [0, 3 + 1, 2 + 2], "3 s of life are not steady"
        assert host.counters()["restarts"] == len(made) - 1 == 3
        for _ in range(int(STEADY_S)):
            made[-1].says(Heartbeat(0.0, {}, 0.0))
            await asyncio.sleep(1.0)
        n_made = len(made)
        made[-1].dies()
        await some_turns()
        assert len(made) == n_made + 1 and host.is_ready
        assert host.counters()["restarts"] == n_made, "what the process counted is gone, and this is not"

    hosted(use)


def test_one_that_never_loaded_is_not_tried_again(made: list[Staged]) -> None:
    async def main() -> None:
        Staged.first_words = Staged.dies
        host = ProcessHost(Settings(Path("nowhere")), lambda *_: None)
        with pytest.raises(EngineError, match="ended while it was loading"):
            await host.start()
        await asyncio.sleep(100)
        assert len(made) == 1
        await host.close()

    run(main())


# --------------------------------------------------------- those that wait for the next


def engine_of(made: list[Staged], load_s: float, use: Callable[[CosyVoice2Engine], Awaitable[None]]) -> None:
    """Run `use` with an engine that took `load_s` to load, and whose next process is silent until a test speaks."""

    async def main() -> None:
        Staged.first_words = lambda staged: None
        engine = CosyVoice2Engine(Path("nowhere"), isolation="process", timeouts=Timeouts(restart_wait_s=10.0))
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(load_s)
        made[0].says(EngineReady({"anna": ""}))
        await starting
        async with asyncio.timeout(MOST_S):
            await use(engine)
        await engine.close()
        assert engine.stats() == EngineStats() and len(asyncio.all_tasks()) == 1

    run(main())


def asked(engine: CosyVoice2Engine, **how: Any) -> asyncio.Task[Chunk]:
    return asyncio.create_task(anext(engine.synthesize(Utterance("u", "Yes.", **how))))


async def refused(task: asyncio.Task[Chunk]) -> EngineError:
    """Its error, which it has now."""
    await some_turns()
    assert task.done(), "it waits"
    error = task.exception()
    assert isinstance(error, EngineError) and error.retryable
    return error


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_an_utterance_asked_for_in_a_restart_waits_for_the_next_process(made: list[Staged]) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        running = asked(engine)
        await some_turns()
        made[0].dies()
        await some_turns()
        assert (await refused(running)).retry_after_ms == 3000
        await asyncio.sleep(1.0)
        assert engine.stats() == EngineStats(is_ready=False, retry_after_ms=2000)
        waiting = asked(engine)
        await asyncio.sleep(2.0)
        assert not waiting.done() and made[1].orders == []
        assert engine.stats() == EngineStats(n_queued=1, is_ready=False, retry_after_ms=RETRY_LEAST_MS)
        made[1].says(EngineReady({"anna": ""}))
        await some_turns()
        (order,) = made[1].orders
        assert isinstance(order, SubmitUtterance) and order.voice == "anna"
        made[1].says(UtteranceEvent(order.key, UtteranceEnded()))
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), StopAsyncIteration)

    engine_of(made, 3.0, use)


def test_an_utterance_is_refused_at_once_if_the_process_is_not_expected_in_time(made: list[Staged]) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        made[0].dies()
        await some_turns()
        assert (await refused(asked(engine))).retry_after_ms == 12_000
        await asyncio.sleep(1.5)
        assert (await refused(asked(engine))).retry_after_ms == 10_500
        await asyncio.sleep(1.0)
        waiting = asked(engine)
        await asyncio.sleep(1.0)
        assert not waiting.done(), "what is left of the start fits"
        waiting.cancel()
        await asyncio.wait([waiting])

    engine_of(made, 12.0, use)


def test_an_utterance_waits_no_longer_than_restart_wait_s(made: list[Staged]) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        made[0].dies()
        await some_turns()
        begun_s, waiting = now_s(), asked(engine)
        await asyncio.wait([waiting])
        assert now_s() - begun_s == pytest.approx(10.0)
        assert (await refused(waiting)).retry_after_ms == RETRY_LEAST_MS

    engine_of(made, 3.0, use)


def test_an_utterance_is_refused_as_soon_as_a_failed_start_makes_the_wait_too_long(made: list[Staged]) -> None:
    """The third start in a row is paused for, so that the fourth cannot come in time."""

    async def use(engine: CosyVoice2Engine) -> None:
        made[0].dies()
        await some_turns()
        begun_s, waiting = now_s(), asked(engine)
        for n in (1, 2, 3):
            await asyncio.sleep(BACKOFF_S[n - 1] + 1.0)
            assert len(made) == n + 1
            made[n].dies()
            await some_turns()
            assert waiting.done() is (n == 3), n
        assert now_s() - begun_s == pytest.approx(1.0 + 1.0 + 1.0 + 2.0 + 1.0)
        assert (await refused(waiting)).retry_after_ms == 1000 * (5 + 3)

    engine_of(made, 3.0, use)


@pytest.mark.parametrize("how", ["cancelled", "closed", "closed in a pause"])
def test_a_waiting_utterance_can_be_ended_at_once(made: list[Staged], how: str) -> None:
    """Its listener cancels it, or the engine is closed; no process hears of it."""

    async def use(engine: CosyVoice2Engine) -> None:
        made[0].dies()
        await some_turns()
        waiting = asked(engine, more=TextFeed())
        await asyncio.sleep(1.0)
        if how == "closed in a pause":
            made[1].dies()
            await asyncio.sleep(0.5)
        assert engine.stats().n_queued == 1 and not waiting.done()
        begun_s = now_s()
        if how == "cancelled":
            waiting.cancel()
            await asyncio.wait([waiting])
            assert engine.stats().n_queued == 0
        else:
            await engine.close()
            await asyncio.wait([waiting])
            assert "was closed" in str(waiting.exception())
        assert now_s() == begun_s
        if how == "cancelled":
            made[1].says(EngineReady({"anna": ""}))
            await some_turns()
            assert engine.stats() == EngineStats()
        assert made[1].orders == []

    engine_of(made, 3.0, use)


def test_an_utterance_whose_voice_is_gone_after_the_restart_is_refused(made: list[Staged]) -> None:
    async def use(engine: CosyVoice2Engine) -> None:
        made[0].dies()
        await some_turns()
        waiting = asked(engine, voice="anna")
        await some_turns()
        made[1].says(EngineReady({"bert": ""}))
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), UnknownVoice) and made[1].orders == []

    engine_of(made, 3.0, use)


# ----------------------------------------------------------------------------- silence


def test_a_standstill_of_the_server_does_not_end_a_process(made: list[Staged]) -> None:
    """The loop stood still for ten minutes, and the heartbeats of that time are in the socket; then silence counts."""

    async def use(host: ProcessHost, _: object) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(4):
            await asyncio.sleep(1.0)
            made[0].says(Heartbeat(0.0, {}, 0.0))
            await some_turns()
            loop.now_s += 600.0
            await asyncio.sleep(0.3)
            assert host.is_ready
        made[0].says(Heartbeat(0.0, {}, 0.0))
        await asyncio.sleep(1.9)
        assert host.is_ready
        await asyncio.sleep(0.4)
        assert not host.is_ready and len(made) == 1
        await asyncio.sleep(2.5)
        assert not host.is_ready and len(made) == 1
        await asyncio.sleep(0.5)
        assert host.is_ready and len(made) == 2

    hosted(use)


def test_a_process_that_loads_may_be_silent_for_longer(made: list[Staged], caplog: pytest.LogCaptureFixture) -> None:
    """A process that sends heartbeats may load for any time."""

    async def use(host: ProcessHost, _: object) -> None:
        Staged.first_words = lambda staged: None
        made[0].dies()
        await some_turns()
        for _ in range(300):
            made[-1].says(Heartbeat(0.0, {}, 0.0))
            await asyncio.sleep(1.0)
        assert len(made) == 2 and not host.is_ready
        await asyncio.sleep(LOADING_SILENCE_S - 2)
        assert len(made) == 2
        await asyncio.sleep(2 + BACKOFF_S[1])
        assert len(made) == 3

    hosted(use)
    assert "sent nothing for 60 s" in caplog.text


def test_a_first_process_that_hangs_while_it_loads_is_an_error(made: list[Staged]) -> None:
    async def main() -> None:
        Staged.first_words = lambda staged: None
        host = ProcessHost(Settings(Path("nowhere")), lambda *_: None)
        with pytest.raises(EngineError, match="killed while it was loading: it sent nothing for 60 s"):
            async with asyncio.timeout(MOST_S):
                await host.start()
        assert now_s() == pytest.approx(LOADING_SILENCE_S, abs=1.0)
        await host.close()

    run(main())


def test_utterances_of_one_that_hangs_end_though_it_takes_long_to_die(made: list[Staged]) -> None:
    """A killed process may live on in a driver call."""

    async def use(host: ProcessHost, heard: list[tuple[int, Event]]) -> None:
        host.send(submit(1))
        made[0].may_end.clear()
        await asyncio.sleep(DEFAULT_TIMEOUTS.stall_s + 1)
        ((key, event),) = heard
        assert key == 1 and isinstance(event, UtteranceEnded) and event.error is not None and event.error.retryable
        assert len(made) == 1 and not host.is_ready
        made[0].may_end.set()
        await some_turns()
        assert len(made) == 2 and host.is_ready

    hosted(use)


# ----------------------------------------------------------------------------- orphans

PARENT = """
import asyncio, sys
from pathlib import Path
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine

async def main():
    engine = CosyVoice2Engine(Path(sys.argv[1]), isolation="process")
    await engine.start()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("while_it_loads", [False, True])
def test_a_parent_that_is_killed_leaves_no_process(model_dir: Path, tmp_path: Path, while_it_loads: bool) -> None:
    """After kill -9 of the server the engine sees that its socket is closed, also while it loads."""
    environment = dict(os.environ)
    if while_it_loads:
        (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
        environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-c", PARENT, str(model_dir)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid = 0
    try:
        pid = engine_pid(parent)
        if not while_it_loads:
            assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while is_alive(pid):
            assert time.monotonic() < end_s, "the engine's process outlives its parent"
            time.sleep(0.02)
    finally:
        parent.kill()
        if pid and is_alive(pid):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()
