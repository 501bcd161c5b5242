"""Many short calls: each says one sentence and ends as soon as its speech has begun. They show soonest what calls
leave in a process. It is judged that they speak, and not how well."""

from __future__ import annotations

import asyncio
import json
import random
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


class _Bot(Link):
    """Says one sentence, and ends its call when that has begun."""

    def __init__(self, path: str, around: Surroundings) -> None:
        super().__init__(path, around)
        self.has_begun = asyncio.Event()

    async def speak(self, text: str, *, clears: bool) -> None:
        self.send({"type": "say", "turn": "b1", "text": text})
        await self.has_begun.wait()
        if clears:
            self.send({"type": "clear"})
        self.send({"type": "close", "now": True})
        await self.closed

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        if message["type"] == "started":
            self.has_begun.set()

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        """Nobody hears it."""


async def _native(around: Surroundings, text: str, *, clears: bool) -> None:
    bot = _Bot(f"/v1/stream?audio=binary&lead_ms=0&call=N{uuid.uuid4().hex}", around)
    try:
        await bot.connect(around.port)
        await bot.speak(text, clears=clears)
    finally:
        _cut(bot)


async def _twilio(around: Surroundings, text: str, *, clears: bool) -> None:
    name = f"CA{uuid.uuid4().hex}"
    bot = _Bot(f"/v1/stream?call={name}&audio=none&words=on", around)
    oracle = NativeOracle(Tally(), Stops(), has_media=True, is_lossy=True)
    media = CarrierLink(around, oracle, Twilio(name), late="fixed", late_ms=0, seed=1)
    try:
        await bot.connect(around.port)
        await media.connect(around.port)
        media.start()
        await bot.speak(text, clears=clears)
        await media.closed
    finally:
        _cut(bot)
        _cut(media)


async def _bridge(around: Surroundings, text: str, *, clears: bool) -> None:
    name = uuid.uuid4()
    bot = _Bot(f"/v1/stream?call={name}&audio=none&words=on", around)
    telephone = AudioSocketLink(name.bytes, lambda _payload, _at_ns: None)
    try:
        await bot.connect(around.port)
        await asyncio.get_running_loop().create_connection(lambda: telephone, "127.0.0.1", around.media_port)
        await bot.speak(text, clears=clears)
        await telephone.closed
    finally:
        _cut(bot)
        _cut(telephone)


async def _http(around: Surroundings, text: str, *, clears: bool) -> None:
    """One request on a connection of its own. `clears`: the client leaves before it has the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", around.port)
    body = json.dumps({"model": "fake", "voice": "tone", "input": text, "response_format": "pcm"}).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: torture\r\nContent-Type: application/json\r\nConnection: close\r\n"
    try:
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
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
            door = doors[number % len(doors)]
            try:
                async with asyncio.timeout(_WITHIN_S):
                    await door(around, texts[number // len(doors) % _N_TEXTS], clears=number % 5 == 0)
            except (OSError, TimeoutError) as error:
                tally.violations.append(Violation(v.CLOSE, f"a short call{door.__name__}: {error!r}", number))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    tally.counts["rounds"] += 1
    tally.violations += [Violation(v.OWN, crash) for crash in around.crashes[:5]]
    return tally
