"""What every HTTP request passes first: the call it joins, the page it comes from, its key, and its body's size and
speed.

A request that is refused here has its body unread. So nobody without a key makes the server store one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from fastapi.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.datastructures import Headers

from telephony_tts.http_api.console_lexicons import LEXICONS
from telephony_tts.http_api.request_key import REQUEST_KEY
from telephony_tts.http_api.responses import BadRequest, NotAllowed
from telephony_tts.ops.lexicon_files import MAX_FILE_BYTES
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import Busy, TelephonyTTSError
from telephony_tts.transport.door import split_call
from telephony_tts.transport.server import Server
from telephony_tts.wire.fields import traceparent
from telephony_tts.wire.vendor import query_of

BODY_PIECE_S = 20.0
"""The longest time between two pieces of a body."""
BODY_S = 120.0
"""The longest time for a whole body."""
_BODIES_AT_ONCE = 4
"""All bodies together may take the memory of so many of the largest size."""
_BYTES_PER_CHAR = 12
"""The most that JSON and forms need for a character: an emoji is two escapes of six bytes, or four of three."""
_JSON_PER_BYTE = 3
"""The most that JSON needs for a byte of a text in UTF-8: a letter with an accent has two bytes and may be six."""
_OPTIONS_BYTES = 65_536
"""Room for all that a body without a file has beside its text."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s;\"']+)", re.IGNORECASE)
"""Other charsets than UTF-8 can take Python far longer than their size suggests."""
_OPEN = frozenset({"/docs", "/openapi.json"})
"""The description of the API, which is the same for every server."""


class BodyTooLarge(TelephonyTTSError):
    """The body is larger than the limit."""

    code = "body_too_large"


class EncodedBody(TelephonyTTSError):
    """The body is compressed. A small one could become gigabytes."""

    code = "encoded_body"


class BodyTimeout(TelephonyTTSError):
    """The body stopped half way, or came too slowly."""

    code = "body_timeout"


