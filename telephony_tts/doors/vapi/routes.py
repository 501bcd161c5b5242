"""Vapi's requests for a custom voice (docs/protocol/custom-voices.md)."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.audio.containers import rates_of
from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.speech_request import SpeechRequest


class VoiceRequest(BaseModel):
    """The part of Vapi's message that matters here."""

    type: str
    text: str
    sampleRate: int = Field(default=24_000)
    voiceId: str | None = None


class VapiMessage(BaseModel):
    """Vapi's request for a custom voice."""

    message: VoiceRequest


def vapi_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["custom voices"])

    @router.post("/vapi/voice", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def vapi_voice(wanted: VapiMessage) -> Response:
        """Vapi: raw 16-bit PCM at the rate that the request names."""
        message = wanted.message
        if message.type != "voice-request":
            raise BadRequest(f'message.type is {message.type[:40]!r}; expected "voice-request"')
        if message.sampleRate not in rates_of("pcm"):
            raise BadRequest(f"message.sampleRate must be one of {', '.join(map(str, rates_of('pcm')))}")
        speech = SpeechRequest(api.text(message.text), api.voice(message.voiceId))
        return api.speak(speech, "pcm", message.sampleRate, "audio/raw")

    return router
