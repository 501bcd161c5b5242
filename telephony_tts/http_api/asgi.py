"""The HTTP side of the listening socket: a FastAPI application, served by uvicorn's protocol on accepted connections.

`transport/incoming.py` accepts the connections and decides which of their requests come here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from telephony_tts.audio.containers import import_encoders
from telephony_tts.http_api.application import application
from telephony_tts.http_api.console_routes import ConsoleTools
from telephony_tts.http_api.voices import Voices
from telephony_tts.runtime import logs
from telephony_tts.transport.door import split_call
from telephony_tts.transport.incoming import TakeBack
from telephony_tts.transport.request_head import MAX_HEAD_BYTES
from telephony_tts.transport.server import Server

_CLOSE_S = 5.0
_LEFT = (7, 8)
"""States of a TCP connection in Linux: CLOSE, after a reset, and CLOSE_WAIT, after the client's last byte."""


class HttpServer:
    """Serves the requests of `app`, whose own `paths` are these and what lies below them."""

    def __init__(self, app: ASGIApp, paths: tuple[str, ...], log: logs.EventLogger) -> None:
        self._paths = paths
        self._log = UvicornLog(log)
        self._config = Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._config.load()
        self._state = ServerState()
        self._state.default_headers = self._config.encoded_headers

    def owns(self, path: str) -> bool:
        _, path = split_call(path)
        return any(path == fixed or path.startswith(fixed + "/") for fixed in self._paths)

    def connection(self, take_back: TakeBack, lost: Callable[[], None]) -> asyncio.Protocol:
        return HttpConnection(self._config, self._state, self._log, take_back, lost)

    async def close(self) -> None:
        """End the requests that still run. Connections between two requests are not here."""
        for connection in list(self._state.connections):
            if not connection.transport.is_closing():
                connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=_CLOSE_S)
            for task in pending:
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=_CLOSE_S)
        for connection in list(self._state.connections):
            connection.transport.abort()


class HttpConnection(H11Protocol):
    """Serves one request. Then the connection goes back, with what the client has already sent of the next one."""

    def __init__(
        self, config: Config, state: ServerState, log: UvicornLog, take_back: TakeBack, lost: Callable[[], None]
    ) -> None:
        self._is_broken = False
        told = {
            "cut_off": self.cut_off, "drop_rest": self.drop_rest, "is_broken": lambda: self._is_broken,
            "client_has_left": self.client_has_left,
        }  # fmt: skip
        super().__init__(config, state, told)
        self.logger = log  # type: ignore[assignment]
        self._take_back = take_back
        self._lost = lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost()

    def client_has_left(self) -> bool:
        """Whether the client has closed the connection, as far as the kernel knows. The event loop learns that one or
        more rounds later. False where the kernel cannot be asked."""
        if self.transport.is_closing():
            return True
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            # The state is the first byte of the kernel's `struct tcp_info`.
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT
        except (OSError, ValueError):  # uvloop raises ValueError for a socket that it has closed
            return False

    def cut_off(self, at_once: bool) -> None:
        """End a response that cannot be completed, so that its client sees it. `at_once` drops what it has not read."""
        self.cycle.disconnected = True
        # By HTTP/1.0 the end of the connection ends the body. Only a reset says that it is not whole.
        if at_once or self.scope["http_version"] == "1.0":
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    def drop_rest(self) -> None:
        """End the request with its response. What the client still sends of it is dropped."""
        self.cycle.disconnected = True
        self.connections.discard(self)
        self._take_back(self.transport, None)

    def handle_events(self) -> None:
        try:
            super().handle_events()
        except h11.LocalProtocolError:  # the body has a mistake, and the response has begun
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """A part of the request cannot be parsed. In a body, the application answers, which reads what still comes."""
        if not bool(self.cycle):  # uvicorn types it as never None
            super().send_400_response(msg)
        elif self.cycle.response_started and not self._is_broken:
            self.transport.abort()
        else:
            self._is_broken, self.cycle.more_body = True, False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.their_state is not h11.DONE:
            self.drop_rest()
            return
        if self.conn.our_state is not h11.DONE or self.flow.write_paused:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.connections.discard(self)
        self._take_back(self.transport, self.conn.trailing_data[0])


class UvicornLog:
    """What uvicorn's protocol has to say, as lines of our log. A client's mistake is no warning."""

    level = logging.INFO

    def __init__(self, log: logs.EventLogger) -> None:
        self._log = log

    def warning(self, message: str) -> None:
        self._log.info("refused", reason="bad_request", why=message)

    def error(self, message: str, *_: object, exc_info: Any = None) -> None:
        self._log.error("http_request_failed", why=message.strip(), exc_info=exc_info)


def import_early() -> None:
    """Import what the first request, and the first one for mp3, would import. For 0.1 s and 0.3 s the event loop would
    send no frame of any call."""
    with contextlib.suppress(ImportError):
        import anyio._backends._asyncio  # noqa: F401
    import_encoders()


def http_server(server: Server, voices: Voices | None = None, tools: ConsoleTools | None = None) -> HttpServer:
    """The HTTP side of `server`. `voices` adds and removes voices; None if the server cannot. `tools` are for the
    console."""
    import_early()
    return HttpServer(*application(server, voices, tools), server.outside_log)
