"""A connection before its first bytes have decided who serves it: HTTP's own server, or our WebSocket path.

Both share one listening socket. The head of a request decides, and then the transport belongs to the chosen protocol,
so a frame of speech passes nothing more than before. After a response of HTTP's server the transport comes back for the
next request.

To begin an HTTP request takes about a millisecond. `OnePerRound` keeps hundreds that arrive at once from delaying the
frames of calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from telephony_tts.transport.request_head import RequestHead

KEEP_ALIVE_S = 30.0
"""The longest time from an HTTP response to the end of the next request's head."""

TakeBack = Callable[[asyncio.Transport, bytes], None]
"""Takes a connection after its response, with the bytes that came behind the request."""


class HttpSide(Protocol):
    """The server of HTTP requests that are not for a WebSocket."""

    def owns(self, path: str) -> bool:
        """Whether a request for this path belongs to it."""

    def connection(self, take_back: TakeBack) -> asyncio.Protocol:
        """The protocol of one request. It gets all bytes of the request, from the first, and gives the connection back
        when it can be used again."""

    async def close(self) -> None:
        """End all requests."""


class OnePerRound:
    """Calls functions in their order, at most one in a round of the event loop: timers and frames come in between."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_taken = False
        """Whether one was called in this round."""

    def call(self, function: Callable[[], object]) -> None:
        """Call it now, or in a later round if one was called in this round."""
        self._waiting.append(function)
        if not self._is_taken:
            self._next()

    def _next(self) -> None:
        self._is_taken = bool(self._waiting)
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._next)
            self._waiting.popleft()()


class IncomingConnection(asyncio.Protocol):
    """See the module text. A connection without a complete head is dropped after `open_timeout_s`, and one that had a
    response after KEEP_ALIVE_S."""

    def __init__(
        self,
        websocket: Callable[[], asyncio.Protocol],
        http: HttpSide,
        begin_http: OnePerRound,
        open_timeout_s: float,
        protocol: object,
    ) -> None:
        """`begin_http` is shared by all connections. `protocol` is the WebSocket library's object for this one."""
        self.protocol = protocol  # the library looks for it here when it chooses a subprotocol
        self._websocket = websocket
        self._http = http
        self._begin_http = begin_http
        self._open_timeout_s = open_timeout_s
        self._head = RequestHead(any_method=True)
        self._bytes = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        """The connection's transport, while it is neither handed over nor lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._timer = asyncio.get_running_loop().call_later(self._open_timeout_s, self.transport.abort)

    def take_back(self, transport: asyncio.Transport, data: bytes) -> None:
        """Decide about the next request of a connection. `data` are the bytes of it that are there already."""
        self.transport = transport
        self._head = RequestHead(any_method=True)
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._end_idle)
        transport.set_protocol(self)
        if data:
            self.data_received(data)

    def _end_idle(self) -> None:
        assert self.transport is not None
        self.transport.abort() if self._bytes else self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if not self._head.feed(data):
            return
        if not self._is_http():
            self._hand_over(False)
        elif self.transport is not None:
            self._stop_timer()
            self.transport.pause_reading()
            self._begin_http.call(partial(self._hand_over, True))

    def eof_received(self) -> bool | None:
        if not self._bytes:
            return None
        protocol = self._hand_over(False)  # it answers a head that is cut off
        return protocol.eof_received() if protocol is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.transport = None

    def _is_http(self) -> bool:
        head = self._head
        if head.flaw is not None or any("websocket" in value.lower() for value in head.values("upgrade")):
            return False
        return self._http.owns(head.target.partition("?")[0])

    def _hand_over(self, is_http: bool) -> asyncio.Protocol | None:
        transport, self.transport = self.transport, None
        self._stop_timer()
        if transport is None or transport.is_closing():
            return None
        protocol = self._http.connection(self.take_back) if is_http else self._websocket()
        data = bytes(self._bytes)
        self._bytes.clear()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if is_http:
            transport.resume_reading()
        protocol.data_received(data)
        return protocol

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
