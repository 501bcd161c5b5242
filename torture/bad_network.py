"""A TCP proxy that delays, halts and sometimes cuts what passes: what a bad network looks like above TCP.

Above TCP, lost and reordered packets are delays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_DELAYS_MS = (0, 1, 5, 20, 60, 150)
_HALT_SHARE, _HALT_MS = 0.02, 400
_CHUNK = 4096
"""What passes at once. With the delays that is 88 kB in a second, and speech of a call needs 48 kB at most. With less
room what waits becomes more and more, until the server misses the answer to a ping, as it should."""


@asynccontextmanager
async def bad_network(port: int, seed: int) -> AsyncIterator[int]:
    """The port of a proxy to `port`."""
    choose = random.Random(seed)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass(reader, to_writer, choose))
                group.create_task(_pass(to_reader, writer, choose))
        except* (OSError, RuntimeError):
            pass  # one end is closed
        finally:
            for end in (writer, to_writer):
                end.close()
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, choose: random.Random) -> None:
    while data := await reader.read(_CHUNK):
        delay_ms = _HALT_MS if choose.random() < _HALT_SHARE else choose.choice(_DELAYS_MS)
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
