"""A WebSocket of a server with several fronts: it can be moved to the front that owns its call, without the peer
noticing.

A media leg names its call only in its first messages. Until then the bytes of the peer are kept. The front that owns
the call reads them again, into a connection of its own. What it answers to them before the call is known was sent by
the other front, so these answers are dropped.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request

from telephony_tts.runtime import event_loop
from telephony_tts.transport.connection import CallConnection, ClosedTransport, DirectConnection, OnMessage
from telephony_tts.transport.fronts import MAX_MOVED_BYTES, MAX_MOVES, MovedSocket
from telephony_tts.transport.incoming import FLUSH_S, addresses
from telephony_tts.transport.relay import Relay
from telephony_tts.transport.request_head import RequestHead


class FrontConnection(CallConnection):
    """With `moved` another front gave it away. In the stage "leg" it goes on where that front's connection ended."""

    def __init__(
        self,
        *args: Any,
        moved: MovedSocket | None = None,
        claim: Callable[[FrontConnection, RequestHead], None] = lambda connection, head: None,
        **kwargs: Any,
    ) -> None:
        """`claim` claims the call that the head names, if it names one."""
        super().__init__(*args, **kwargs)
        self._moved = moved
        self._claim = claim
        self._is_leg = moved is not None and moved.stage == "leg"
        self._is_replay = self._is_leg
        """The moved bytes are not read yet. They are, and what comes from the peer behind them, when the connection is
        listened to: the library drops a connection that is closed before its handler runs."""
        self._unread = b""
        """The moved bytes that the other front has read, until they are read again."""
        self._was_answered = False
        """The other front has sent what is written now."""
        self._head_bytes = moved.head if moved is not None else b""
        self._kept: bytearray | None = bytearray()
        """All bytes of the peer behind its request, until its call is here."""
        self._is_gone = False
        """Moved to another front: nothing may be written any more."""
        self._late = bytearray()
        """What came while the moved bytes are read."""
        self._ended_late = False
        """The peer has closed its side meanwhile."""
        self.claim_problem: str | None = None
        """Why the call that the address names cannot be claimed."""

    @property
    def is_adopted(self) -> bool:
        """Whether another front has answered and checked its handshake."""
        return self._is_leg

    @property
    def moved_may_begin(self) -> bool:
        """`may_begin` of the front that has checked it."""
        return self._moved is not None and self._moved.may_begin

    @property
    def moved_key(self) -> str:
        """The name of the key that the other front has found."""
        return "" if self._moved is None else self._moved.key

    # ------------------------------------------------------- moving it away

    def settle(self) -> None:
        """Its call is here: the bytes are not needed any more, and no other front has sent the answers from now on."""
        self._kept = None
        self._was_answered = False

    def problem(self) -> str | None:
        """Why it cannot be moved. None if it can."""
        if self._kept is None:
            return f"it sent more than {MAX_MOVED_BYTES} bytes before its call was known"
        if self._moved is not None and self._moved.n_moves >= MAX_MOVES:
            return f"it was moved {MAX_MOVES} times"
        return None

    async def take_away(self, relays: Callable[[Relay], None], slow_s: float) -> tuple[socket.socket, MovedSocket]:
        """End this connection without closing the peer's. Returns its socket, and what the other front needs. Raises
        OSError. `relays` gets the relay of a TLS connection. `slow_s` is how long one of the relay's ends may take no
        data.

        The call must learn of a peer that has begun and left, so of that one a closed socket moves.
        """
        assert self._kept is not None
        transport = self.transport
        is_left = transport.is_closing()
        if not is_left:
            transport.pause_reading()
        unread = b"".join(self._held) + (self._behind or b"")
        self._held.clear()
        self._is_gone = True
        read = bytes(self._kept[: len(self._kept) - len(unread)])
        if self._is_replay:
            assert self._moved is not None
            unread = self._moved.unread + bytes(self._late)
        local, remote = self._addresses()
        n_moves = 0 if self._moved is None else self._moved.n_moves
        moved = MovedSocket(
            "leg", n_moves + 1, local, remote, read, self._head_bytes, unread, self.may_begin, self.key.name
        )
        self._kept = None
        if is_left:
            return _closed_socket(), moved
        if transport.get_extra_info("ssl_object") is not None:
            relay = Relay(slow_s)
            sock = await relay.open(transport)
            relays(relay)
            self.transport = ClosedTransport()
            self.connection_lost(None)
            return sock, moved
        sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        try:
            transport.close()  # it writes the answers so far, and leaves the copy of the socket open
            await event_loop.within(FLUSH_S, asyncio.shield(self.connection_lost_waiter))
        except BaseException:
            transport.abort()
            sock.close()
            raise
        return sock, moved

    # ---------------------------------------------------- going on with one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._moved is None or not self._is_leg:
            return
        # The library would answer a request, so it gets none: its protocol begins in the state OPEN.
        self._head = self._behind = None
        self.request = _request_of(self._moved.head)
        self.request_rcvd.set_result(None)
        self._unread = self._moved.read
        self._kept = bytearray(self._unread)

    @property
    def own_host(self) -> str:
        return self._addresses()[0][0]

    def _addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Our address and the peer's. A relayed connection has those of the TLS connection."""
        return addresses(self.transport) if self._moved is None else (self._moved.local, self._moved.remote)

    def listen(self, on_message: OnMessage, on_writable: Callable[[bool], None]) -> None:
        self._read_moved()
        # A leg that is listened to before its call is known was listened to at the other front too.
        self._was_answered = self._is_replay and self._kept is not None
        super().listen(on_message, on_writable)
        self._was_answered = False
        self._read_late()

    def end(self, code: int, reason: str) -> None:
        self._read_moved()
        self._was_answered = False  # the other front has closed nothing
        super().end(code, reason)
        self._read_late()

    def _read_moved(self) -> None:
        """Read the moved bytes again. The library's own answers to them were sent by the other front."""
        unread, self._unread = self._unread, b""
        if not unread or self.left.done():
            return
        self._was_answered = True
        super(DirectConnection, self).data_received(unread)  # in one piece: it is not a flood

    def _read_late(self) -> None:
        """Read on behind the moved bytes."""
        if not self._is_replay:
            return
        assert self._moved is not None
        self._is_replay = False
        if self.close_deadline is not None:
            self._stop_listening()  # the peer has closed it behind its first messages
        late = self._moved.unread + bytes(self._late)
        self._late.clear()
        if not self.transport.is_closing():
            self.transport.resume_reading()
        if late:
            self.data_received(late)
        if self._ended_late:
            self.eof_received()
            self.transport.close()

    # ------------------------------------------------- called by websockets

    def data_received(self, data: bytes) -> None:
        if self._is_replay:
            self._late += data
            self.transport.pause_reading()
            return
        if self._kept is not None:
            self._keep(data)
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]  # asyncio's protocols may return a value
        if self._is_replay:
            self._ended_late = True
            return True  # the transport stays open, so that the handler gets what was sent before
        super().eof_received()
        return None

    def _take_head(self, head: RequestHead) -> None:
        if head.flaw is None:
            self._head_bytes = head.whole
            if self._kept is not None:
                self._kept = bytearray(head.behind)
            self._claim(self, head)
        super()._take_head(head)

    def _keep(self, data: bytes) -> None:
        assert self._kept is not None
        if self._head is None:
            self._kept += data
        if len(self._kept) > MAX_MOVED_BYTES:
            self._kept = None

    def _read_on(self) -> None:
        # The bytes behind the head are kept already.
        kept, self._kept = self._kept, None
        super()._read_on()
        self._kept = kept

    def send_data(self) -> None:
        if self._was_answered or self._is_gone:
            self.protocol.data_to_send()
        else:
            super().send_data()


def _closed_socket() -> socket.socket:
    """A socket whose other end is closed."""
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours


def _request_of(head: bytes) -> Request:
    """The request as the library would have parsed it."""
    parsed = RequestHead()
    parsed.feed(head)
    return Request(parsed.target, Headers(parsed.pairs()))

