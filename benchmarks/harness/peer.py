"""A WebSocket client on a bare asyncio.Protocol, light enough that one core can run hundreds of them.

It masks with a key of zeros. That is legal and leaves the payload unchanged, so a repeated message is built once.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from base64 import b64encode
from typing import Any

_TEXT, _BINARY, _CLOSE, _PING = 1, 2, 8, 9


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """One masked, final WebSocket frame (RFC 6455 §5.2)."""
    n = len(payload)
    length = bytes((0x80 | n,)) if n < 126 else b"\xfe" + n.to_bytes(2, "big")
    return bytes((0x80 | opcode,)) + length + b"\0\0\0\0" + payload


class Peer(asyncio.Protocol):
    """One socket. Subclasses get `on_message(payload, at_ns)`; `at_ns` is when the bytes came."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rest = b""
        self._is_open = False
        self.close_code: int | None = None
        """What the server has closed with, if it said so."""
        self.close_reason = ""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    async def connect(self, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        await self.opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # uvloop has a class of its own for transports
        key = b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def send(self, message: dict[str, Any]) -> None:
        self.write(frame(json.dumps(message, separators=(",", ":")).encode()))

    def write(self, framed: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(framed)

    def hang_up(self) -> None:
        """Send a close frame, so that the server learns of the end at once."""
        self.write(frame((1000).to_bytes(2, "big"), _CLOSE))

    def data_received(self, data: bytes) -> None:
        at_ns = time.monotonic_ns()
        if self._rest:
            data = self._rest + data
        if not self._is_open:
            head, found, rest = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = data
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.opened.set_exception(ConnectionError(data[:300].decode(errors="replace")))
                return
            self._is_open = True
            self.opened.set_result(None)
            data = rest
        at, n_data = 0, len(data)
        while n_data - at >= 2:
            n = data[at + 1]
            begin = at + 2
            if n >= 126:
                n_length = 2 if n == 126 else 8
                begin += n_length
                if n_data < begin:
                    break
                n = int.from_bytes(data[begin - n_length : begin], "big")
            end = begin + n
            if end > n_data:
                break
            opcode = data[at] & 15
            if opcode == _TEXT:
                self.on_message(data[begin:end], at_ns)
            elif opcode == _BINARY:
                self.on_binary(data[begin:end], at_ns)
            elif opcode == _PING:
                self.write(frame(data[begin:end], 10))
            elif opcode == _CLOSE:
                self.close_code = int.from_bytes(data[begin : begin + 2], "big") if n >= 2 else None
                self.close_reason = data[begin + 2 : end].decode(errors="replace")
                self.write(frame(data[begin:end], _CLOSE))
                self.transport.close()
            at = end
        self._rest = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("closed during the handshake"))
        if not self.closed.done():
            self.closed.set_result(None)

    def on_message(self, payload: bytes, at_ns: int) -> None:
        raise NotImplementedError

    def on_binary(self, payload: bytes, at_ns: int) -> None:
        """A frame of speech without an envelope. Most peers here do not ask for it."""
