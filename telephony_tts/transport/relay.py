"""Copies bytes between a TLS connection and another front, which owns the call.

A TLS connection cannot be moved: its keys are in this process. So the other front gets one end of a socket pair, and
this one copies what is decrypted to the other end, and the answers back.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

from telephony_tts.runtime import event_loop, logs
from telephony_tts.transport.connection import limit_unsent

_log = logs.get(__name__)
_CLOSE_S = 2.0
"""How long the rest of the data may take to a peer that is being closed."""
_KERNEL_BYTES = 32_768
"""What the socket pair holds in each direction: as little as possible, because a `clear` cannot reach it."""


class Relay:
    """One relayed connection. `over` is done when both its ends are closed.

    An owner that takes no data for `slow_s` is closed. A peer that takes none is the owner's to close. That is not seen
    while nothing is read from the owner, so it is looked for every `slow_s`.
    """

    def __init__(self, slow_s: float) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer, self._owner = _End(self._lost, slow_s), _End(self._lost, slow_s)
        self._peer.other, self._owner.other = self._owner, self._peer
        self._peer.is_peer = True

    async def open(self, transport: asyncio.Transport) -> socket.socket:
        """Take over the transport of a TLS connection, which does not read now. Returns the socket for the owner of the
        call. Raises OSError; the connection is closed then."""
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
            with event_loop.watched(ours):
                await asyncio.get_running_loop().connect_accepted_socket(lambda: self._owner, ours)
            if transport.is_closing():
                raise ConnectionResetError("the peer has closed the connection")
        except BaseException:
            ours.close()
            theirs.close()
            transport.abort()
            raise
        self._peer.transport = transport
        transport.set_write_buffer_limits(_KERNEL_BYTES)
        limit_unsent(transport)
        transport.set_protocol(self._peer)
        transport.resume_reading()
        return theirs

    def abort(self) -> None:
        """Close both ends at once."""
        for end in (self._peer, self._owner):
            if end.transport is not None:
                end.transport.abort()

    def _lost(self) -> None:
        if self._peer.transport is None and self._owner.transport is None and not self.over.done():
            self.over.set_result(None)


class _End(asyncio.Protocol):
    """One end. What it receives is written to the other one, which also decides how fast it is read."""

    def __init__(self, lost: Callable[[], None], slow_s: float) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.is_peer = False
        self._lost = lost
        self._slow_s = slow_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if (to := self._open_other()) is not None:
            to.write(data)

    def pause_writing(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(self._slow_s, self._drop_slow_reader)
        if (source := self._open_other()) is not None:
            source.pause_reading()

    def resume_writing(self) -> None:
        if (source := self._open_other()) is not None:
            self._stop_timer()
            source.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.transport = None
        other, self.other = self.other, None
        if other is not None:
            other.end()
        self._lost()

    def end(self) -> None:
        """Close behind what is still to be written."""
        if self.transport is not None:
            self.transport.close()
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(_CLOSE_S, self.transport.abort)

    def _drop_slow_reader(self) -> None:
        if self.is_peer and (owner := self._open_other()) is not None and not _has_hung_up(owner):
            self._timer = asyncio.get_running_loop().call_later(self._slow_s, self._drop_slow_reader)
        elif self.transport is not None:
            unsent_bytes = self.transport.get_write_buffer_size()
            _log.warning("slow_reader", unsent_bytes=unsent_bytes, for_s=self._slow_s, why="its connection is relayed")
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _open_other(self) -> asyncio.Transport | None:
        transport = None if self.other is None else self.other.transport
        return None if transport is None or transport.is_closing() else transport


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the other end of a socket is closed, also if nothing is read from the socket."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
