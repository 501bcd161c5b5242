"""One AudioSocket connection of Asterisk: frames arrive in a callback, and writing never waits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from sip_bridge.audiosocket.frames import HANGUP_FRAME, AudioSocketFrame, AudioSocketReader
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import monotonic_ns

_log = logs.get(__name__).limited(logs.LineLimit.outside_calls())

READ_BYTES = 8_192
"""The most that is read at one time: one frame of the highest rate, or some milliseconds' work of the smallest."""

_MAX_KERNEL_UNSENT_BYTES = 16_384
"""How much unsent data the kernel may hold. Its own default is megabytes, and a peer that does not read would be
noticed only after minutes."""

_GOODBYE_S = 1.0
"""How long Asterisk may take to close its side after the hang-up frame."""

OnItems = Callable[[list[AudioSocketFrame], int], None]
"""(the frames of one read, the time in ns)"""


class CallerSocket(asyncio.BufferedProtocol):
    """The protocol of one connection. `accept` gets it and either calls `listen` or `abort`.

    `lost` is done when Asterisk has closed the connection or it broke; its result says which.
    """

    def __init__(self, accept: Callable[[CallerSocket], None]) -> None:
        self._accept = accept
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._reader = AudioSocketReader()
        self._on_items: OnItems | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.peer = ""

    # -------------------------------------------------------- for the call

    def listen(self, on_items: OnItems) -> None:
        """Deliver frames from now on. Nothing is read before that."""
        self._on_items = on_items

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and the kernel has not taken. Above 0, the peer does not read."""
        if self._transport is None or self._transport.is_closing():
            return 0
        return self._transport.get_write_buffer_size()

    def write(self, frame: bytes) -> None:
        """Write one whole frame at once; does nothing on a closing connection.

        Asterisk ends a call in which more than 5 ms pass between a header and its payload.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def abort(self) -> None:
        """Close the connection without the hang-up frame; nothing more is delivered."""
        self._on_items = None
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Send the hang-up frame, wait up to a second until Asterisk has closed, and close. Idempotent.

        The bridge closes its sending side and reads to the end of Asterisk's. With unread data the kernel would reset
        the connection, and the hang-up frame could be lost.
        """
        self._on_items = None
        transport = self._transport
        if transport is None:
            return
        try:
            if self.unsent_bytes:
                await asyncio.sleep(0)  # uvloop writes in the next turn of the loop, not at once
            if not transport.is_closing() and not self.unsent_bytes:
                with contextlib.suppress(OSError, RuntimeError):
                    transport.write(HANGUP_FRAME)
                    transport.write_eof()
                await asyncio.wait((self._closed,), timeout=_GOODBYE_S)
        finally:
            transport.abort()
        await asyncio.wait((self._closed,))

    # -------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_KERNEL_UNSENT_BYTES)
        self._accept(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = monotonic_ns()
        if self._on_items is None:
            return
        try:
            items = self._reader.feed(self._buffer[:nbytes])
            if items:
                self._on_items(items, now_ns)
        except Exception:
            _log.exception("frames_crashed", peer=self.peer)
            self.abort()
        if nbytes == len(self._buffer) and self._transport is not None and not self._transport.is_closing():
            # A full buffer may be a flood: let the loop run the other calls before the next read.
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._is_lost("closed")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_items = None
        self._is_lost("closed" if exc is None else f"lost: {exc}")
        if not self._closed.done():
            self._closed.set_result(None)

    def _is_lost(self, how: str) -> None:
        if not self.lost.done():
            self.lost.set_result(how)
