"""OpenAI's speech routes, so that its clients need only another base URL (docs/protocol/openai.md)."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from telephony_tts.http_api.api_schema import AUDIO, JOINS_CALL
from telephony_tts.http_api.responses import STATUS, Audio, HttpApi, refused, within_speeds
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.runtime.errors import TelephonyTTSError

VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)  # fmt: skip
"""The vendor's voices. Each is the default voice unless `vendors.voice_names` maps it."""
MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
RATE_HZ = 24_000
"""The rate of the vendor's pcm, which clients assume."""
CONTENT_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
                 "pcm": "audio/pcm"}  # fmt: skip
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "server_error"}


class VoiceId(BaseModel):
    """A voice named by an object."""

    id: str


class OpenAISpeech(BaseModel):
    """The body of `POST /v1/audio/speech`."""

    input: str
    model: str = MODELS[0]
    voice: str | VoiceId = "default"
    instructions: str | None = Field(default=None, max_length=4096)
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"


def openai_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/audio/speech", response_class=Response, responses=AUDIO, openapi_extra=JOINS_CALL)
    async def create_speech(wanted: OpenAISpeech) -> Response:
        """Speak a text. A speed beyond 0.5 and 2 is brought to that limit, which is what the engines can do."""
        voice = api.voice(wanted.voice if isinstance(wanted.voice, str) else wanted.voice.id, VOICES)
        speed = within_speeds(wanted.speed)
        instruct = (wanted.instructions or "")[:1000] or None
        speech = SpeechRequest(api.text(wanted.input), voice, None, speed, None, instruct)
        if wanted.stream_format == "sse":
            wrap = _events(len(wanted.input))
            return api.speak(speech, wanted.response_format, RATE_HZ, "text/event-stream", wrap)
        content_type = CONTENT_TYPES[wanted.response_format]
        return api.speak(speech, wanted.response_format, RATE_HZ, content_type)

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The engines, and the vendor's names of models, which are all accepted."""
        return {"object": "list", "data": [_model(name) for name in names()]}

    @router.get("/v1/models/{model}")
    async def retrieve_model(model: str) -> dict[str, Any]:
        """One model."""
        if model not in names():
            raise TelephonyTTSError(f"there is no model {model}", code="model_not_found")
        return _model(model)

    @router.get("/v1/audio/voices")
    async def list_voices() -> dict[str, Any]:
        """The names that `voice` may have."""
        ours = [voice.name for voice in api.list_voices()]
        known = dict.fromkeys([*ours, *api.settings.voice_names, *VOICES])
        return {"voices": [{"id": name, "name": name} for name in known]}

    def names() -> list[str]:
        return [*(engine.name for engine in api.server.catalog.engines), *MODELS]

    return router


def owns(path: str) -> bool:
    """Whether errors of this path have the vendor's form."""
    return path.startswith(("/v1/audio", "/v1/models"))


def refusal(error: TelephonyTTSError) -> Response:
    """The vendor's form of an error."""
    status = STATUS.get(error.code, 500)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return refused(error, {"message": error.message, "type": kind, "param": None, "code": error.code})


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "telephony-tts"}


def _events(n_chars: int) -> Any:
    """Wraps audio into the vendor's server-sent events."""

    async def wrap(audio: Audio) -> Audio:
        n_bytes = 0
        async for piece in audio:
            n_bytes += len(piece)
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
        # The vendor counts tokens. We have none, so these are characters and bytes.
        usage = {"input_tokens": n_chars, "output_tokens": n_bytes, "total_tokens": n_chars + n_bytes}
        yield _event({"type": "speech.audio.done", "usage": usage})

    return wrap


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
