"""Speech over HTTP as other vendors offer it beside their WebSockets: Deepgram, ElevenLabs and Cartesia.

Some clients use it for single texts, for example livekit's `synthesize()`. See docs/protocol/vendor-http.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.audio.containers import rates_of
from telephony_tts.doors.deepgram import codec as deepgram
from telephony_tts.doors.elevenlabs import codec as elevenlabs
from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import STATUS, Audio, BadRequest, HttpApi
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.vendor_leg import VENDORS, voice_for

DEEPGRAM = {
    "linear16": ("wav", 24_000), "mulaw": ("ulaw", 8_000), "alaw": ("alaw", 8_000), "mp3": ("mp3", 22_050),
    "opus": ("opus", 48_000), "flac": ("flac", 24_000), "aac": ("aac", 22_050),
}  # fmt: skip
"""Deepgram's encodings: our format and the vendor's default rate."""
_DEEPGRAM_CONTAINERS = {"linear16": ("wav", "none"), "opus": ("ogg",)}
_MIN_SPEED, _MAX_SPEED = 0.5, 2.0
_SAMPLES = {"pcm_s16le": "pcm", "pcm_f32le": "pcm", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}


class DeepgramText(BaseModel):
    """The body of Deepgram's `POST /v1/speak`."""

    text: str


class ElevenLabsSettings(BaseModel):
    """The part of `voice_settings` that is honoured."""

    speed: float | None = None


class ElevenLabsText(BaseModel):
    """The body of ElevenLabs' `POST /v1/text-to-speech/{voice}`."""

    text: str
    language_code: str | None = Field(default=None, max_length=35)
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1)
    voice_settings: ElevenLabsSettings | None = None


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

    speed: float | None = Field(default=None, ge=_MIN_SPEED, le=_MAX_SPEED)


class CartesiaText(BaseModel):
    """The body of Cartesia's `POST /tts/bytes`."""

    transcript: str
    voice: str | CartesiaVoice | None = None
    output_format: CartesiaFormat = CartesiaFormat(container="raw")
    language: str | None = Field(default=None, max_length=35)
    generation_config: CartesiaConfig | None = None


@dataclass(frozen=True, slots=True)
class VendorErrors:
    """The vendor's form of errors, for the paths that `path` matches."""

    path: re.Pattern[str]
    vendor: str

    def refusal(self, error: TelephonyTTSError) -> Response:
        status = STATUS.get(error.code, 500)
        code = {"unauthorized": "INVALID_AUTH", "busy": "BUSY"}.get(error.code, error.code)
        refused = _VENDORS[self.vendor].refuse(status, code, error.message)
        response = Response(refused.body, refused.status, dict(refused.headers), refused.content_type)
        if error.retry_after_ms is not None:
            response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
        return response


ERRORS = (
    VendorErrors(re.compile(r"/v1/speak"), "deepgram"),
    VendorErrors(re.compile(r"/v1/text-to-speech/.*"), "elevenlabs"),
    VendorErrors(re.compile(r"/tts/bytes"), "cartesia"),
)
_VENDORS = {vendor.name: vendor for vendor in VENDORS}


def refusal(path: str) -> Callable[[TelephonyTTSError], Response] | None:
    """What makes the responses to errors of a path, if it is one of these routes."""
    return next((each.refusal for each in ERRORS if each.path.fullmatch(path)), None)


