"""One WebSocket, used synchronously: messages arrive in a callback and are sent by a call that never waits.

Control must not queue behind audio, so nothing here awaits a socket. Outgoing messages go straight to the transport
(`websockets.broadcast`, docs/adr/0002). A peer that cannot keep up pauses the session. Incoming messages go straight to
the call. A flood of messages is parsed in slices, so that other calls run in between. It takes at most half of the
time, so that the engines' threads run too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.protocol import CONNECTING, OPEN

from telephony_tts.ops.keys.key import NO_KEY
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.transport.request_head import CUT_OFF, METHODS, Flaw, RequestHead
from telephony_tts.transport.unserved import LingeringConnection, UnservedConnections
from telephony_tts.wire.fields import traceparent
from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.query import StreamOptions
from telephony_tts.wire.vendor import VendorDialect

_log = logs.get(__name__)

_PIECE_BYTES = 1024
"""How many bytes of one read are parsed between two looks at the clock: at most 170 messages."""

_TURN_NS = 2 * NS_PER_MS
"""How long the messages of one peer are processed before the loop runs other calls."""

_MAX_UNSENT_BYTES = 1 << 20
"""A peer that leaves this much unread is not reading at all."""

_MAX_UNREAD_BYTES = _MAX_UNSENT_BYTES - 65_536
"""With more than this unsent, messages are dropped for a peer that need not read. The rest is for answers to its
pings."""

_MAX_KERNEL_UNSENT_BYTES = 16_384
"""How much the kernel may hold that is not on the network yet. Its default is megabytes: no `clear` could reach that
audio any more, and a peer that does not read would be noticed only after minutes."""

_MAX_REASON_BYTES = 123
"""RFC 6455 §5.5: the payload of a control frame is at most 125 bytes, and two of them are the close code."""

MAX_FRAGMENTS = 4096
"""The most fragments of one message: empty fragments never reach the limit of bytes. A turn of 4,000 characters in one
fragment each still fits."""

OnMessage = Callable[[bytes, bool], None]
"""(payload, is_text)"""


class DirectConnection(Connection):
    """A connection whose messages are delivered by callback. `listen` starts the delivery, `end` stops it.

    `left` is done as soon as either side ends this connection. The socket may stay open for the closing handshake, at
    most for the close timeout, and `close` waits for it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_message: OnMessage | None = None
        self._on_writable: Callable[[bool], None] | None = None
        self._early: list[tuple[bytes, bool]] = []
        self._fragments: list[bytes] = []
        self._fragments_are_text = False
        self._held: deque[bytes] = deque()
        self._heard_s = self.loop.time()
        """When the last bytes came from the peer."""
        self.need_not_read: Callable[[], bool] = lambda: False
        """Whether a peer that reads nothing is kept. Then messages beyond a bound are dropped."""
        self.on_dropped: Callable[[int], None] = lambda n_dropped: None
        """Called with the number of dropped messages when the peer has read the others, before anything else."""
        self._n_dropped = 0
        self._slow_s = 0.0
        self._slow_timer: asyncio.TimerHandle | None = None
        self.max_unsent_bytes = _MAX_UNSENT_BYTES
        """With more unsent bytes than this the connection is dropped: the peer reads nothing."""
        self.left: asyncio.Future[None] = self.loop.create_future()
        self.log = _log
        """The call's logger, once the connection is a leg of a call."""

    def listen(self, on_message: OnMessage, on_writable: Callable[[bool], None]) -> None:
        """Deliver messages from now on, first those that came before this call."""
        if self.left.done():
            return
        self._on_message = on_message
        self._on_writable = on_writable
        early, self._early = self._early, []
        for payload, is_text in early:
            self._deliver(payload, is_text)
        if self.paused:
            on_writable(False)

    def send_now(self, payload: bytes, is_text: bool) -> None:
        """Write a message without waiting. Does nothing on a closing connection."""
        is_full = self.paused and self._unsent_bytes + len(payload) > _MAX_UNREAD_BYTES
        if self._n_dropped or (is_full and self.need_not_read()):
            if not self._n_dropped:
                self.log.warning("events_dropped", unsent_bytes=self._unsent_bytes)
            self._n_dropped += 1
        # After a reset the connection counts as open until the next round of the loop, and asyncio warns of each write.
        elif not self.transport.is_closing():
            broadcast((self,), payload, text=is_text)

    def end(self, code: int, reason: str) -> None:
        """Send a close, and deliver no more messages, not even those that were received. Idempotent."""
        self._stop_listening()
        if self.protocol.state is not OPEN:
            return
        self.protocol.send_close(code, reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))
        if self.close_timeout is not None:
            self.close_deadline = self.loop.time() + self.close_timeout
        self.send_data()

    def watch_slow_reader(self, seconds: float) -> None:
        """Close the connection if sent data stays unread for this long: the peer's audio would stay late."""
        self._slow_s = seconds

    @property
    def _unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def _drop_slow_reader(self) -> None:
        if not self.need_not_read():
            self.log.warning("slow_reader", unsent_bytes=self._unsent_bytes, for_s=self._slow_s)
            self.end(1008, f"read from the socket: what was sent was not read for {self._slow_s:g} s")
            self._slow_timer = self.loop.call_later(self.close_timeout or 0, self.transport.abort)

    def _tell_dropped(self) -> None:
        n_dropped, self._n_dropped = self._n_dropped, 0
        if n_dropped:
            self.on_dropped(n_dropped)

    def _stop_listening(self) -> None:
        self._on_message = _ignore
        self._on_writable = None
        self._early.clear()
        if not self.left.done():
            self.left.set_result(None)

    def _deliver(self, payload: bytes, is_text: bool) -> None:
        assert self._on_message is not None
        try:
            self._on_message(payload, is_text)
        except Exception:
            # Raised further, the exception would close the transport without a message, or stop a flood half parsed.
            self.log.exception("message_crashed")
            self.end(1011, "internal error")

    # ------------------------------------------------- called by websockets

    async def keepalive(self) -> None:
        """Ping the peer, and close the connection if nothing came between two pings. The library's own waits for room
        in the socket, and counts pongs only. But many libraries answer pings only while their user reads."""
        assert self.ping_interval is not None
        pinged_s = 0.0
        while True:
            await asyncio.sleep(self.ping_interval)
            if self.protocol.state is not OPEN:
                return
            if self._heard_s < pinged_s:
                break
            pinged_s = self.loop.time()
            if not self.paused:
                self.protocol.send_ping(b"ping")
                self.send_data()
        self.log.warning("unanswered_ping", for_s=self.ping_interval)
        self.end(1011, f"read from the socket: a ping was not answered for {self.ping_interval:g} s")
        await self.close()

    def send_data(self) -> None:
        """All data is written here: our messages, and the library's answers to pings."""
        super().send_data()
        if self.paused and not self.transport.is_closing() and self._unsent_bytes > self.max_unsent_bytes:
            self.log.warning("reads_nothing", unsent_bytes=self._unsent_bytes)
            self.transport.abort()

    def process_event(self, event: Any) -> None:
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        if self.left.done():
            return
        if event.opcode is not Opcode.CONT:
            self._fragments_are_text = event.opcode is Opcode.TEXT
        if not event.fin:
            self._fragments.append(bytes(event.data))
            if len(self._fragments) == MAX_FRAGMENTS:
                self._fragments.clear()
                self.end(CloseCode.MESSAGE_TOO_BIG, f"more than {MAX_FRAGMENTS} fragments in a message")
            return
        payload = bytes(event.data)
        if self._fragments:
            payload = b"".join([*self._fragments, payload])
            self._fragments.clear()
        if self._on_message is None:
            self._early.append((payload, self._fragments_are_text))
        else:
            self._deliver(payload, self._fragments_are_text)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        limit_unsent(transport)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        if len(data) <= _PIECE_BYTES and not self._held:
            super().data_received(data)
            if self.close_deadline is not None:
                self._stop_listening()
            return
        was_held = bool(self._held)
        self._held.extend(data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
        if not was_held:
            self._feed()
            if self._held:
                self.transport.pause_reading()

    def _feed(self) -> None:
        """Parse held data for `_TURN_NS`. Go on after a pause of the same length."""
        begin_ns = monotonic_ns()
        while self._held and monotonic_ns() - begin_ns < _TURN_NS:
            super().data_received(self._held.popleft())
        if self.close_deadline is not None:
            self._stop_listening()
        if self._held:
            self.loop.call_later((monotonic_ns() - begin_ns) / 1e9, self._feed_on)

    def _feed_on(self) -> None:
        if self._held:
            self._feed()
            if not self._held and not self.transport.is_closing():
                self.transport.resume_reading()

    def eof_received(self) -> None:
        while self._held:
            super().data_received(self._held.popleft())
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.clear()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._stop_listening()
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
        if self._n_dropped:
            self.loop.call_soon(self._tell_dropped)


class CallConnection(DirectConnection, ServerConnection):
    """A peer that connected to us.

    The library gets the head of the HTTP request when the head is complete, and the bytes behind it after the response.
    It would parse those bytes as frames at once, and then not answer the request.
    """

    options: StreamOptions | Invalid | None = None
    """The options of the request, from the handshake, for the handler."""
    lexicons: tuple[str, ...] = ()
    """The names of the lexicons for the token of the request, from the handshake."""
    dialect: VendorDialect | None = None
    """The vendor's protocol that the request asked for."""
    key = NO_KEY
    """The key that the handshake or the first message had."""
    trusted = False
    """Authorised by the handshake. Otherwise the first message must bring a token."""
    may_begin = False
    """Admitted as a new call. Otherwise it may only join a call."""
    unserved: UnservedConnections
    """Where it has a place after a response that opens no WebSocket."""

    @property
    def target(self) -> str:
        """The request's target: its path with the query."""
        assert self.request is not None
        return self.request.path

    @property
    def own_host(self) -> str:
        """The address of ours that the peer has connected to."""
        return str(self.local_address[0])

    @property
    def traceparent(self) -> str | None:
        """The span of the peer that its request names, if it names one."""
        sent = [] if self.request is None else self.request.headers.get_all("traceparent")
        return traceparent(sent[0]) if len(sent) == 1 else None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: RequestHead | None = RequestHead()
        self._behind: bytes | None = None

    def _refuse(self, flaw: Flaw) -> None:
        """Refuse a head that the library must not see."""
        response = self.protocol.reject(flaw.status, flaw.text)
        if flaw.status is HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(METHODS)
        self.protocol.send_response(response)
        self.send_data()

    def _read_on(self) -> None:
        """The request is answered: parse the bytes that came behind it."""
        behind, self._behind = self._behind, None
        if behind is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            if behind:
                self.data_received(behind)

    # ------------------------------------------------- called by websockets

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            if self._head.feed(data):
                self._take_head(self._head)
        elif self._behind is not None:
            self._behind += data
        else:
            super().data_received(data)

    def _take_head(self, head: RequestHead) -> None:
        self._head = None
        if head.flaw is not None:
            self._refuse(head.flaw)
            return
        # A half-close behind the head also has to wait for the response, so reading stops until then.
        self._behind = head.behind
        self.transport.pause_reading()
        super(DirectConnection, self).data_received(head.whole)  # in one piece: it is not a flood

    def send_data(self) -> None:
        if self.protocol.state is CONNECTING and self.protocol.eof_sent and not self.transport.is_closing():
            self._leave_library()
            return
        super().send_data()
        if self._behind is not None and self.protocol.state is not CONNECTING:
            self.loop.call_soon(self._read_on)

    def _leave_library(self) -> None:
        """Write a response that opens no WebSocket. The library would close the connection before its client has read
        the response."""
        transport, self.transport = self.transport, ClosedTransport()
        self._head = self._behind = None
        transport.write(b"".join(self.protocol.data_to_send()))
        LingeringConnection(transport, self.unserved)
        self.connection_lost(None)

    def eof_received(self) -> None:
        if self._head is not None and self._head.begun:
            self._refuse(CUT_OFF)
        super().eof_received()


class ClosedTransport(asyncio.Transport):
    """The transport of a connection that has given its own away: the library aborts it."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        pass

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class DialledConnection(DirectConnection, ClientConnection):
    """A peer that we connected to."""


class Dial(connect):
    """Connects to a peer when it is awaited, as `websockets.asyncio.client.connect` does.

    No redirect is followed. Otherwise whoever answers could send this machine, which stands in the operator's network,
    to hosts that the configuration does not name.
    """

    def __init__(self, url: str, **how: Any) -> None:
        super().__init__(url, create_connection=DialledConnection, compression=None, proxy=None, **how)

    async def open_tcp_connection(self) -> ClientConnection:
        """Look the name up first, and try its addresses one after the other. uvloop's own lookup goes on when nobody
        waits for the connection any more, and logs a traceback if it fails then."""
        loop, port = asyncio.get_running_loop(), self.ws_uri.port
        found = await loop.getaddrinfo(self.ws_uri.host, port, type=socket.SOCK_STREAM)
        *earlier, last = [str(address[0]) for *_, address in found]
        for host in earlier:
            self.create_connection_kwargs |= {"host": host, "port": port}
            with contextlib.suppress(OSError):
                return await super().open_tcp_connection()
        self.create_connection_kwargs |= {"host": last, "port": port}
        return await super().open_tcp_connection()

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def limit_unsent(transport: asyncio.BaseTransport) -> None:
    """Let the kernel hold little that is not on the network yet, so that the transport knows what a peer reads."""
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_KERNEL_UNSENT_BYTES)


def _ignore(payload: bytes, is_text: bool) -> None:
    """Drop a message of an ended connection."""
