"""HTTP beside the calls: GET /healthz, /readyz and /metrics, and POST /originate.

The main server answers HTTP through its WebSocket library. That library takes no request with a body, which an order
for a call has. So the connections are served here, with the same parser of request heads as in the main server
(transport/request_head.py) and the same library to write the answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from websockets.datastructures import Headers
from websockets.http11 import Response

from sip_bridge import metrics
from telephony_tts.runtime import event_loop, logs
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.transport.unserved import LingeringConnection, UnservedConnections, peer_host

_log = logs.get(__name__).limited(logs.LineLimit.outside_calls())

_READ_S = 5.0
_READ_BYTES = 16_384
_MAX_BODY_BYTES = 65_536

AnswerOriginate = Callable[[str, bytes], Awaitable[tuple[HTTPStatus, dict[str, object]]]]
"""(the Authorization header, the body) to the status and the JSON of the answer."""


class BadRequest(Exception):
    """A request that is answered with `status` and the message, and goes no further."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class HttpServer:
    """Answers one request on each connection. `close` it, then `wait_closed`."""

    def __init__(self, why_not_ready: Callable[[], str | None], originate: AnswerOriginate | None) -> None:
        self._why_not_ready = why_not_ready
        self._originate = originate
        self._handlers: set[asyncio.Task[None]] = set()
        self._unserved = UnservedConnections()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError for a port in use."""

        def protocol() -> asyncio.StreamReaderProtocol:  # as `asyncio.start_server` makes it
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._handle)

        make = event_loop.or_refuse(protocol)
        self._server = await asyncio.get_running_loop().create_server(
            make, host, port, reuse_address=True, backlog=event_loop.ACCEPT_QUEUE
        )

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for handler in self._handlers:
            handler.cancel()

    async def wait_closed(self) -> None:
        if self._handlers:
            await asyncio.wait(set(self._handlers))
        if self._server is not None:
            await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        transport = cast(asyncio.Transport, writer.transport)
        self._handlers.add(task)
        try:
            try:
                head, body = await self._read(reader, transport)
                response = await self._answer(head, body)
            except BadRequest as error:
                response = _text(error.status, f"{error}\n")
            writer.write(response.serialize())
            closed = asyncio.Event()
            LingeringConnection(transport, self._unserved, closed.set)
            await closed.wait()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has closed the connection, or the bridge stops
        except Exception:
            _log.exception("request_crashed")
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> tuple[RequestHead, bytes]:
        """The head and the body of a request. Raises BadRequest, and IncompleteReadError if the client closes early."""
        self._unserved.add(transport, peer_host(transport), transport.abort)
        try:
            async with asyncio.timeout(_READ_S):
                head = RequestHead(any_method=True)
                while not head.feed(await _read_some(reader)):
                    pass
                if head.flaw is not None:
                    raise BadRequest(head.flaw.status, head.flaw.text.rstrip())
                n_body = _body_length(head) if head.method == "POST" else 0
                n_missing = max(0, n_body - len(head.behind))
                return head, head.behind[:n_body] + await reader.readexactly(n_missing)
        except TimeoutError:
            raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, f"no whole request within {_READ_S:g} s") from None
        finally:
            self._unserved.remove(transport)

    async def _answer(self, head: RequestHead, body: bytes) -> Response:
        path = head.target.partition("?")[0]
        if path == "/originate":
            if head.method != "POST":
                return _text(HTTPStatus.METHOD_NOT_ALLOWED, "a call is ordered with POST /originate\n")
            if self._originate is None:
                return _text(HTTPStatus.NOT_FOUND, "calls are made through ARI, which is off: set ari.enabled\n")
            status, told = await self._originate(_only(head, "authorization"), body)
            return _response(status, "application/json", json.dumps(told).encode() + b"\n")
        if head.method != "GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET, and POST /originate\n")
        if path == "/healthz":
            return _text(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            why = self._why_not_ready()
            return _text(HTTPStatus.OK, "ready\n") if why is None else _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n")
        if path == "/metrics":
            exposition, content_type = metrics.render()
            return _response(HTTPStatus.OK, content_type, exposition)
        return _text(HTTPStatus.NOT_FOUND, "no such path; there are /healthz, /readyz, /metrics and /originate\n")


async def serve_http(
    host: str, port: int, why_not_ready: Callable[[], str | None], originate: AnswerOriginate | None = None
) -> HttpServer:
    """Answer until the returned server is closed. Raises OSError for a port in use."""
    server = HttpServer(why_not_ready, originate)
    await server.listen(host, port)
    return server


async def _read_some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_BYTES)
    if not data:
        raise asyncio.IncompleteReadError(b"", None)
    return data


def _body_length(head: RequestHead) -> int:
    """The body's length in bytes. Raises BadRequest if the head does not give it, or if it is over the limit."""
    length = _only(head, "content-length")
    if not length.isascii() or not length.isdecimal() or head.values("transfer-encoding"):
        raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
    if len(length) > 9 or int(length) > _MAX_BODY_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_MAX_BODY_BYTES} bytes")
    return int(length)


def _only(head: RequestHead, name: str) -> str:
    """The value of a header, empty if the header is missing or repeated: a repeated one is ambiguous."""
    values = head.values(name)
    return values[0] if len(values) == 1 else ""


def _text(status: HTTPStatus, text: str) -> Response:
    return _response(status, "text/plain; charset=utf-8", text.encode())


def _response(status: HTTPStatus, content_type: str, body: bytes) -> Response:
    headers = Headers({"Content-Type": content_type, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
