"""An HTTP client by hand: it sends any bytes, and reads a response piece by piece as it comes."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

BOUNDARY = "x7MA4YWxkTrZu0gW"


@dataclass
class Answer:
    """A response. `is_whole` is False if its body was cut off."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    is_whole: bool = True
    pieces: list[bytes] = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error, in our form or in OpenAI's."""
        code: str = self.json()["error"]["code"]
        return code


class HttpPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        self.writer.write(request(method, path, body, **headers))
        await self.writer.drain()

    async def head(self, within_s: float = 8) -> Answer:
        """The next response without its body."""
        async with asyncio.timeout(within_s):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return Answer(int(first.split()[1]), headers)

    async def answer(self, within_s: float = 8, *, has_body: bool = True) -> Answer:
        """The next response."""
        got = await self.head(within_s)
        if not has_body or got.status in (204, 304):
            return got
        try:
            async with asyncio.timeout(within_s):
                if got.headers.get("transfer-encoding") == "chunked":
                    while piece := await self.chunk():
                        got.pieces.append(piece)
                elif "content-length" in got.headers:
                    got.pieces.append(await self.reader.readexactly(int(got.headers["content-length"])))
                else:
                    got.pieces.append(await self.reader.read())
        except (asyncio.IncompleteReadError, ConnectionError):
            got.is_whole = False
        got.body = b"".join(got.pieces)
        return got

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty for the last one."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def is_closed(self, within_s: float = 8) -> bool:
        """Whether the server closes, and sends nothing before."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Abort the connection with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request. A header's name has underscores for its hyphens."""
    if body:
        headers.setdefault("Content_Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@asynccontextmanager
async def http_peer(port: int, receive_buffer: int | None = None) -> AsyncIterator[HttpPeer]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**16 if receive_buffer is None else 1024)
    try:
        yield HttpPeer(reader, writer)
    finally:
        writer.close()
        await asyncio.sleep(0)


async def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """One request on a connection of its own."""
    async with http_peer(port) as peer:
        await peer.send(method, path, body, **headers)
        return await peer.answer(has_body=method != "HEAD")


async def ask_json(port: int, path: str, values: Any, **headers: str) -> Answer:
    return await ask(port, "POST", path, json.dumps(values).encode(), Content_Type="application/json", **headers)


def multipart(values: dict[str, str], files: dict[str, bytes]) -> bytes:
    """The body of a form with files."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in values.items()]
    parts += [
        f'Content-Disposition: form-data; name="{name}"; filename="{name}.wav"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        for name, data in files.items()
    ]
    edge = f"--{BOUNDARY}".encode()
    return b"".join(edge + b"\r\n" + part + b"\r\n" for part in parts) + edge + b"--\r\n"
