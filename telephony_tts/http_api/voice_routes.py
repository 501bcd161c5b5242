"""The routes of voices: `/v1/voices` lists, adds and removes them (docs/http-voices.md)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import date
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
from telephony_tts.keys.key import Key

_log = logs.get(__name__)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
_MAX_FIELDS = 8
_CONSENT = ("consent_by", "consent_on", "consent_for")
_MAX_CONSENT_CHARS = 500
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
                        "consent_by": {"type": "string", "description": "whose voice it is; a named key must say it"},
                        "consent_on": {"type": "string", "description": "the day of that person's consent: 2026-01-31"},
                        "consent_for": {"type": "string", "description": "what that person has consented to"},
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
    consent: Mapping[str, str]


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
            **api.record_of(voice),
        }

    def added(made: NewVoice) -> dict[str, Any]:
        return {**listed(made.voice), "kept_s": made.kept_s, "source_s": made.source_s, "warnings": made.warnings}

    @router.get("/v1/voices")
    async def list_voices() -> Response:
        """The voices that the request's key may use, the default engine's first."""
        return JSONResponse({"voices": [listed(voice) for voice in api.list_voices()]})

    @router.post("/v1/voices", status_code=201, openapi_extra=_FORM)
    async def add_voice(request: Request) -> Response:
        """Make a voice from a recording. With `Accept: text/event-stream` each step is an event."""
        voices, key = api.voices, api.key
        form = await _form(request)
        record = _record(form, key)
        api.check_owner(form.name)
        # What is not there now, and belongs to another key by the time that this voice is made, must not be replaced.
        replace = form.replace and (not key.name or api.is_stored(form.name))
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        adding = asyncio.ensure_future(
            voices.add(form.name, form.audio, form.text, replace=replace, tell=steps.put_nowait, record=record)
        )
        adding.add_done_callback(lambda _: steps.put_nowait(None))

        def finished() -> NewVoice:
            made = adding.result()
            _log.info("voice_added", voice=form.name, replace=form.replace, kept_s=made.kept_s, key=key.name or None)
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
        voices, key = api.voices, api.key
        api.check_owner(name)
        await voices.remove(name)
        _log.info("voice_removed", voice=name, key=key.name or None)
        return Response(status_code=204)

    return router


def _record(form: VoiceForm, key: Key) -> dict[str, str]:
    """Whose voice it will be, and the consent to it. Raises BadRequest: a voice of a named key needs the consent."""
    record = {name: value for name, value in form.consent.items() if value}
    missing = [name for name in _CONSENT if name not in record]
    if missing and (key.name or record):
        what = "say whose voice it is, and when and to what that person consented"
        raise BadRequest(f"{', '.join(missing)}: missing; {what}")
    if any(len(value) > _MAX_CONSENT_CHARS for value in record.values()):
        raise BadRequest(f"consent_by and consent_for: at most {_MAX_CONSENT_CHARS} characters each")
    if record:
        try:
            date.fromisoformat(record["consent_on"])
        except ValueError as error:
            raise BadRequest("consent_on: expected a day such as 2026-01-31") from error
    return {**record, "owner": key.name} if key.name else record


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
            consent = {field: texts.get(field, "").strip() for field in _CONSENT}
            return VoiceForm(name, await audio.read(), texts.get("text", ""), replace in _TRUE, consent)
    except HTTPException as error:
        raise BadRequest(f"the form cannot be read: {error.detail}") from error
    except ClientDisconnect as error:
        raise BadRequest("the body of the request is not complete") from error


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
