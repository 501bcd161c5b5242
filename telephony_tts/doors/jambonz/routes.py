"""jambonz's requests to a custom speech vendor by HTTP (docs/protocol/custom-voices.md)."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import HttpApi
from telephony_tts.http_api.speech_request import SpeechRequest


class JambonzTts(BaseModel):
    """jambonz's request to a custom speech vendor."""

    text: str
    language: str | None = Field(default=None, max_length=35)
    voice: str | None = None
    type: Literal["text", "ssml"] = "text"


def jambonz_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["custom voices"])

    @router.post("/jambonz/tts", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def jambonz_tts(wanted: JambonzTts) -> Response:
        """jambonz: 16-bit PCM at 8 kHz, the rate of its calls. A text that begins with <speak> is SSML."""
        speech = SpeechRequest(api.text(wanted.text), api.voice(wanted.voice), wanted.language)
        return api.speak(speech, "pcm", 8_000, "audio/l16;rate=8000")

    return router