class Gate:
    """ASGI middleware. `refusal` makes the response to an error of a path. `open_paths` need no key, like the API's
    description: they are the same for every server."""

    def __init__(
        self,
        app: ASGIApp,
        server: Server,
        refusal: Callable[[str, TelephonyTTSError], Response],
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._open = _OPEN | open_paths
        self._server = server
        self._refusal = refusal
        self._n_held_bytes = 0
        """The bodies of all requests that are being read or served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        held = bytearray()
        scope = _without_call(scope)
        door = scope["state"]["door"] = self._server.doors.of_http(scope["path"])
        sent = headers.get_all("traceparent")
        scope["state"]["traceparent"] = traceparent(sent[0]) if len(sent) == 1 else None
        send = _counted(door, send)
        try:
            try:
                is_open = scope["path"] in self._open
                if is_open and scope["method"] not in ("GET", "HEAD"):
                    raise BadRequest(f"{scope['path']} is read with GET")
                if not is_open:
                    self._check_origin(scope, headers)
                    if "Origin" in headers:
                        send = _readable_by(headers["Origin"], send)
                    if scope["method"] == "OPTIONS" and "Access-Control-Request-Method" in headers:
                        await _allow_page(scope, receive, send)
                        return
                    self._check_key(scope, headers)
                limit = 0 if is_open else self._most_bytes(scope, headers)
                is_whole = await self._read_body(headers, receive, held, limit)
                if scope["state"]["is_broken"]():
                    raise BadRequest("the body's chunks cannot be parsed")
            except TelephonyTTSError as error:
                await _refuse(self._refusal(scope["path"], error), scope["state"], send)
                return
            if is_whole:
                await self._app(scope, _replayed(bytes(held), receive), send)
        finally:
            self._n_held_bytes -= len(held)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Raises TelephonyTTSError if a web page sent the request that may not use the server."""
        here = scope["server"][0]
        why_not = self._server.origin_refusal(here, headers) or self._server.rebinding_refusal(here, headers)
        if why_not is not None:
            metrics.REFUSED.labels(reason="origin").inc()
            raise TelephonyTTSError(why_not.strip(), code="origin")

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        """Raises NotAllowed unless the request carries a token, if the server has tokens."""
        target = (scope["raw_path"] + b"?" + scope["query_string"]).decode("ascii")
        key = self._server.key_of(target, headers)
        if key is None:
            metrics.REFUSED.labels(reason="unauthorized").inc()
            raise NotAllowed("a token is needed: Authorization: Bearer …")
        REQUEST_KEY.set(key)
        scope["state"]["lexicons"] = self._server.lexicons_for(target, headers, key)
        scope["state"]["supervises"] = self._server.supervises(key)

    def _most_bytes(self, scope: Scope, headers: Headers) -> int:
        """The limit of the request's body."""
        settings = self._server.settings.vendors
        if any(kind.lower().startswith("multipart/form-data") for kind in headers.get_all("Content-Type")):
            return settings.request_bytes
        n_bytes = _BYTES_PER_CHAR * settings.request_chars
        if scope["path"].startswith(LEXICONS) and scope["state"]["supervises"]:
            n_bytes = max(n_bytes, _JSON_PER_BYTE * MAX_FILE_BYTES)
        return min(settings.request_bytes, n_bytes + _OPTIONS_BYTES)

    async def _read_body(self, headers: Headers, receive: Receive, held: bytearray, limit: int) -> bool:
        """Read the whole body into `held`. False: the client has closed the connection. Raises TelephonyTTSError."""
        announced = headers.get("Content-Length")  # RequestHead let in at most one, and it is a number
        for kind in headers.get_all("Content-Type"):
            charset = _CHARSET.search(kind)
            if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii", "ascii"):
                raise BadRequest("the body's charset must be UTF-8")
        if any(kind.strip().lower() not in ("", "identity") for kind in headers.get_all("Content-Encoding")):
            raise EncodedBody("a body with a Content-Encoding is not read; send it as it is")
        too_large = BodyTooLarge(f"the body is larger than {limit} bytes")
        if announced is not None and int(announced) > limit:
            raise too_large
        now_s = asyncio.get_running_loop().time
        end_s = now_s() + BODY_S
        while True:
            try:
                async with asyncio.timeout_at(min(end_s, now_s() + BODY_PIECE_S)):
                    message = await receive()
            except TimeoutError as error:
                raise BodyTimeout("the body did not come to its end in time") from error
            if message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            held += piece
            self._n_held_bytes += len(piece)
            if len(held) > limit:
                raise too_large
            if self._n_held_bytes > _BODIES_AT_ONCE * self._server.settings.vendors.request_bytes:
                raise Busy("too many large bodies come at the same time", retry_after_ms=2_000)
            if not message.get("more_body", False):
                return True


def _counted(door: str, send: Send) -> Send:
    """Counts the response that is sent."""

    async def send_counted(message: Message) -> None:
        if message["type"] == "http.response.start":
            code = "2xx" if message["status"] < 400 else "4xx" if message["status"] < 500 else "5xx"
            metrics.HTTP_RESPONSES.labels(door, code).inc()
        await send(message)

    return send_counted


def _without_call(scope: Scope) -> Scope:
    """The request without `/calls/NAME` before its path. `state` has the call that it joins, which may also be in the
    query, or None."""
    target = (scope["raw_path"] + b"?" + scope["query_string"]).decode("ascii")
    call, rest = split_call(target)
    state = {**scope["state"], "call": query_of(target).get("call") if call is None else call}
    raw_path = rest.partition("?")[0]
    return {**scope, "raw_path": raw_path.encode("ascii"), "path": unquote(raw_path), "state": state}


def _headers(scope: Scope) -> Headers:
    """The headers as the WebSocket library has them. RequestHead let in no values that it refuses."""
    return Headers([(name.decode("ascii"), value.decode("latin-1")) for name, value in scope["headers"]])


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A channel with this body, and then with what comes from `receive`."""
    is_taken = False

    async def replay() -> Message:
        nonlocal is_taken
        if is_taken:
            return await receive()
        is_taken = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _readable_by(page: str, send: Send) -> Send:
    """Responses that scripts of this page may read (CORS)."""

    async def send_to_page(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = [(b"access-control-allow-origin", page.encode("latin-1")), (b"vary", b"Origin")]
            message = {**message, "headers": [*message.get("headers", ()), *allowed]}
        await send(message)

    return send_to_page


async def _allow_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a browser that asks before a page's request."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
        "Access-Control-Max-Age": "600",
    }
    await Response(status_code=204, headers=headers)(scope, receive, send)


async def _refuse(response: Response, state: Mapping[str, Any], send: Send) -> None:
    """Send the response, and let the client read it: the rest of the request's body is dropped."""
    response.headers["Connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    state["drop_rest"]()
