"""The routes of voices: `/v1/voices` checks recordings, and lists, adds and removes voices (docs/http-voices.md)."""

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

from telephony_tts.engines.api import Voice
from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.voices import NewVoice
from telephony_tts.ops.keys.key import Key
from telephony_tts.runtime import logs
from telephony_tts.runtime.errors import TelephonyTTSError

_log = logs.get(__name__)
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
_MAX_FIELDS = 8
_CONSENT = ("consent_by", "consent_on", "consent_for")
_MAX_CONSENT_CHARS = 500


def _form_of(required: list[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """A form in the description of the API."""
    schema = {"type": "object", "required": required, "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_AUDIO = {"type": "string", "format": "binary", "description": "3 to 30 s of speech: WAV, FLAC, OGG or MP3"}
_FORM = _form_of(
    ["name", "audio"],
    {
        "name": {"type": "string", "description": "letters, digits, '-', '_' and '.', up to 64"},
        "audio": _AUDIO,
        "text": {"type": "string", "description": "exactly the words of the recording"},
        "replace": {"type": "boolean", "description": "replace a voice of this name"},
        "denoise": {"type": "boolean", "description": "reduce the noise of the recording first"},
        "consent_by": {"type": "string", "description": "whose voice it is; a named key must say it"},
        "consent_on": {"type": "string", "description": "the day of that person's consent: 2026-01-31"},
        "consent_for": {"type": "string", "description": "what that person has consented to"},
    },
)
_CHECK_FORM = _form_of(
    ["audio"],
    {"audio": _AUDIO, "denoise": {"type": "boolean", "description": "also check a version with less noise"}},
)
_DENOISE_FORM = _form_of(["audio"], {"audio": _AUDIO})
_WAV: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The recording with less noise.",
        "content": {"audio/wav": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@dataclass(frozen=True, slots=True)
class VoiceForm:
    """What a client sends to add a voice."""

    name: str
    audio: bytes
    text: str
    replace: bool
    denoise: bool
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
        form = await _voice_form(request)
        record = _record(form, key)
        api.check_owner(form.name)
        # What is not there now, and belongs to another key by the time that this voice is made, must not be replaced.
        replace = form.replace and (not key.name or api.is_stored(form.name))
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        adding = asyncio.ensure_future(
            voices.add(
                form.name, form.audio, form.text, replace=replace, denoise=form.denoise, tell=steps.put_nowait,
                record=record,
            )
        )  # fmt: skip
        adding.add_done_callback(lambda _: steps.put_nowait(None))

        def finished() -> NewVoice:
            made = adding.result()
            _log.info(
                "voice_added", voice=form.name, replace=form.replace, denoise=form.denoise, kept_s=made.kept_s,
                key=key.name or None,
            )  # fmt: skip
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

    @router.post("/v1/voices/check", openapi_extra=_CHECK_FORM)
    async def check_recording(request: Request) -> Response:
        """What is found in a recording before a voice is made of it, and in a version with less noise."""
        voices = api.voices
        audio, texts = await _form(request)
        found = await voices.check(audio, denoise=_flag(texts, "denoise"))
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    @router.post("/v1/voices/denoise", response_class=Response, responses=_WAV, openapi_extra=_DENOISE_FORM)
    async def reduce_noise(request: Request) -> Response:
        """The recording with less noise, as a WAV file: what a voice is made of with `denoise`."""
        voices = api.voices
        audio, _ = await _form(request)
        wav = await voices.denoised(audio)
        return Response(wav, media_type="audio/wav", headers={"Cache-Control": "no-store"})

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


async def _voice_form(request: Request) -> VoiceForm:
    """Raises BadRequest."""
    audio, texts = await _form(request)
    name = texts.get("name", "")
    if not name:
        raise BadRequest("name: missing; send the name of the voice")
    consent = {field: texts.get(field, "").strip() for field in _CONSENT}
    flags = _flag(texts, "replace"), _flag(texts, "denoise")
    return VoiceForm(name, audio, texts.get("text", ""), *flags, consent)


async def _form(request: Request) -> tuple[bytes, Mapping[str, str]]:
    """The file `audio` of the request's form, and the other fields. Raises BadRequest."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise BadRequest("send multipart/form-data with the recording as the file audio")
    try:
        async with request.form(max_files=1, max_fields=_MAX_FIELDS) as form:
            audio = form.get("audio")
            if not isinstance(audio, UploadFile):
                raise BadRequest("audio: missing; send the recording as a file")
            texts = {key: value for key, value in form.items() if isinstance(value, str)}
            return await audio.read(), texts
    except HTTPException as error:
        raise BadRequest(f"the form cannot be read: {error.detail}") from error
    except ClientDisconnect as error:
        raise BadRequest("the body of the request is not complete") from error


def _flag(texts: Mapping[str, str], name: str) -> bool:
    """Raises BadRequest."""
    given = texts.get(name, "").lower()
    if given not in (*_TRUE, *_FALSE):
        raise BadRequest(f"{name}: expected true or false")
    return given in _TRUE


def _wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
