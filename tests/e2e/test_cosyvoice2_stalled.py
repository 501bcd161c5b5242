"""CosyVoice2's process is stopped or killed under a real `serve`: the effects on callers, bots and an orchestrator."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from engine_child import Hold, engine_pid, fixture_of_hold, is_alive  # noqa: F401
from rig import Bot, gather, get, greeted
from served import process
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("forked_server"), pytest.mark.thorough]

WAIT_S = 30.0
STALL_S = 4.0
NOTICED_S = 3.0
"""A stop is detected within this time: 2 s without a message, and the time between checks."""
LONG = "Your parcel left the depot on Tuesday morning and will be with you before noon on Friday or on Saturday."
"""A random model makes many seconds of audio of it, far more than is generated ahead."""


def served(tiny_model: Path, use: Callable[[int, int], Awaitable[None]], **engines: float) -> str:
    """Run `use` with a server's port and its engine's pid, stop the server, and return its log."""
    settings = {"default": "cosyvoice2", "cosyvoice2.model": tiny_model, "cosyvoice2.flow_steps": 3, **engines}
    arguments = [each for name, value in settings.items() for each in ("--set", f"engines.{name}={value}")]

    async def bounded(port: int, pid: int) -> None:
        async with asyncio.timeout(100):
            await use(port, pid)

    with process(*arguments) as (server, port):
        pid = engine_pid(server)
        try:
            asyncio.run(bounded(port, pid))
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=20)
            assert server.returncode == 0, errors
            assert "Traceback" not in errors
            return errors
        finally:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def called(port: int, **options: str) -> AsyncIterator[Bot]:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    async with greeted(f"ws://127.0.0.1:{port}/v1/stream?{query}") as bot:
        yield bot


@asynccontextmanager
async def called_on_two_legs(port: int, call: str) -> AsyncIterator[Bot]:
    """A bot whose call has its media leg on another socket."""
    async with called(port, call=call) as bot, connect(f"ws://127.0.0.1:{port}/media/native", proxy=None) as media:
        await media.send(json.dumps({"type": "start", "call": call, "stream": "s1"}))

        async def play() -> None:
            async for _ in media:
                pass

        playing = asyncio.create_task(play())
        await bot.event("call")
        yield bot
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing


async def readyz_is(port: int, status: int) -> float:
    """Wait for this status of /readyz; return the time."""
    end_s = time.monotonic() + WAIT_S
    while (answer := await get(port, "/readyz"))[0] != status:
        assert time.monotonic() < end_s, answer
        await asyncio.sleep(0.02)
    return time.monotonic()


async def speaks(bot: Bot, turn: str, text: str = LONG) -> None:
    await bot.say(text, turn)
    await bot.event("started", turn=turn, within_s=WAIT_S)


async def error_of(bot: Bot, turn: str, within_s: float = WAIT_S) -> dict[str, Any]:
    """The `error` that ends a turn. It must say when to try again."""
    error = await bot.event("error", turn=turn, within_s=within_s)
    assert error["code"] == "engine_failed" and error["retryable"] and not error["fatal"]
    assert 500 <= error["retry_after_ms"] < 60_000, error
    return error


async def n_queued(port: int) -> int:
    text = (await get(port, "/metrics"))[2]
    found = re.search(r'^telephony_tts_engine_queued\{engine="cosyvoice2"\} (\d+)', text, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def queue_is(port: int, n: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while (there := await n_queued(port)) != n:
        assert time.monotonic() < end_s, there
        await asyncio.sleep(0.02)


def test_a_stopped_engine_is_reported_and_replaced(tiny_model: Path, hold: Hold) -> None:
    """/readyz, new calls and new turns report the stall within 3 s. Active turns end after `stall_s`, with one leg as
    with two. Turns requested during the restart are spoken afterwards or refused at once. Calls of the other engine
    are not affected."""

    async def use(port: int, pid: int) -> None:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            one, idle = await enter(called(port, audio="binary")), await enter(called(port, audio="binary"))
            two, gone = await enter(called_on_two_legs(port, "c1")), await enter(called(port, audio="binary"))
            other = await enter(called(port, audio="binary", voice="hibari/heart"))
            await gather(speaks(one, "a"), speaks(two, "a"))
            await speaks(other, "other", "Your parcel left the depot on Tuesday morning. " * 5)
            os.kill(pid, signal.SIGSTOP)
            begun_s = time.monotonic()
            assert await readyz_is(port, 503) - begun_s < NOTICED_S
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://127.0.0.1:{port}/v1/stream", proxy=None)
            assert refused.value.response.status_code == 503
            assert 1 <= int(refused.value.response.headers["Retry-After"]) < 60
            await idle.say("Hello.", "early")
            assert "does not respond" in (await error_of(idle, "early", within_s=0.7))["message"]
            assert time.monotonic() - begun_s < STALL_S, "all of this was before anything was replaced"
            with hold():
                for bot in (one, two):
                    error = await error_of(bot, "a")
                    assert STALL_S - 0.5 < time.monotonic() - begun_s < STALL_S + 1.5
                    assert error["heard_text"] + error["unheard_text"] == LONG

                # It is being started again: these wait, and two of them no longer.
                for bot in (one, two, idle, gone):
                    await bot.say("Bye.", "late")
                await queue_is(port, 4)
                await idle.send({"type": "clear"})
                await idle.event("cleared", turn="late", within_s=0.5)
                await gone.aclose()
                await queue_is(port, 2)
                assert (await get(port, "/readyz"))[0] == 503, "they did not wait for the engine"
            for bot in (one, two):
                await bot.event("done", turn="late", within_s=WAIT_S)
            await readyz_is(port, 200)
            await idle.say("Bye.", "again")
            await idle.event("done", turn="again", within_s=WAIT_S)
            assert (await other.event("done", turn="other", within_s=WAIT_S))["underruns"] == 0
            assert not is_alive(pid)

    errors = served(tiny_model, use, stall_s=STALL_S, restart_wait_s=29, **{"hibari.workers": 1})
    assert f"sent nothing for {STALL_S:g} s, SIGKILL" in errors and "ready again" in errors


def test_an_engine_that_continues_in_time_loses_nothing(tiny_model: Path) -> None:
    """The same process finishes the active turn."""

    async def use(port: int, pid: int) -> None:
        async with called(port, audio="binary") as bot, called_on_two_legs(port, "c1") as two:
            await gather(speaks(bot, "a"), speaks(two, "a"))
            os.kill(pid, signal.SIGSTOP)
            await readyz_is(port, 503)
            os.kill(pid, signal.SIGCONT)
            await readyz_is(port, 200)
            for each in (bot, two):
                assert (await each.event("done", turn="a", within_s=WAIT_S))["audio_ms"] > 4000
            assert is_alive(pid)
            assert not [event for each in (bot, two) for event in each.events if event["type"] == "error"]

    errors = served(tiny_model, use, stall_s=20)
    assert "responds again" in errors and "process failed" not in errors


def test_turns_of_a_killed_engine_say_when_to_retry(tiny_model: Path, hold: Hold) -> None:
    """With one leg and with two. Without `restart_wait_s`, turns requested during the restart fail at once as well."""

    async def use(port: int, pid: int) -> None:
        async with called(port, audio="binary") as one, called_on_two_legs(port, "c1") as two:
            await gather(speaks(one, "a"), speaks(two, "a"))
            with hold():
                os.kill(pid, signal.SIGKILL)
                for bot in (one, two):
                    error = await error_of(bot, "a")
                    assert error["heard_text"] + error["unheard_text"] == LONG
                killed_s = time.monotonic()
                for bot in (one, two):
                    await bot.say("Bye.", "early")
                    early = await error_of(bot, "early", within_s=0.7)
                    assert "started again" in early["message"] and early["unheard_text"] == "Bye."
            back_ms = 1000 * (await readyz_is(port, 200) - killed_s)
            hint_ms = early["retry_after_ms"]
            assert 0.2 * hint_ms < back_ms < 5 * hint_ms + 1000, "the hint is of the right size"
            for bot in (one, two):
                await bot.say("Bye.", "again")
                await bot.event("done", turn="again", within_s=WAIT_S)

    served(tiny_model, use, restart_wait_s=0)
