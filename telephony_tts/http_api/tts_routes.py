"""Our own HTTP routes: `/tts/stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.http_api.speech import SpeechRequest

if TYPE_CHECKING:
    from telephony_tts.http_api.application import HttpApi


class TtsRequest(BaseModel):
    """A text and how to speak it."""

    text: str = Field(min_length=1)
    voice: str | None = None
    lang: str | None = None
    speed: float | None = Field(default=None, ge=0.5, le=2.0)
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1)
    instruct: str | None = Field(default=None, max_length=1000)
    format: str = "wav"
    sample_rate: int = 24_000


def tts_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["speech"])

    @router.post("/tts/stream")
    async def tts_stream(request: Request, wanted: TtsRequest) -> Response:
        """Speak a text. The response begins with the first audio."""
        speech = SpeechRequest(
            wanted.text, wanted.voice, wanted.lang, wanted.speed, wanted.seed, wanted.instruct,
            rate_hz=wanted.sample_rate,
        )
        return await api.speak(request, speech, "audio/pcm")

    return router
