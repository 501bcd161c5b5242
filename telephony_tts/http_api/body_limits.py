"""Limits for request bodies: their size, and the time between two pieces of one."""

from __future__ import annotations

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BODY_TIMEOUT_S = 20.0


class _BodyTooLarge(Exception):
    """More than the limit has come."""


class BodyLimits:
    """ASGI middleware. A body that is too large gets 413, one that stops half way 408. Neither is read to its end."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        n_bytes, is_whole, has_begun = 0, False, False

        async def receive_limited() -> Message:
            nonlocal n_bytes, is_whole
            if is_whole:
                return await receive()  # only a disconnect can come
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                message = await receive()
            n_bytes += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if n_bytes > self._max_bytes:
                raise _BodyTooLarge
            return message

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(send, 413, "body_too_large", f"the body is larger than {self._max_bytes} bytes")
            return
        try:
            await self._app(scope, receive_limited, send_noted)
        except _BodyTooLarge:
            if not has_begun:
                await self._refuse(send, 413, "body_too_large", f"the body is larger than {self._max_bytes} bytes")
        except TimeoutError:
            if has_begun or is_whole:
                raise
            await self._refuse(send, 408, "body_timeout", f"no more of the body came for {_BODY_TIMEOUT_S:g} s")

    async def _refuse(self, send: Send, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
