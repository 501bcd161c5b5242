"""Pages of the console that watch the calls of a server, as far as the server sees them: one stream each, and the
state every five seconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ASK_S = 5.0


@contextmanager
def watchers(port: int, n: int) -> Iterator[list[int]]:
    """`n` pages watch while this lasts. The list has how many snapshots each got."""
    counts = [0] * n
    loop = asyncio.new_event_loop()
    tasks: list[asyncio.Task[None]] = []

    async def all_of_them() -> None:
        tasks.extend(asyncio.ensure_future(_watch(port, counts, at)) for at in range(n))
        tasks.append(asyncio.ensure_future(_ask_state(port, n)))
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)

    thread = threading.Thread(target=lambda: loop.run_until_complete(all_of_them()), daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        thread.join(5)
        if not thread.is_alive():
            loop.close()


async def _watch(port: int, counts: list[int], at: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        writer.write(b"GET /console/api/calls HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while line := await reader.readline():
            counts[at] += line.startswith(b"{")
    finally:
        writer.close()


async def _ask_state(port: int, n: int) -> None:
    while n:
        await asyncio.sleep(_ASK_S / n)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /console/api/state HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
