"""A raw WebSocket client that can send any bytes and reads only when the test says so."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.frames import Frame, Opcode


class RawPeer:
    """`data` holds all bytes read after the handshake."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""

    async def send(self, data: bytes | str | dict[str, Any], opcode: Opcode = Opcode.TEXT, fin: bool = True) -> None:
        """One frame."""
        await self.send_bytes(frame(data, opcode, fin))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read(self, n: int = 65_536) -> bytes:
        """The bytes that have arrived, or the next ones; empty at the end of the stream."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.sock, n)
        except ConnectionError:
            data = b""
        self.data += data
        return data

    async def read_to_end(self, within_s: float = 8) -> bytes:
        async with asyncio.timeout(within_s):
            while await self.read():
                pass
        return self.data

    async def read_to_close(self, within_s: float = 8) -> int | None:
        """Read up to the close frame, or the end of the stream; the close code."""
        async with asyncio.timeout(within_s):
            while self.close_code is None and await self.read():
                pass
        return self.close_code

    async def read_until(self, text: bytes, within_s: float = 8) -> None:
        async with asyncio.timeout(within_s):
            while text not in self.data:
                if not await self.read():
                    raise AssertionError(f"the stream ended before {text!r}: {self.data[-300:]!r}")

    @property
    def close_code(self) -> int | None:
        """The code of the close frame at the end of `data`."""
        at, code = 0, None
        while at + 2 <= len(self.data):
            opcode, length = self.data[at] & 15, self.data[at + 1] & 127
            at += 2
            if length == 126:
                length, at = int.from_bytes(self.data[at : at + 2], "big"), at + 2
            elif length == 127:
                length, at = int.from_bytes(self.data[at : at + 8], "big"), at + 8
            if opcode == Opcode.CLOSE:
                code = int.from_bytes(self.data[at : at + 2], "big")
            at += length
        return code

    def reset(self) -> None:
        """Abort the connection: a TCP reset and no close frame."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def frame(data: bytes | str | dict[str, Any], opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    """The bytes of one masked frame."""
    if isinstance(data, dict):
        data = json.dumps(data)
    payload = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return Frame(opcode, payload, fin).serialize(mask=True)


@asynccontextmanager
async def raw_peer(port: int, path: str = "/v1/stream", receive_buffer: int | None = None) -> AsyncIterator[RawPeer]:
    """A connection after its handshake."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    try:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        key = base64.b64encode(os.urandom(16)).decode()
        request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await loop.sock_sendall(sock, request.encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await loop.sock_recv(sock, 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        yield RawPeer(sock)
    finally:
        sock.close()
