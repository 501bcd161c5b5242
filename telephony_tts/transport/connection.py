"""One WebSocket, used synchronously: messages arrive in a callback and leave in a call that never waits.

Control must not queue behind audio, so nothing here awaits a socket. Outgoing messages go straight to the
transport (`websockets.broadcast`, docs/adr/0002); a peer that cannot keep up pauses the session instead of a task.
Incoming frames go straight to the call; a flood is fed in slices so that the neighbours get their turn between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, broadcast
from websockets.frames import DATA_OPCODES, Frame, Opcode

from telephony_tts import logs
from telephony_tts.wire.query import StreamOptions

_log = logs.get(__name__)

_SLICE_BYTES = 8192
"""How much of one read is parsed before the loop runs other calls: about 400 of the smallest messages."""

_MAX_UNSENT_BYTES = 1 << 20
"""A peer that makes us owe it this much is not reading at all."""

OnMessage = Callable[[bytes, bool], None]
"""(payload, is_text)"""


class CallConnection(ServerConnection):
    """A server connection whose messages are delivered by callback. `listen` starts the delivery."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_message: OnMessage | None = None
        self._on_writable: Callable[[bool], None] | None = None
        self._early: list[tuple[bytes, bool]] = []
        self._fragments: list[bytes] = []
        self._fragments_are_text = False
        self._held: deque[bytes] = deque()
        self._slow_s = 0.0
        self._slow_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self.options: StreamOptions | None = None
        """What the handshake made of the request, for the handler."""

    def listen(self, on_message: OnMessage, on_writable: Callable[[bool], None]) -> None:
        """Deliver messages from now on, first those that came with the handshake."""
        self._on_message = on_message
        self._on_writable = on_writable
        early, self._early = self._early, []
        for payload, is_text in early:
            on_message(payload, is_text)

    def send_now(self, payload: bytes, is_text: bool) -> None:
        """Write a message; never waits, and does nothing on a closing connection."""
        broadcast((self,), payload, text=is_text)
        if self.paused and self.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.transport.abort()

    def end(self, code: int, reason: str) -> None:
        """Close in the background; `gone` waits for it. Idempotent."""
        if self._ending is None:
            self._ending = self.loop.create_task(self.close(code, reason), name="close socket")

    async def gone(self) -> None:
        """Wait until the socket is closed, by whichever side."""
        await self.wait_closed()
        if self._ending is not None:
            await self._ending

    def watch_slow_reader(self, seconds: float) -> None:
        """Drop the peer if what we sent it stays unread for this long: its audio would only ever be later."""
        self._slow_s = seconds

    def _drop_slow_reader(self) -> None:
        _log.warning("slow_reader", unsent_bytes=self.transport.get_write_buffer_size(), for_s=self._slow_s)
        self.transport.abort()

    # ------------------------------------------------- called by websockets

    def process_event(self, event: Any) -> None:
        if self.request is None or not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        if event.opcode is not Opcode.CONT:
            self._fragments_are_text = event.opcode is Opcode.TEXT
        if not event.fin:
            self._fragments.append(bytes(event.data))
            return
        payload = bytes(event.data)
        if self._fragments:
            payload = b"".join([*self._fragments, payload])
            self._fragments.clear()
        if self._on_message is None:
            self._early.append((payload, self._fragments_are_text))
        else:
            self._on_message(payload, self._fragments_are_text)

    def data_received(self, data: bytes) -> None:
        if len(data) <= _SLICE_BYTES and not self._held:
            super().data_received(data)
            return
        if not self._held:
            self.transport.pause_reading()
            self.loop.call_soon(self._feed_slice)
        self._held.extend(data[at : at + _SLICE_BYTES] for at in range(0, len(data), _SLICE_BYTES))

    def _feed_slice(self) -> None:
        if not self._held:
            return
        super().data_received(self._held[0])
        if self._held:
            self._held.popleft()
        if self._held:
            self.loop.call_soon(self._feed_slice)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> None:
        while self._held:
            super().data_received(self._held.popleft())
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._slow_s:
            self._slow_timer = self.loop.call_later(self._slow_s, self._drop_slow_reader)
        if self._on_writable is not None:
            self._on_writable(False)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        if self._on_writable is not None:
            self._on_writable(True)
