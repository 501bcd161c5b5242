"""The HTTP API: speech as a response, for clients without a call (docs/protocol/http.md)."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from telephony_tts.http_api import responses
from telephony_tts.http_api.console_routes import CONSOLE, Console, ConsoleTools
from telephony_tts.http_api.docs_page import docs_page
from telephony_tts.http_api.gate import Gate
from telephony_tts.http_api.responses import BadRequest, ClientGone, HttpApi
from telephony_tts.http_api.tts_routes import tts_routes
from telephony_tts.http_api.voice_routes import voice_routes
from telephony_tts.http_api.voices import Voices
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.server import Server

_DOCS_PATH, _SCHEMA_PATH = "/docs", "/openapi.json"
_LOGGED_CHARS = 200
_CODES = {404: "not_found", 405: "method_not_allowed"}


def description(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description. FastAPI would make it anew for a request, because routes without one are added later.
    The event loop would send no frame of any call for 50 ms."""
    return app.openapi()


def application(
    server: Server, voices: Voices | None = None, tools: ConsoleTools | None = None
) -> tuple[ASGIApp, tuple[str, ...]]:
    """The ASGI application of `server`, and the paths that belong to it, each with all that lies below."""
    app = FastAPI(title="Telephony TTS", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.version = version("telephony-tts")
    api = HttpApi(server, voices)
    http_doors = [door.http for door in server.doors.all if door.http is not None]

    def refuse(path: str, error: TelephonyTTSError) -> Response:
        if not isinstance(error, ClientGone):
            why = error.message[:_LOGGED_CHARS]
            server.outside_log.info("refused", reason=error.code, path=path[:_LOGGED_CHARS], why=why)
        told = next((made for door in http_doors if (made := door.refusal(path)) is not None), responses.refusal)
        response: Response = told(error)
        return response

    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of clients' mistakes

    @app.exception_handler(TelephonyTTSError)
    async def _failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, TelephonyTTSError)
        return refuse(request.scope["path"], error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = ("{}: {}".format(".".join(map(str, each["loc"][1:])), each["msg"]) for each in error.errors())
        return await _failed(request, BadRequest("; ".join(problems)[:500]))

    @app.exception_handler(HTTPException)
    async def _not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "bad_request")
        response = await _failed(request, TelephonyTTSError(str(error.detail), code=code))
        response.headers.update(error.headers or {})
        return response

    for routes in (tts_routes, *(door.routes for door in http_doors), voice_routes):
        app.include_router(routes(api))
    described = description(app)
    app.openapi = lambda: described  # type: ignore[method-assign]
    page = docs_page(described, _SCHEMA_PATH)

    @app.get(_DOCS_PATH, include_in_schema=False)
    async def _docs() -> HTMLResponse:
        return HTMLResponse(page)

    paths = [*described["paths"], _DOCS_PATH, _SCHEMA_PATH]
    open_paths: frozenset[str] = frozenset()
    if server.settings.server.console:
        console = Console(api, tools or ConsoleTools())
        app.include_router(console.routes(), include_in_schema=False)
        paths.append(CONSOLE)
        open_paths = console.open_paths
    return Gate(app, server, refuse, open_paths), tuple({path.partition("{")[0].rstrip("/") for path in paths})
