"""A connection before its first bytes have decided who serves it: HTTP's own server, or our WebSocket path.

Both share one listening socket. The head of a request decides, and then the transport belongs to the chosen protocol,
so a frame of speech passes nothing more than before. After a response of HTTP's server the transport comes back for the
next request.

To begin an HTTP request takes about a millisecond. `OnePerRound` keeps hundreds that arrive at once from delaying the
frames of calls.

In a server with several fronts the head also decides which front serves the request (`Route`). Then the connection
leaves this process before anything was answered.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from telephony_tts.runtime import event_loop
from telephony_tts.transport.fronts import MovedSocket
from telephony_tts.transport.relay import Relay
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.transport.unserved import LingeringConnection, UnservedConnections, peer_host

KEEP_ALIVE_S = 30.0
"""The longest time from an HTTP response to the end of the next request's head."""

FLUSH_S = 2.0
"""How long the rest of what is sent may take to a peer before its connection is moved."""

TakeBack = Callable[[asyncio.Transport, bytes | None], None]
"""Takes a connection after its response, with the bytes that came behind the request. None: the client still sends a
request that was refused."""


class HttpSide(Protocol):
    """The server of HTTP requests that are not for a WebSocket."""

    def owns(self, path: str) -> bool:
        """Whether a request for this path belongs to it."""

    def connection(self, take_back: TakeBack, lost: Callable[[], None]) -> asyncio.Protocol:
        """The protocol of one request. It gets all bytes of the request, from the first, and gives the connection back
        when it can be used again, or tells that it is lost."""

    async def close(self) -> None:
        """End all requests."""


Route = Callable[["IncomingConnection", RequestHead], bool]
"""Decides where a request is served, when its head is complete. True if another front serves it: then it has called
`take_away` soon, and this object does nothing more."""


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


