"""ElevenLabs' `POST /v1/text-to-speech/{voice}` (docs/protocol/vendor-http.md), which clients use for single texts."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.doors.elevenlabs.codec import DEFAULT_FORMAT, FORMATS
from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import BadRequest, HttpApi, within_speeds
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.transport.door import Vendor


class ElevenLabsSettings(BaseModel):
    """The part of `voice_settings` that is honoured."""

    speed: float | None = None


class ElevenLabsText(BaseModel):
    """The body of ElevenLabs' `POST /v1/text-to-speech/{voice}`."""

    text: str
    language_code: str | None = Field(default=None, max_length=35)
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1)
    voice_settings: ElevenLabsSettings | None = None


def elevenlabs_routes(api: HttpApi, vendor: Vendor) -> APIRouter:
    router = APIRouter(tags=["other vendors"])

    async def elevenlabs_speak(name: str, body: ElevenLabsText, output_format: str, language: str | None) -> Response:
        if output_format not in FORMATS:
            raise BadRequest(f"output_format: {output_format[:40]!r} is not one of {', '.join(FORMATS)}")
        container, codec, rate_hz = FORMATS[output_format]
        speed = None if body.voice_settings is None else body.voice_settings.speed
        ours = api.vendor_voice(name, vendor)
        lang = body.language_code or language
        speech = SpeechRequest(api.text(body.text), ours, lang, within_speeds(speed), body.seed)
        return api.speak(speech, container or codec, rate_hz)

    @router.post("/v1/text-to-speech/{name}", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def elevenlabs_whole(
        name: str, body: ElevenLabsText, output_format: str = DEFAULT_FORMAT,
        language_code: str | None = None,
    ) -> Response:  # fmt: skip
        """ElevenLabs: a whole text. It is streamed, as at `/stream`."""
        return await elevenlabs_speak(name, body, output_format, language_code)

    @router.post("/v1/text-to-speech/{name}/stream", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def elevenlabs_stream(
        name: str, body: ElevenLabsText, output_format: str = DEFAULT_FORMAT,
        language_code: str | None = None,
    ) -> Response:  # fmt: skip
        """ElevenLabs: a whole text, as a stream."""
        return await elevenlabs_speak(name, body, output_format, language_code)

    return router
