"""A server that has only /media/native. It records what a leg sends, and sends what a test asks for."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

TIMEOUT_S = 8.0
LEAD_FRAMES = 2


class ServedCall:
    """One leg. `audio` is all the caller's audio so far, `events` the JSON messages after `start`, with their times."""

    def __init__(self, socket: ServerConnection, start: dict[str, Any]) -> None:
        self.socket = socket
        self.start = start
        self.audio = bytearray()
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.closed: tuple[int | None, str | None] | None = None
        self.changed = asyncio.Event()

    @property
    def name(self) -> str:
        return str(self.start["call"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for _, event in self.events if event["type"] == kind]

    async def speak(self, frames: list[bytes], mark: str | None = None) -> None:
        """Send frames like the server: one every 20 ms, 40 ms ahead of time."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for k, frame in enumerate(frames):
            await asyncio.sleep(max(0.0, begun_s + 0.020 * (k - LEAD_FRAMES) - loop.time()))
            await self.socket.send(frame)
        if mark is not None:
            await self.mark(mark)

    async def mark(self, name: str) -> None:
        await self.socket.send(json.dumps({"type": "mark", "name": name}))

    async def clear(self) -> None:
        await self.socket.send('{"type":"clear"}')

    async def until(self, true: Callable[[], object], what: str) -> None:
        """Wait until the leg has sent something."""
        async with asyncio.timeout(TIMEOUT_S):
            while not true():
                assert self.closed is None or true(), f"closed before {what}: {self.closed}"
                self.changed.clear()
                await self.changed.wait()

    def stop_reading(self) -> None:
        self.socket.transport.pause_reading()

    async def gone(self) -> None:
        await self.until(lambda: self.closed is not None, "the close")


Script = Callable[[ServedCall], Awaitable[None]]


class StandinServer:
    """`script` runs for each call that starts. When it returns, the call stays until the leg leaves."""

    def __init__(self, script: Script | None) -> None:
        self.script = script
        self.calls: dict[str, ServedCall] = {}
        self.headers: list[dict[str, str]] = []
        self.refusal: tuple[HTTPStatus, str] | None = None
        self._came = asyncio.Event()
        self._listener: Any = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/media/native"

    @property
    def n_connections(self) -> int:
        return len(self._listener.connections)

    async def call(self, name: str) -> ServedCall:
        """The call of this name, once it has started."""
        async with asyncio.timeout(TIMEOUT_S):
            while name not in self.calls:
                self._came.clear()
                await self._came.wait()
        return self.calls[name]

    @asynccontextmanager
    async def running(self, port: int = 0, receive_buffer: int | None = None) -> AsyncIterator[StandinServer]:
        sock = socket.create_server(("127.0.0.1", port))
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        async with serve(
            self._handle, sock=sock, process_request=self._answer, compression=None, close_timeout=1, max_queue=None
        ) as self._listener:
            yield self

    def die(self) -> None:
        """Reset every connection, as a killed process does."""
        for connection in list(self._listener.connections):
            connection.transport.abort()

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers.append({key.lower(): value for key, value in request.headers.raw_items()})
        if request.path != "/media/native":
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")
        return connection.respond(*self.refusal) if self.refusal is not None else None

    async def _handle(self, connection: ServerConnection) -> None:
        try:
            start = json.loads(await connection.recv())
        except ConnectionClosed:
            return
        assert start["type"] == "start", start
        call = self.calls[start["call"]] = ServedCall(connection, start)
        self._came.set()
        reading = asyncio.create_task(self._read(call))
        try:
            if self.script is not None:
                await self.script(call)
            await reading
        except ConnectionClosed:
            await reading
        finally:
            reading.cancel()

    async def _read(self, call: ServedCall) -> None:
        loop = asyncio.get_running_loop()
        try:
            async for data in call.socket:
                if isinstance(data, bytes):
                    call.audio += data
                else:
                    call.events.append((loop.time(), json.loads(data)))
                call.changed.set()
        except ConnectionClosed:
            pass
        finally:
            call.closed = (call.socket.close_code, call.socket.close_reason)
            call.changed.set()


@asynccontextmanager
async def standin_server(script: Script | None = None) -> AsyncIterator[StandinServer]:
    async with StandinServer(script).running() as server:
        yield server
