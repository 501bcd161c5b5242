"""Two scenarios that may leak memory in the server: many short calls, and many interruptions, at full speed."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from harness.calls import BotPeer, MediaPeer
from harness.process import resident_kib


async def calls(spec: dict[str, Any]) -> dict[str, Any]:
    """`n` calls with one short turn each, `width` at a time. Every other call has two legs."""

    async def one(at: int) -> None:
        name = f"CM{at:06d}"
        media = None
        if at % 2:
            media = MediaPeer(name)
            await media.start(spec["port"])
            bot = BotPeer(name)
        else:
            bot = BotPeer(name, audio="binary", options="&pace=burst")
        await bot.connect(spec["port"])
        await _until(bot, {"type": "say", "text": _short(at)}, "done" if media is None else "started")
        (media or bot).hang_up()
        await bot.closed
        if media is not None:
            await media.closed

    return await _series(spec, one)


async def barge_ins(spec: dict[str, Any], *, hang_up: bool = False) -> dict[str, Any]:
    """`n` interruptions on `width` standing calls, half of them with two legs."""
    bots: list[BotPeer] = []
    for at in range(spec["width"]):
        name = f"CI{at:06d}"
        if at % 2:
            await MediaPeer(name).start(spec["port"])
        bot = BotPeer(name, audio="none" if at % 2 else "base64")
        await bot.connect(spec["port"])
        bots.append(bot)
    free = asyncio.Queue[BotPeer]()
    for bot in bots:
        free.put_nowait(bot)

    async def one(at: int) -> None:
        bot = await free.get()
        await _until(bot, {"type": "say", "text": "A long sentence that is stopped before its end. " * 3}, "started")
        await asyncio.sleep(0.02)
        await _until(bot, {"type": "clear"}, "cleared")
        free.put_nowait(bot)

    result = await _series(spec, one)
    if hang_up:
        for bot in bots:
            bot.hang_up()
            await bot.closed
    return result


async def _until(bot: BotPeer, message: dict[str, Any], kind: str) -> None:
    """Send a message and wait up to 10 s for an event of this kind."""
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_event(event: dict[str, Any], _at_ns: int) -> None:
        if event["type"] == kind and not answered.done():
            answered.set_result(None)

    bot.on_event = on_event
    bot.send(message)
    await asyncio.wait_for(answered, 10)


def _short(at: int) -> str:
    return f"Hi {at % 50}."


async def _series(spec: dict[str, Any], one: Any) -> dict[str, Any]:
    n, every = spec["n"], max(1, spec["n"] // spec["samples"])
    rss_kib: list[int] = []
    done = 0
    gate = asyncio.Semaphore(spec["width"])
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def guarded(at: int) -> None:
        async with gate:
            await one(at)

    while done < n:
        batch = min(every, n - done)
        async with asyncio.TaskGroup() as group:
            for at in range(done, done + batch):
                group.create_task(guarded(at))
        done += batch
        # A sample is taken while no call is up, after a garbage collection in the server.
        if spec["server_pid"] is not None:
            os.kill(spec["server_pid"], signal.SIGUSR1)
            await asyncio.sleep(0.05)
            rss_kib.append(resident_kib(spec["server_pid"]))
    return {"n": n, "seconds": round(loop.time() - begun, 1), "rss_kib": rss_kib}
