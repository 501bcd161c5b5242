"""Many HTTP requests for the speech of a long text at once, from a process of their own."""

from __future__ import annotations

import asyncio
from multiprocessing.queues import Queue
from typing import Any

import uvloop


def ask_all(port: int, body: bytes, n_requests: int, seconds: float, told: Queue[Any]) -> None:
    """Make all requests at once, in a process that begins here. `told` gets None at the beginning, the statuses at the
    end."""
    statuses: list[str] = []

    async def main() -> None:
        told.put(None)
        tasks = [asyncio.create_task(_ask(port, body, statuses)) for _ in range(n_requests)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    uvloop.run(main())
    told.put(statuses)


async def _ask(port: int, body: bytes, statuses: list[str]) -> None:
    """One request for speech. Its answer is read until the measured time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /tts/stream HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await reader.readline()
        statuses.append(head.decode().split()[1] if head else "closed")
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()
