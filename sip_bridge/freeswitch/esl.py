"""A connection to FreeSWITCH's event socket: events arrive in a callback, and sending a command never waits.

Replies come in the order of the commands, so each command may have a callback for its reply. The connection is lost if
a command is not answered in time. An idle connection is checked with `uptime`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from sip_bridge.freeswitch.config import FreeSwitchConfig
from sip_bridge.freeswitch.esl_messages import EslEvent, EslGarbage, EslMessage, EslReader, event, execute
from sip_bridge.peer_input import BadInput
from sip_bridge.reconnect import NotConnected
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns

_log = logs.get(__name__)

_PING_S = 10.0
_GOODBYE_S = 1.0
_MAX_UNSENT_BYTES = 1 << 20
_FORBIDDEN = frozenset("\r\n\0")

OnReply = Callable[[str], None]
"""Gets "+OK …" or "-ERR …", or the output of an `api` command."""


class EslLost(NotConnected):
    """There is no connection; the message says why and what to do."""


class EslConnection(asyncio.Protocol):
    """`lost` is done when the connection is closed or lost; its result says why."""

    def __init__(self, reply_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._reply_timeout_s = reply_timeout_s
        self._reader = EslReader()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[tuple[int, OnReply | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_greeted: asyncio.Future[None] = self._loop.create_future()
        self._on_event: Callable[[EslEvent, int], None] | None = None
        self._bad_input = BadInput()
        self.lost: asyncio.Future[str] = self._loop.create_future()

    # -------------------------------------------------------- for the application

    def listen(self, on_event: Callable[[EslEvent, int], None]) -> None:
        """Deliver events from now on, with the time in ns."""
        self._on_event = on_event

    def send(self, command: str, then: OnReply | None = None) -> None:
        """Send one command. FreeSWITCH runs commands in order. Raises ValueError for a line break in it."""
        if not _FORBIDDEN.isdisjoint(command):
            raise ValueError("a command may not contain a line break")
        self._write(command, then)

    def execute(self, uuid: str, application: str, argument: str, then: OnReply | None = None) -> None:
        """Queue an application of the dialplan on a channel; `then` gets whether FreeSWITCH has queued it.

        Raises ValueError as `esl_messages.execute` does.
        """
        self._write(execute(uuid, application, argument), then)

    def _write(self, lines: str, then: OnReply | None) -> None:
        if self.lost.done() or self._transport is None:
            return
        self._pending.append((monotonic_ns(), then))
        self._transport.write(f"{lines}\n\n".encode())
        if self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.close("FreeSWITCH does not read its commands")

    def raise_event(self, subclass: str, headers: str) -> None:
        """Raise a custom event, which all clients get that have subscribed to it. `headers` are lines."""
        self._write(f"sendevent CUSTOM\nEvent-Subclass: {subclass}\n{headers}", None)

    async def ask(self, command: str) -> str:
        """Send a command and wait for its reply. Raises EslLost."""
        reply: asyncio.Future[str] = self._loop.create_future()
        self.send(command, lambda text: None if reply.done() else reply.set_result(text))
        await asyncio.wait((reply, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise EslLost(self.lost.result())
        return reply.result()

    async def greet(self) -> None:
        """Wait for FreeSWITCH's request to authenticate. Raises EslLost."""
        await asyncio.wait((self._is_greeted, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not self._is_greeted.done():
            raise EslLost(self.lost.result())

    async def leave(self) -> None:
        """Send `exit`, so that earlier commands are still run, and close. Idempotent."""
        try:
            if not self.lost.done():
                self.send("exit")
                await asyncio.wait((self.lost,), timeout=_GOODBYE_S)
        finally:
            self.close()

    def close(self, why: str = "closed by us") -> None:
        """Close the connection at once. Idempotent."""
        if not self.lost.done():
            self.lost.set_result(why)
        self._on_event = None
        self._pending.clear()
        self._is_greeted.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(self._reply_timeout_s, self._check_alive)

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        try:
            for message in self._reader.feed(data):
                if self.lost.done():
                    return
                self._take(message, now_ns)
        except EslGarbage as error:
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("FreeSWITCH has closed it" if exc is None else str(exc))

    def _take(self, message: EslMessage, now_ns: int) -> None:
        match message.kind:
            case "auth/request":
                if not self._is_greeted.done():
                    self._is_greeted.set_result(None)
            case "command/reply":
                self._reply(message.headers.get("Reply-Text", ""))
            case "api/response":
                self._reply(message.body.strip())
            case "text/event-plain":
                what = event(message)
                if what is None:
                    self._bad_input.report(_log, "freeswitch_event", "an event that cannot be read")
                elif self._on_event is not None:
                    self._on_event(what, now_ns)
            case "text/rude-rejection":
                self.close("FreeSWITCH refuses connections from here; see apply-inbound-acl in event_socket.conf.xml")
            case "text/disconnect-notice":
                self.close("FreeSWITCH says goodbye")
            case _:
                _log.debug("esl_message_unknown", kind=message.kind[:80])

    def _reply(self, text: str) -> None:
        if not self._pending:
            return  # a reply without a command
        _, then = self._pending.popleft()
        if then is not None:
            try:
                then(text)
            except Exception:
                _log.exception("esl_reply_crashed")

    def _check_alive(self) -> None:
        """Close if the oldest command is not answered in time. If none is pending, ask for the uptime."""
        now_ns, wait_s = monotonic_ns(), _PING_S
        if self._pending:
            left_s = self._reply_timeout_s - (now_ns - self._pending[0][0]) / NS_PER_S
            if left_s <= 0:
                self.close(f"FreeSWITCH has not answered for {self._reply_timeout_s} s")
                return
            wait_s = min(wait_s, left_s)
        elif self._is_greeted.done():
            self.send("api uptime")
            wait_s = self._reply_timeout_s
        self._timer = self._loop.call_later(wait_s, self._check_alive)


async def connect_esl(settings: FreeSwitchConfig, events: str) -> EslConnection:
    """Connect, authenticate and subscribe to `events`. Raises EslLost."""
    loop = asyncio.get_running_loop()
    connection: EslConnection | None = None
    is_there = False
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            # uvloop's own lookup goes on after the timeout, and logs a traceback if it fails then.
            await loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
            _, connection = await loop.create_connection(
                lambda: EslConnection(settings.reply_timeout_s), settings.host, settings.port
            )
            await connection.greet()
            answer = await connection.ask(f"auth {settings.password or ''}")
            if not answer.startswith("+OK"):
                raise EslLost("FreeSWITCH does not take freeswitch.password; it is that of event_socket.conf.xml")
            answer = await connection.ask(f"event plain {events}")
            if not answer.startswith("+OK"):
                raise EslLost(f"FreeSWITCH does not give its events: {answer[:200]}")
            is_there = True
            return connection
    except OSError as error:  # TimeoutError is one
        why = getattr(error, "strerror", None) or str(error) or f"no answer within {settings.connect_timeout_s} s"
        raise EslLost(f"no event socket at {settings.host}:{settings.port}: {why}") from None
    finally:
        if connection is not None and not is_there:
            connection.close()
