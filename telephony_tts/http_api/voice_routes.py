"""The routes of voices: `/v1/voices` lists, adds and removes them (docs/http-voices.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from telephony_tts import logs
from telephony_tts.engines.api import Voice
from telephony_tts.errors import TelephonyTTSError
from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.voices import NewVoice

_log = logs.get(__name__)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
_MAX_FIELDS = 8
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "audio"],
                    "properties": {
                        "name": {"type": "string", "description": "letters, digits, '-', '_' and '.', up to 64"},
                        "audio": {
                            "type": "string",
                            "format": "binary",
                            "description": "3 to 30 s of speech: WAV, FLAC, OGG or MP3",
                        },
                        "text": {"type": "string", "description": "exactly the words of the recording"},
                        "replace": {"type": "boolean", "description": "replace a voice of this name"},
                    },
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class VoiceForm:
    """What a client sends to add a voice."""

    name: str
    audio: bytes
    text: str
    replace: bool


def voice_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["voices"])

    def listed(voice: Voice) -> dict[str, Any]:
        return {
            "name": voice.name,
            "engine": voice.engine,
            "languages": voice.languages,
            "description": voice.description,
            "sample_rate_hz": voice.sample_rate_hz,
            "removable": api.is_removable(voice),
        }

    def added(made: NewVoice) -> dict[str, Any]:
        return {**listed(made.voice), "kept_s": made.kept_s, "source_s": made.source_s, "warnings": made.warnings}

    @router.get("/v1/voices")
    async def list_voices() -> Response:
        """The voices of all engines, the default engine's first."""
        voices = [voice for engine in api.server.catalog.engines for voice in engine.voices]
        return JSONResponse({"voices": [listed(voice) for voice in voices]})

    @router.post("/v1/voices", status_code=201, openapi_extra=_FORM)
    async def add_voice(request: Request) -> Response:
        """Make a voice from a recording. With `Accept: text/event-stream` each step is an event."""
        voices = api.voices
        form = await _form(request)
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        adding = asyncio.ensure_future(
            voices.add(form.name, form.audio, form.text, replace=form.replace, tell=steps.put_nowait)
        )
        adding.add_done_callback(lambda _: steps.put_nowait(None))

        def finished() -> NewVoice:
            made = adding.result()
            _log.info("voice_added", voice=form.name, replace=form.replace, kept_s=made.kept_s)
            return made

        try:
            first = await steps.get()
            if first is None or not _wants_events(request):
                await asyncio.wait((adding,))
                return JSONResponse(added(finished()), 201)
        except TelephonyTTSError as error:
            _log.info("voice_refused", voice=form.name, code=error.code, why=error.message)
            raise

        async def events() -> AsyncGenerator[bytes, None]:
            step: str | None = first
            while step is not None:
                yield _event("progress", {"step": step})
                step = await steps.get()
            try:
                yield _event("done", added(finished()))
            except TelephonyTTSError as error:
                _log.info("voice_refused", voice=form.name, code=error.code, why=error.message)
                yield _event("error", {"code": error.code, "message": error.message})

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    @router.delete("/v1/voices/{name}", status_code=204)
    async def remove_voice(name: str) -> Response:
        """Remove a voice that was added. What speaks with it speaks on."""
        await api.voices.remove(name)
        _log.info("voice_removed", voice=name)
        return Response(status_code=204)

    return router


async def _form(request: Request) -> VoiceForm:
    """Raises BadRequest."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise BadRequest("send multipart/form-data with the fields name, audio and text")
    try:
        async with request.form(max_files=1, max_fields=_MAX_FIELDS) as form:
            audio = form.get("audio")
            if not isinstance(audio, UploadFile):
                raise BadRequest("audio: missing; send the recording as a file")
            texts = {key: value for key, value in form.items() if isinstance(value, str)}
            name = texts.get("name", "")
            if not name:
                raise BadRequest("name: missing; send the name of the voice")
            replace = texts.get("replace", "").lower()
            if replace not in (*_TRUE, *_FALSE):
                raise BadRequest("replace: expected true or false")
            return VoiceForm(name, await audio.read(), texts.get("text", ""), replace in _TRUE)
    except HTTPException as error:
        raise BadRequest(f"the form cannot be read: {error.detail}") from error
    except ClientDisconnect as error:
        raise BadRequest("the body of the request is not complete") from error


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
