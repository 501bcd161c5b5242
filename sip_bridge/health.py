"""HTTP beside the calls: /healthz, /readyz, /metrics, and POST /originate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from sip_bridge import metrics
from telephony_tts import logs

_log = logs.get(__name__).limited(logs.LineLimit.of_strangers())

_READ_S = 5.0
_MAX_HEAD_BYTES = 8_192
_MAX_BODY_BYTES = 65_536
_MAX_CONNECTIONS = 100

Answer = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""
Originate = Callable[[str, bytes], Awaitable[tuple[HTTPStatus, dict[str, object]]]]
"""(the Authorization header, the body) to the status and the JSON to answer with."""


class BadRequest(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class HealthServer:
    """One request a connection. `close`, then `wait_closed`."""

    def __init__(self, why_not_ready: Callable[[], str | None], originate: Originate | None) -> None:
        self._why_not_ready = why_not_ready
        self._originate = originate
        self._handlers: set[asyncio.Task[None]] = set()
        self._n_reading = 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError for a port in use."""
        self._server = await asyncio.start_server(
            self._handle, host, port, limit=_MAX_HEAD_BYTES, reuse_address=True
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
        try:
            if self._n_reading >= _MAX_CONNECTIONS:
                return
            self._handlers.add(task)
            try:
                status, kind, body = await self._answer(reader)
            except BadRequest as error:
                status, kind, body = _text(error.status, f"{error}\n")
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            async with asyncio.timeout(_READ_S):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever asked is gone, or the bridge is going
        except Exception:
            _log.exception("request_crashed")
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        self._n_reading += 1
        try:
            async with asyncio.timeout(_READ_S):
                method, path, headers = await _head(reader)
                body = await _body(reader, headers) if method == "POST" else b""
        except TimeoutError:
            raise BadRequest(HTTPStatus.REQUEST_TIMEOUT, f"no whole request within {_READ_S:g} s") from None
        finally:
            self._n_reading -= 1
        if path == "/originate":
            if method != "POST":
                raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "a call is made with POST /originate")
            if self._originate is None:
                raise BadRequest(HTTPStatus.NOT_FOUND, "calls are made by ARI, which is off (ari.enabled)")
            status, told = await self._originate(headers.get("authorization", ""), body)
            return status, "application/json", json.dumps(told).encode() + b"\n"
        if method != "GET":
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET, and POST /originate")
        return self._look(path)

    def _look(self, path: str) -> Answer:
        if path == "/healthz":
            return _text(HTTPStatus.OK, "ok\n")
        if path == "/readyz":
            why = self._why_not_ready()
            if why is None:
                return _text(HTTPStatus.OK, "ready\n")
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n")
        if path == "/metrics":
            body, content_type = metrics.render()
            return HTTPStatus.OK, content_type, body
        return _text(HTTPStatus.NOT_FOUND, "no such path; there are /healthz, /readyz, /metrics and /originate\n")


async def serve_health(
    host: str, port: int, why_not_ready: Callable[[], str | None], originate: Originate | None = None
) -> HealthServer:
    """Answer until the returned server is closed. Raises OSError for a port in use."""
    server = HealthServer(why_not_ready, originate)
    await server.listen(host, port)
    return server


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    """Method, path without its query, and headers in small letters. Raises BadRequest."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too long") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is not HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return words[0], words[1].partition("?")[0], headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    length = headers.get("content-length", "")
    if not length.isascii() or not length.isdecimal() or "transfer-encoding" in headers:
        raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
    if len(length) > 9 or int(length) > _MAX_BODY_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_MAX_BODY_BYTES} bytes")
    return await reader.readexactly(int(length))


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", text.encode()
