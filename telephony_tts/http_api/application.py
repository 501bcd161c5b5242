"""The HTTP API: speech as a response, for clients without a call (docs/protocol/http.md)."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from telephony_tts.errors import TelephonyTTSError
from telephony_tts.http_api import openai_routes
from telephony_tts.http_api.body_limits import BodyLimits
from telephony_tts.http_api.cosyvoice_routes import cosyvoice_routes
from telephony_tts.http_api.custom_voice_routes import custom_voice_routes
from telephony_tts.http_api.responses import BadRequest, HttpApi, refusal
from telephony_tts.http_api.tts_routes import tts_routes
from telephony_tts.http_api.voice_routes import voice_routes
from telephony_tts.http_api.voices import Voices
from telephony_tts.transport.server import Server


def application(server: Server, voices: Voices | None = None) -> FastAPI:
    """The FastAPI application of `server`."""
    app = FastAPI(title="Telephony TTS", version=version("telephony-tts"), docs_url="/docs", redoc_url=None)
    app.add_middleware(BodyLimits, max_bytes=server.settings.vendors.request_bytes)
    api = HttpApi(server, voices)

    @app.exception_handler(TelephonyTTSError)
    async def _failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, TelephonyTTSError)
        return openai_routes.refusal(error) if openai_routes.owns(request.url.path) else refusal(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = ("{}: {}".format(".".join(map(str, each["loc"][1:])), each["msg"]) for each in error.errors())
        return await _failed(request, BadRequest("; ".join(problems)[:500]))

    for routes in (tts_routes, openai_routes.openai_routes, cosyvoice_routes, custom_voice_routes, voice_routes):
        app.include_router(routes(api), dependencies=[Depends(api.authorise)])
    return app