def vendor_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["other vendors"])
    server = api.server

    def voice(name: str | None, vendor: str) -> str | None:
        return voice_for(name, _VENDORS[vendor], server.settings, api.catalog)

    @router.post("/v1/speak", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def deepgram_speak(
        body: DeepgramText,
        model: str | None = None,
        encoding: Annotated[str, Query(description=f"One of {', '.join(DEEPGRAM)}")] = "mp3",
        container: str | None = None,
        sample_rate: int | None = None,
        speed: float | None = None,
    ) -> Response:
        """Deepgram: a whole text."""
        if encoding not in DEEPGRAM:
            raise BadRequest(f"encoding: {encoding[:40]!r} is not one of {', '.join(DEEPGRAM)}")
        format, rate_hz = DEEPGRAM[encoding]
        containers = _DEEPGRAM_CONTAINERS.get(encoding, ("none",))
        if container is not None and container not in containers:
            raise BadRequest(f"container: {container[:40]!r}; with {encoding} expected {' or '.join(containers)}")
        if container == "none" and format == "wav":
            format = "pcm"
        rate_hz = rate_hz if sample_rate is None else _carried(sample_rate, format, "sample_rate")
        known = deepgram.OWN_VOICE.fullmatch(model or "")
        lang = known["lang"] if known is not None and known["lang"] != "en" else None  # as at the WebSocket
        speech = SpeechRequest(api.text(body.text), voice(model, "deepgram"), lang, _within(speed))
        return api.speak(speech, format, rate_hz)

    async def elevenlabs_speak(name: str, body: ElevenLabsText, output_format: str, language: str | None) -> Response:
        if output_format not in elevenlabs.FORMATS:
            raise BadRequest(f"output_format: {output_format[:40]!r} is not one of {', '.join(elevenlabs.FORMATS)}")
        container, codec, rate_hz = elevenlabs.FORMATS[output_format]
        speed = None if body.voice_settings is None else body.voice_settings.speed
        ours = voice(name, "elevenlabs")
        speech = SpeechRequest(api.text(body.text), ours, body.language_code or language, _within(speed), body.seed)
        return api.speak(speech, container or codec, rate_hz)

    @router.post("/v1/text-to-speech/{name}", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def elevenlabs_whole(
        name: str, body: ElevenLabsText, output_format: str = elevenlabs.DEFAULT_FORMAT,
        language_code: str | None = None,
    ) -> Response:  # fmt: skip
        """ElevenLabs: a whole text. It is streamed, as at `/stream`."""
        return await elevenlabs_speak(name, body, output_format, language_code)

    @router.post("/v1/text-to-speech/{name}/stream", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def elevenlabs_stream(
        name: str, body: ElevenLabsText, output_format: str = elevenlabs.DEFAULT_FORMAT,
        language_code: str | None = None,
    ) -> Response:  # fmt: skip
        """ElevenLabs: a whole text, as a stream."""
        return await elevenlabs_speak(name, body, output_format, language_code)

    @router.post("/tts/bytes", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def cartesia_bytes(body: CartesiaText) -> Response:
        """Cartesia: a whole text."""
        wanted = body.output_format
        format = _SAMPLES[wanted.encoding] if wanted.container == "raw" else wanted.container
        if wanted.container == "wav" and wanted.encoding != "pcm_s16le":
            raise BadRequest("output_format.encoding: a wav is pcm_s16le; others go with the container raw")
        rate_hz = _carried(wanted.sample_rate, format, "output_format.sample_rate")
        name = body.voice if isinstance(body.voice, str | None) else body.voice.id
        lang = None if body.language is None else re.split("[-_]", body.language)[0].lower()
        speed = None if body.generation_config is None else body.generation_config.speed
        speech = SpeechRequest(api.text(body.transcript), voice(name, "cartesia"), lang, speed)
        is_float = wanted.container == "raw" and wanted.encoding == "pcm_f32le"
        return api.speak(speech, format, rate_hz, wrap=_as_floats if is_float else None)

    return router


def _carried(rate_hz: int, format: str, name: str) -> int:
    """A rate that the client asked for. Raises BadRequest if the format does not have it."""
    if rate_hz not in rates_of(format):
        raise BadRequest(f"{name}: {rate_hz}; expected one of {', '.join(map(str, rates_of(format)))}")
    return rate_hz


def _within(speed: float | None) -> float | None:
    return None if speed is None else min(_MAX_SPEED, max(_MIN_SPEED, speed))


async def _as_floats(audio: Audio) -> Audio:
    """16-bit samples as 32-bit floats."""
    async for piece in audio:
        yield (np.frombuffer(piece, "<i2") / np.float32(32_768)).astype("<f4").tobytes()
