"""Limits of a request's body, before anything reads it: its size, and how long a client may pause in it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from telephony_tts import logs

_log = logs.get(__name__)

STALLED_S = 20.0
"""A client that sends nothing for so long in the middle of a body is answered and cut off."""
MOST_S = 300.0
"""For a whole body, however steadily it comes."""
LINGER_S, LINGER_BYTES = 2.0, 16_000_000
"""How long, and how much, is still read and dropped after an answer that came before the whole body. Otherwise the
connection would be reset, and many clients would not see the answer."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    code: str
    message: str


class BodyLimits:
    """An ASGI application in front of `app`. It answers 413 to a body of more than `max_bytes`, also a chunked one, and
    408 to a body that stops for `stalled_s`. In both cases `app` sees a client that has disconnected."""

    def __init__(self, app: ASGIApp, max_bytes: int, stalled_s: float = STALLED_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._stalled_s = stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _LimitedRequest(scope, receive, send, self._max_bytes, self._stalled_s)
        if not request.is_refused():
            try:
                await self._app(scope, request.receive, request.send)
            except Exception:
                if not request.is_refused():
                    raise
        if request.is_refused():
            await request.refuse()


class _LimitedRequest:
    def __init__(self, scope: Scope, receive: Receive, send: Send, max_bytes: int, stalled_s: float) -> None:
        self._path = scope["path"]
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._stalled_s = stalled_s
        self._end_s = asyncio.get_running_loop().time() + MOST_S
        self._n_bytes = 0
        self._is_complete = False
        self._has_answer = False
        self.refusal: _Refusal | None = None
        headers = dict(scope["headers"])
        said = headers.get(b"content-length", b"")
        has_body = said not in (b"", b"0") or b"transfer-encoding" in headers
        # A client that asks before it sends a body sends none after the answer.
        self._may_send_more = has_body and b"expect" not in headers
        if said.isdigit() and int(said) > max_bytes:
            self._is_too_large()

    def is_refused(self) -> bool:
        return self.refusal is not None

    async def receive(self) -> Message:
        if self.refusal is not None:
            return {"type": "http.disconnect"}
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(min(self._end_s, asyncio.get_running_loop().time() + self._stalled_s)):
                message = await self._receive()
        except TimeoutError:
            why = f"the body of the request has stopped for {self._stalled_s:g} s, or takes longer than {MOST_S:g} s"
            self.refusal = _Refusal(408, "body_timeout", why)
            return {"type": "http.disconnect"}
        self._n_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._n_bytes > self._max_bytes:
            self._is_too_large()
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        """What the application sends, unless the request was refused before it began to answer."""
        if self.refusal is not None and not self._has_answer:
            return
        self._has_answer = True
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._end_answer(message.get("body", b""))
        else:
            await self._send(message)

    async def refuse(self) -> None:
        refusal = self.refusal
        assert refusal is not None
        _log.warning("body_refused", path=self._path, why=refusal.message)
        if self._has_answer:
            return
        body = json.dumps({"error": {"code": refusal.code, "message": refusal.message}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await self._send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self._end_answer(body)

    async def _end_answer(self, body: bytes) -> None:
        """Send the end of the answer, when the client has sent what it wants to send."""
        if self._may_send_more and not self._is_complete:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await self._drop_rest()
            body = b""
        await self._send({"type": "http.response.body", "body": body})

    async def _drop_rest(self) -> None:
        n_dropped = 0
        try:
            async with asyncio.timeout(LINGER_S):
                while not self._is_complete and n_dropped < LINGER_BYTES:
                    message = await self._receive()
                    n_dropped += len(message.get("body", b""))
                    self._is_complete = not message.get("more_body", False)
        except TimeoutError:
            return

    def _is_too_large(self) -> None:
        limit = f"{self._max_bytes} bytes (vendors.request_bytes)"
        self.refusal = _Refusal(413, "body_too_large", f"the body of the request is larger than {limit}")
