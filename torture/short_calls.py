"""Many short calls: each says one sentence and ends as soon as its speech has begun. They show soonest what calls
leave in a process. It is judged that they speak, and not how well."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from torture import violations as v
from torture.carriers import CarrierLink
from torture.dialects import Twilio
from torture.letters import sentence
from torture.links import AudioSocketLink, Link
from torture.oracle import NativeOracle
from torture.surroundings import Surroundings
from torture.violations import Stops, Tally, Violation

AT_ONCE = 12
_WITHIN_S = 20.0
_N_TEXTS = 50
"""Fewer than the fake engine keeps, so that its cache is full at once."""


class Steps:
    """What a call has done and was told, and when: a call that fails shows what it waited for."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._steps: list[str] = []

    def add(self, what: str) -> None:
        self._steps.append(f"{what} at {time.monotonic() - self._begin_s:.2f} s")

    def __str__(self) -> str:
        return ", ".join(self._steps) or "nothing"


class Bot(Link):
    """Says one sentence, and ends its call when that has begun."""

    def __init__(self, path: str, around: Surroundings, steps: Steps) -> None:
        super().__init__(path, around)
        self._steps = steps
        self._has_begun = asyncio.Event()

    async def speak(self, text: str, *, clears: bool) -> None:
        """Raises ConnectionError if the server closes the connection before speech begins."""
        self.send({"type": "say", "turn": "b1", "text": text})
        beginning = asyncio.ensure_future(self._has_begun.wait())
        await asyncio.wait((beginning, self.closed), return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        if not self._has_begun.is_set():
            raise ConnectionError(f"closed with {self.close_code} ({self.close_reason}) before its speech began")
        if clears:
            self.send({"type": "clear"})
        self.send({"type": "close", "now": True})
        self._steps.add("close sent")
        await self.closed

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        self._steps.add(message["type"])
        if message["type"] == "started":
            self._has_begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._steps.add(f"bot closed with {self.close_code}")
        super().connection_lost(exc)

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        """Nobody hears it."""


async def _native(around: Surroundings, text: str, steps: Steps, *, clears: bool) -> None:
    bot = Bot(f"/v1/stream?audio=binary&lead_ms=0&call=N{uuid.uuid4().hex}", around, steps)
    try:
        await bot.connect(around.port)
        await bot.speak(text, clears=clears)
    finally:
        _cut(bot)


async def _twilio(around: Surroundings, text: str, steps: Steps, *, clears: bool) -> None:
    name = f"CA{uuid.uuid4().hex}"
    bot = Bot(f"/v1/stream?call={name}&audio=none&words=on", around, steps)
    oracle = NativeOracle(Tally(), Stops(), has_media=True, is_lossy=True)
    media = CarrierLink(around, oracle, Twilio(name), late="fixed", late_ms=0, seed=1)
    try:
        await bot.connect(around.port)
        await media.connect(around.port)
        media.closed.add_done_callback(lambda _: steps.add(f"media leg closed with {media.close_code}"))
        media.start()
        steps.add("media leg begun")
        await bot.speak(text, clears=clears)
        await media.closed
    finally:
        _cut(bot)
        _cut(media)


async def _bridge(around: Surroundings, text: str, steps: Steps, *, clears: bool) -> None:
    name = uuid.uuid4()
    bot = Bot(f"/v1/stream?call={name}&audio=none&words=on", around, steps)
    telephone = AudioSocketLink(name.bytes, lambda _payload, _at_ns: None)
    try:
        await bot.connect(around.port)
        await asyncio.get_running_loop().create_connection(lambda: telephone, "127.0.0.1", around.media_port)
        telephone.closed.add_done_callback(lambda _: steps.add("telephone closed"))
        steps.add("telephone connected")
        await bot.speak(text, clears=clears)
        await telephone.closed
    finally:
        _cut(bot)
        _cut(telephone)


async def _http(around: Surroundings, text: str, steps: Steps, *, clears: bool) -> None:
    """One request on a connection of its own. `clears`: the client leaves before it has the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", around.port)
    body = json.dumps({"model": "fake", "voice": "tone", "input": text, "response_format": "pcm"}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: torture\r\nContent-Type: application/json\r\nConnection: close\r\n"
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        steps.add("request sent")
        status = await reader.readline()
        steps.add(f"answered {status!r}")
        if b" 200 " not in status:
            raise ConnectionError(f"the answer began with {status!r}")
        await reader.read(100 if clears else -1)
    finally:
        writer.close()


def _cut(link: Link | AudioSocketLink) -> None:
    if link.transport is not None:
        link.transport.abort()


_Call = Callable[..., Awaitable[None]]
_DOORS: dict[str, tuple[_Call, ...]] = {"bridge": (_bridge,)}
_ALL: tuple[_Call, ...] = (_native, _twilio, _http)


async def run_short_calls(shape: str, port: int, media_port: int, n_calls: int, at_once: int = AT_ONCE) -> Tally:
    """Run so many calls through the doors of this shape of the server. One that does not speak and end in time is a
    violation."""
    tally = Tally()
    around = Surroundings(port, tally, Stops(), media_port=media_port)
    choose = random.Random(1)
    texts = [sentence(choose, "a", 1 + number % 3) for number in range(_N_TEXTS)]
    doors = _DOORS.get(shape, _ALL)
    numbers = iter(range(n_calls))

    async def work() -> None:
        for number in numbers:
            tally.n_checked[v.CLOSE] += 1
            tally.counts["calls"] += 1
            tally.counts["turns"] += 1
            door, steps = doors[number % len(doors)], Steps()
            try:
                async with asyncio.timeout(_WITHIN_S):
                    await door(around, texts[number // len(doors) % _N_TEXTS], steps, clears=number % 5 == 0)
            except (OSError, TimeoutError) as error:
                what = f"a short call{door.__name__}: {error!r} after {steps}"
                tally.violations.append(Violation(v.CLOSE, what, number))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    tally.counts["rounds"] += 1
    tally.violations += [Violation(v.OWN, crash) for crash in around.crashes[:5]]
    return tally
