"""A stand-in for a call over Asterisk's AudioSocket, as strict as a real Asterisk 22 was in trials.

It ends the call if a header and its payload are more than 5 ms apart, on audio without a payload, on any frame except
hang-up and audio, and (like the application) after 2 s without a frame in either direction. It has no buffer: the phone
would get the audio exactly as received.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

TIMEOUT_S = 8.0
_PAYLOAD_WITHIN_S = 0.005
_NOTHING_HEARD_S = 2.0
_AUDIO_KINDS = range(0x10, 0x19)


class StandinPhone:
    """One call. `heard` is (when in s, kind, payload); `ended` says why it ended, None while it is up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: uuid.UUID) -> None:
        self.call = call
        self.heard: list[tuple[float, int, bytes]] = []
        self.ended: str | None = None
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())

    @property
    def name(self) -> str:
        return str(self.call)

    @property
    def frames(self) -> list[bytes]:
        return [payload for _, _, payload in self.heard]

    @property
    def speech(self) -> list[bytes]:
        """The frames that are not silence."""
        return [payload for payload in self.frames if any(payload)]

    def send(self, kind: int, payload: bytes) -> None:
        self.send_bytes(bytes((kind,)) + len(payload).to_bytes(2, "big") + payload)

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        """Send as much as the peer accepts; a closed peer accepts nothing."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def talk(self, frames: list[bytes], kind: int = 0x10, every_s: float = 0.020) -> None:
        """Send the caller's audio in real time."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for k, frame in enumerate(frames):
            await asyncio.sleep(max(0.0, begun_s + every_s * k - loop.time()))
            self.send(kind, frame)

    async def hears(self, n_speech: int) -> None:
        """Wait until this many frames of speech have come."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.speech) < n_speech:
                assert self.ended is None, f"ended ({self.ended}) after {len(self.speech)} frames of speech"
                await self._change()

    async def hears_any(self, n_frames: int) -> None:
        """Wait until this many frames have come, silence included."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.heard) < n_frames:
                assert self.ended is None, f"ended ({self.ended}) after {len(self.heard)} frames"
                await self._change()

    async def is_over(self) -> str:
        """Wait for the end of the call; returns why it ended."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.ended is None:
                await self._change()
        return self.ended

    def hang_up(self) -> None:
        """Hang up as Asterisk does: close the connection."""
        self._writer.close()

    def vanish(self) -> None:
        """Reset the connection instead of closing it."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def aclose(self) -> None:
        self._listening.cancel()
        await asyncio.wait((self._listening,))
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _listen(self) -> None:
        try:
            self.ended = await self._hear()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.ended = "closed"
        finally:
            self._changed.set()
            self._writer.close()

    async def _hear(self) -> str:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(_NOTHING_HEARD_S):
                    header = await self._reader.readexactly(3)
            except TimeoutError:
                return "nothing heard for 2 s"
            now_s = loop.time()
            kind, length = header[0], int.from_bytes(header[1:], "big")
            if kind == 0:
                return "hung up by the peer"
            if kind not in _AUDIO_KINDS or length == 0:
                return f"bad frame {header.hex()}"
            try:
                async with asyncio.timeout(_PAYLOAD_WITHIN_S):
                    payload = await self._reader.readexactly(length)
            except TimeoutError:
                return "failed to read payload"
            self.heard.append((now_s, kind, payload))
            self._changed.set()


@asynccontextmanager
async def phone(port: int, call: uuid.UUID | None = None, source: str = "127.0.0.1") -> AsyncIterator[StandinPhone]:
    """A call that has sent its UUID."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    up = StandinPhone(reader, writer, call or uuid.uuid4())
    up.send(0x01, up.call.bytes)
    try:
        yield up
    finally:
        await up.aclose()


@asynccontextmanager
async def raw_connection(port: int, receive_buffer: int | None = None) -> AsyncIterator[socket.socket]:
    """A bare connection that reads only when the test reads."""
    sock = socket.socket()
    try:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        yield sock
    finally:
        sock.close()


async def read_to_end(sock: socket.socket) -> bytes:
    """Everything until the peer closes the connection; a reset ends it too."""
    data = b""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                piece = await asyncio.get_running_loop().sock_recv(sock, 65_536)
            except ConnectionError:
                return data
            if not piece:
                return data
            data += piece
