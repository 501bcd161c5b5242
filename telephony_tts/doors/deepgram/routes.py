"""Deepgram's `POST /v1/speak` (docs/protocol/vendor-http.md). Some clients use it for single texts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel

from telephony_tts.doors.deepgram.codec import OWN_VOICE
from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import BadRequest, HttpApi, carried_rate, within_speeds
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.transport.door import Vendor

ENCODINGS = {
    "linear16": ("wav", 24_000), "mulaw": ("ulaw", 8_000), "alaw": ("alaw", 8_000), "mp3": ("mp3", 22_050),
    "opus": ("opus", 48_000), "flac": ("flac", 24_000), "aac": ("aac", 22_050),
}  # fmt: skip
"""Deepgram's encodings: our format and the vendor's default rate."""
_CONTAINERS = {"linear16": ("wav", "none"), "opus": ("ogg",)}


class DeepgramText(BaseModel):
    """The body of Deepgram's `POST /v1/speak`."""

    text: str


def deepgram_routes(api: HttpApi, vendor: Vendor) -> APIRouter:
    router = APIRouter(tags=["other vendors"])

    @router.post("/v1/speak", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def deepgram_speak(
        body: DeepgramText,
        model: str | None = None,
        encoding: Annotated[str, Query(description=f"One of {', '.join(ENCODINGS)}")] = "mp3",
        container: str | None = None,
        sample_rate: int | None = None,
        speed: float | None = None,
    ) -> Response:
        """Deepgram: a whole text."""
        if encoding not in ENCODINGS:
            raise BadRequest(f"encoding: {encoding[:40]!r} is not one of {', '.join(ENCODINGS)}")
        format, rate_hz = ENCODINGS[encoding]
        containers = _CONTAINERS.get(encoding, ("none",))
        if container is not None and container not in containers:
            raise BadRequest(f"container: {container[:40]!r}; with {encoding} expected {' or '.join(containers)}")
        if container == "none" and format == "wav":
            format = "pcm"
        rate_hz = rate_hz if sample_rate is None else carried_rate(sample_rate, format, "sample_rate")
        known = OWN_VOICE.fullmatch(model or "")
        lang = known["lang"] if known is not None and known["lang"] != "en" else None  # as at the WebSocket
        speech = SpeechRequest(api.text(body.text), api.vendor_voice(model, vendor), lang, within_speeds(speed))
        return api.speak(speech, format, rate_hz)

    return router