class BeforeTls(asyncio.Protocol):
    """Gives away the socket of a connection that was just accepted, and the peer's address. A listener of asyncio that
    has TLS would tell of it only after the handshake, so the number of connections before it could not be bounded."""

    def __init__(self, take: Callable[[socket.socket, str], object]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        sock = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        plain.abort()  # the copy of the socket stays open
        self._take(sock, peer_host(plain))


class IncomingConnection(asyncio.Protocol):
    """See the module text. A connection without a complete head is dropped after `open_timeout_s`, and one that had a
    response after KEEP_ALIVE_S."""

    def __init__(
        self,
        websocket: Callable[[], asyncio.Protocol],
        http: HttpSide,
        begin_http: OnePerRound,
        open_timeout_s: float,
        unserved: UnservedConnections,
        protocol: object,
        route: Route | None = None,
        moved: MovedSocket | None = None,
    ) -> None:
        """All connections share `begin_http` and `unserved`. `protocol` is the WebSocket library's object for this one.

        `moved`: another front gave the connection away, with the bytes of its request so far.
        """
        self.moved = moved
        self._route = route
        self._is_decided = False
        """The head is complete. What comes now belongs to the server of the request."""
        self._may_stay = False
        self.stays = False
        """It could not be moved only to spread the load, so that is not tried again."""
        self._lost: asyncio.Future[None] | None = None
        self._release: Callable[[], None] | None = None
        """Undoes the claim of the call that the HTTP request names."""
        self.protocol = protocol  # the library looks for it here when it chooses a subprotocol
        self._websocket = websocket
        self._http = http
        self._begin_http = begin_http
        self._open_timeout_s = open_timeout_s
        self._unserved = unserved
        self._head = RequestHead(any_method=True)
        self._bytes = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None
        """The connection's transport, while it is neither handed over nor lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._await_head(self._open_timeout_s, self.transport.abort)
        if self.moved is not None:
            # Now: uvloop reads as soon as this returns.
            self.data_received(self.moved.read)

    def take_back(self, transport: asyncio.Transport, data: bytes | None) -> None:
        """Decide about the next request of a connection. `data` are the bytes of it that are there already. None: there
        will be none."""
        self._request_over()
        if data is None:
            LingeringConnection(transport, self._unserved)
            return
        self.transport = transport
        self.moved = None
        self._head, self._is_decided = RequestHead(any_method=True), False
        self._await_head(KEEP_ALIVE_S, self._end_idle)
        transport.set_protocol(self)
        if data:
            self.data_received(data)

    def _await_head(self, seconds: float, end: Callable[[], object]) -> None:
        """Call `end` if no head is complete within this time, or if there are too many connections without one."""
        assert self.transport is not None
        self._timer = asyncio.get_running_loop().call_later(seconds, end)
        host = peer_host(self.transport) if self.moved is None else self.moved.remote[0]
        self._unserved.add(self, host, end)

    def _end_idle(self) -> None:
        assert self.transport is not None
        self.transport.abort() if self._bytes else self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if self._is_decided or not self._head.feed(data):
            return
        self._is_decided = True
        self._decide()

    def _decide(self) -> None:
        """Give the complete request to the part that serves it."""
        if self._route is not None and self._head.flaw is None and self._route(self, self._head):
            return
        if not self.is_http:
            self._hand_over(False)
        elif self.transport is not None:
            self._stop_timer()
            self.transport.pause_reading()
            self._begin_http.call(partial(self._hand_over, True))

    def eof_received(self) -> bool | None:
        if self._is_decided:
            # The request waits. Its server reads on, and finds the end too. TLS has no half-closed connections.
            return not self.is_tls
        if not self._bytes:
            return None
        protocol = self._hand_over(False)  # it answers a head that is cut off
        return protocol.eof_received() if protocol is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_over()
        self._stop_timer()
        self.transport = None
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    @property
    def is_websocket(self) -> bool:
        """Whether the complete head asks for a WebSocket."""
        return any("websocket" in value.lower() for value in self._head.values("upgrade"))

    @property
    def is_http(self) -> bool:
        """Whether the request belongs to HTTP's own server."""
        head = self._head
        return head.flaw is None and not self.is_websocket and self._http.owns(head.target.partition("?")[0])

    @property
    def is_tls(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is not None

    def until_answered(self, release: Callable[[], None]) -> None:
        """Call `release` when the HTTP request has its response, or the connection is lost."""
        self._release = release

    def _request_over(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def stop_reading(self, *, may_stay: bool = False) -> None:
        """The request will be moved: its bytes stay where they are. `may_stay`: this process can serve it as well."""
        self._may_stay = may_stay
        self._stop_timer()
        if self.transport is not None:
            self.transport.pause_reading()

    async def take_away(
        self, relays: Callable[[Relay], None], slow_s: float
    ) -> tuple[socket.socket, MovedSocket] | None:
        """End this connection without closing the peer's. Returns its socket, and what the other front needs. None if
        the peer is gone, or if the request is served here because there is no descriptor for the copy of the socket and
        it may stay. Raises OSError or TimeoutError; the peer's connection is closed then too. `relays` gets the relay
        of a TLS connection. `slow_s` is how long one of the relay's ends may take no data."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return None
        n_moves = 0 if self.moved is None else self.moved.n_moves
        local, remote = (self.moved.local, self.moved.remote) if self.moved is not None else addresses(transport)
        if self.is_tls:
            relay = Relay(slow_s)
            sock = await relay.open(transport)
            self.transport = None
            relays(relay)
        else:
            try:
                sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            except BaseException as error:
                if isinstance(error, OSError) and self._may_stay:
                    self.stays = True
                    transport.resume_reading()
                    self._decide()
                    return None
                transport.abort()
                raise
            self._lost = asyncio.get_running_loop().create_future()
            try:
                transport.close()  # behind the rest of an earlier response; the copy of the socket stays open
                await event_loop.within(FLUSH_S, self._lost)
            except BaseException:
                transport.abort()
                sock.close()
                raise
        return sock, MovedSocket("request", n_moves + 1, local, remote, bytes(self._bytes))

    def _hand_over(self, is_http: bool) -> asyncio.Protocol | None:
        transport, self.transport = self.transport, None
        self._stop_timer()
        if transport is None or transport.is_closing():
            return None
        protocol = self._http.connection(self.take_back, self._request_over) if is_http else self._websocket()
        data = bytes(self._bytes)
        self._bytes.clear()
        try:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            if is_http:
                transport.resume_reading()
            protocol.data_received(data)
        except BaseException:
            transport.abort()  # no timer and no protocol would end it
            raise
        return protocol

    def _stop_timer(self) -> None:
        self._unserved.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def addresses(transport: asyncio.BaseTransport) -> tuple[tuple[str, int], tuple[str, int]]:
    """Our address and the peer's: host and port. A Unix socket has neither."""
    ours, theirs = (transport.get_extra_info(name) for name in ("sockname", "peername"))
    return (ours[:2] if isinstance(ours, tuple) else ("", 0)), (theirs[:2] if isinstance(theirs, tuple) else ("", 0))
