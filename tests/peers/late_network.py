"""A network between a browser and a server: as slow as a test wants it, and sometimes gone without a word.

A network that is gone closes no connection: both ends only hear nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HOST = "127.0.0.2"
"""Of this machine, but a page does not take it for one that is reached without a network."""
_PIECE_BYTES = 2048
_MOST_PIECES = 512


class LateNetwork:
    """See the module text. `port` at HOST is the server's, as a browser behind this network sees it."""

    def __init__(self, server_port: int, latency_ms: float, bytes_per_s: float) -> None:
        self.port = 0
        self._server_port = server_port
        self._one_way_s = latency_ms / 2000
        self._bytes_per_s = bytes_per_s
        self._is_there = asyncio.Event()
        self._is_there.set()
        self._free_s = [0.0, 0.0]
        """When each direction can carry the next piece."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._has_ended = False

    def go(self) -> None:
        """From now on nothing arrives, at either end."""
        self._is_there.clear()

    def come_back(self) -> None:
        """What was under way arrives."""
        self._is_there.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._has_ended:
            writer.transport.abort()
            return
        self._writers.add(writer)
        connecting = self._keep(asyncio.create_task(self._connect(reader, writer)))
        await asyncio.wait([connecting])

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(server_writer)
        for at, (come, go) in enumerate(((reader, server_writer), (server_reader, writer))):
            self._keep(asyncio.create_task(self._carry(come, go, at)))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_PIECES)
        arriving = asyncio.create_task(self._arrive(under_way, writer, direction))
        now_s = asyncio.get_running_loop().time
        try:
            with suppress(ConnectionError):
                while piece := await reader.read(_PIECE_BYTES):
                    await under_way.put((now_s() + self._one_way_s, piece))
            await under_way.put((now_s() + self._one_way_s, b""))
            await arriving
        finally:
            arriving.cancel()
            with suppress(asyncio.CancelledError):
                await arriving
            writer.transport.abort()
            self._writers.discard(writer)

    async def _arrive(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: int
    ) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            at_s, piece = await under_way.get()
            await asyncio.sleep(at_s - now_s())
            begin_s = max(now_s(), self._free_s[direction])
            self._free_s[direction] = begin_s + len(piece) / self._bytes_per_s
            await asyncio.sleep(self._free_s[direction] - now_s())
            await self._is_there.wait()
            if not piece:
                writer.close()
                return
            with suppress(ConnectionError):
                writer.write(piece)
                await writer.drain()

    async def end(self) -> None:
        """Close all connections, also those that a page opens meanwhile."""
        self._has_ended = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # A task that is cancelled before its first step closes nothing, and uvloop waits for its connection for ever.
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def late_network(
    server_port: int, latency_ms: float = 0, bytes_per_s: float = float("inf")
) -> AsyncIterator[LateNetwork]:
    """`latency_ms` there and back; `bytes_per_s` in each direction, of all connections together."""
    network = LateNetwork(server_port, latency_ms, bytes_per_s)
    listener = await asyncio.start_server(network.accept, HOST, 0)
    network.port = listener.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        listener.close()
        await network.end()
        await listener.wait_closed()
