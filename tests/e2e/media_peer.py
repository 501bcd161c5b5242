"""Media legs of dialects other than Twilio's, exactly as documented: our own media protocol, and Asterisk's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from rig import Rig, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

START = {"type": "start", "call": "c1", "stream": "s1", "lead_ms": 40, "parameters": {"from": "+49"}}

MEDIA_START = {
    "event": "MEDIA_START", "connection_id": "tts", "channel": "WebSocket/tts/0x1", "channel_id": "1.2",
    "format": "ulaw", "optimal_frame_size": 160, "ptime": 20,
}  # fmt: skip
PLAIN_START = "MEDIA_START connection_id:tts channel:WebSocket/tts/0x1 channel_id:1.2 format:ulaw ptime:20"


class Peer:
    """A media leg that plays nothing by itself. The test sends the reports of what was played."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[bytes] = []
        self.said: list[str] = []
        self.order: list[bytes | str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            async for message in self.socket:
                self.order.append(message)
                if isinstance(message, bytes):
                    self.frames.append(message)
                else:
                    self.said.append(message)

    async def tell(self, *what: str | bytes | dict[str, Any]) -> None:
        for each in what:
            await self.socket.send(json.dumps(each) if isinstance(each, dict) else each)

    async def hears(self, *what: str, within: str) -> None:
        await until(lambda: all(any(each in said for said in self.said) for each in what), within)

    async def closed(self) -> int | None:
        await asyncio.wait_for(self._reader, 5)
        return self.socket.close_code


@asynccontextmanager
async def leg(rig: Rig, path: str, **headers: str) -> AsyncIterator[Peer]:
    async with connect(
        rig.url(path), open_timeout=5, compression=None, proxy=None, additional_headers=headers, max_queue=None
    ) as socket:
        peer = Peer(socket)
        try:
            yield peer
        finally:
            await socket.close()
            await peer._reader


@asynccontextmanager
async def waiting_asterisk(port: int = 0) -> AsyncIterator[tuple[str, asyncio.Queue[Peer]]]:
    """A listening stand-in for Asterisk: its address, and a queue of the connections it accepts."""
    came: asyncio.Queue[Peer] = asyncio.Queue()

    async def on_leg(socket: ServerConnection) -> None:
        assert socket.request is not None and socket.subprotocol == "media"
        peer = Peer(socket)  # type: ignore[arg-type]  # both sides of a WebSocket read and write alike
        came.put_nowait(peer)
        await peer._reader

    async with serve(on_leg, "127.0.0.1", port, compression=None, subprotocols=[Subprotocol("media")]) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}/media/", came
