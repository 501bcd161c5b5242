"""The HTTP API: speech as a response, for clients without a call (docs/protocol/http.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from websockets.datastructures import Headers

from telephony_tts import logs, metrics
from telephony_tts.errors import Busy, TelephonyTTSError
from telephony_tts.http_api.speech import SpeechRequest, SpeechStreams
from telephony_tts.http_api.tts_routes import tts_routes
from telephony_tts.transport.server import Server

_log = logs.get(__name__)
_SLOW_READER_S = 30.0
"""A client that takes no audio for so long is dropped: its utterance would hold a place in the engine."""

T = TypeVar("T")


def application(server: Server) -> FastAPI:
    """The FastAPI application of `server`."""
    app = FastAPI(title="Telephony TTS", docs_url="/docs", redoc_url=None)
    api = HttpApi(server)

    @app.exception_handler(TelephonyTTSError)
    async def _failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, TelephonyTTSError)
        return api.refusal(error)

    app.include_router(tts_routes(api), dependencies=[Depends(api.authorise)])
    return app


class HttpApi:
    """What the routes need."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.streams = SpeechStreams(server)

    async def authorise(self, request: Request) -> None:
        """Raises NotAllowed unless the request carries a token, if the server has tokens."""
        target = request.url.path + ("?" + request.url.query if request.url.query else "")
        headers = Headers([(name, value) for name, value in request.headers.items()])
        if not self.server.knows_key_of(target, headers):
            metrics.REFUSED.labels(reason="unauthorized").inc()
            raise NotAllowed("a token is needed: Authorization: Bearer …")

    def refusal(self, error: TelephonyTTSError) -> Response:
        """Our own form of an error. Vendors' routes have theirs."""
        status = STATUS.get(error.code, 500)
        response = JSONResponse({"error": {"code": error.code, "message": error.message}}, status)
        if error.retry_after_ms is not None:
            response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
        return response

    async def speak(
        self,
        request: Request,
        wanted: SpeechRequest,
        content_type: str,
        convert: Callable[[AsyncGenerator[bytes, None]], AsyncGenerator[bytes, None]] | None = None,
    ) -> Response:
        """The response that streams the speech. It begins with the first audio; an error before that is raised.

        `convert` turns the audio into the bytes of the response, for example those of a container.
        """
        stack = AsyncExitStack()
        try:
            audio = await _unless_gone(request, stack.enter_async_context(self.streams.open(wanted)))
        except BaseException:
            await stack.aclose()
            raise
        body = audio if convert is None else convert(audio)
        return SpeechResponse(body, stack, content_type)


class NotAllowed(TelephonyTTSError):
    """The request has no token, or a wrong one."""

    code = "unauthorized"


class ClientGone(TelephonyTTSError):
    """The client closed the connection before there was anything to send."""

    code = "client_gone"


STATUS = {
    "unauthorized": 401,
    "client_gone": 499,
    "bad_request": 400,
    "text_too_long": 413,
    "unknown_voice": 404,
    "unsupported_text": 422,
    "bad_audio": 400,
    "format_unavailable": 501,
    "engine_unavailable": 501,
    "busy": 503,
}
"""The HTTP status of each code of our errors. All others are 500."""


class SpeechResponse(StreamingResponse):
    """Streams audio, and ends the speech when it ends, whoever ends it."""

    def __init__(self, body: AsyncGenerator[bytes, None], stack: AsyncExitStack, content_type: str) -> None:
        super().__init__(body, media_type=content_type)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_SLOW_READER_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            _log.warning("slow_reader", path=scope["path"], for_s=_SLOW_READER_S)
            raise
        finally:
            await self._stack.aclose()


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. It is cancelled if the client goes away meanwhile: raises ClientGone then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("the client has closed the connection")
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


__all__ = ["Busy", "HttpApi", "application"]
