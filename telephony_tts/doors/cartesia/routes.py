"""Cartesia's `POST /tts/bytes` (docs/protocol/vendor-http.md). Some clients use it for single texts."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import MAX_SPEED, MIN_SPEED, Audio, BadRequest, HttpApi, carried_rate
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.transport.door import Vendor

_SAMPLES = {"pcm_s16le": "pcm", "pcm_f32le": "pcm", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}


class CartesiaVoice(BaseModel):
    """A voice by its id. One that is given by its numbers is the default voice."""

    mode: Literal["id", "embedding"] = "id"
    id: str = ""


class CartesiaFormat(BaseModel):
    """Cartesia's `output_format`. An mp3 has no `encoding`."""

    container: Literal["raw", "wav", "mp3"]
    encoding: Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"] = "pcm_s16le"
    sample_rate: int = 24_000


class CartesiaConfig(BaseModel):
    """The part of `generation_config` that is honoured."""

    speed: float | None = Field(default=None, ge=MIN_SPEED, le=MAX_SPEED)


class CartesiaText(BaseModel):
    """The body of Cartesia's `POST /tts/bytes`."""

    transcript: str
    voice: str | CartesiaVoice | None = None
    output_format: CartesiaFormat = CartesiaFormat(container="raw")
    language: str | None = Field(default=None, max_length=35)
    generation_config: CartesiaConfig | None = None


def cartesia_routes(api: HttpApi, vendor: Vendor) -> APIRouter:
    router = APIRouter(tags=["other vendors"])

    @router.post("/tts/bytes", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def cartesia_bytes(body: CartesiaText) -> Response:
        """Cartesia: a whole text."""
        wanted = body.output_format
        format = _SAMPLES[wanted.encoding] if wanted.container == "raw" else wanted.container
        if wanted.container == "wav" and wanted.encoding != "pcm_s16le":
            raise BadRequest("output_format.encoding: a wav is pcm_s16le; others go with the container raw")
        rate_hz = carried_rate(wanted.sample_rate, format, "output_format.sample_rate")
        name = body.voice if isinstance(body.voice, str | None) else body.voice.id
        lang = None if body.language is None else re.split("[-_]", body.language)[0].lower()
        speed = None if body.generation_config is None else body.generation_config.speed
        speech = SpeechRequest(api.text(body.transcript), api.vendor_voice(name, vendor), lang, speed)
        is_float = wanted.container == "raw" and wanted.encoding == "pcm_f32le"
        return api.speak(speech, format, rate_hz, wrap=_as_floats if is_float else None)

    return router


async def _as_floats(audio: Audio) -> Audio:
    """16-bit samples as 32-bit floats."""
    async for piece in audio:
        yield (np.frombuffer(piece, "<i2") / np.float32(32_768)).astype("<f4").tobytes()
