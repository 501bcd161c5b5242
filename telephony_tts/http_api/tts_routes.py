"""Our own route `/tts/stream`: a text in, a stream of audio out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import UploadFile

from telephony_tts.http_api.api_schema import AUDIO, body_of_model, query_of_model
from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.speech_request import SpeechRequest


class TtsRequest(BaseModel):
    """A text and how to speak it. `prompt_text` is the transcript of the form's file `prompt_audio`."""

    text: str
    voice: str | None = None
    lang: str | None = Field(default=None, max_length=35)
    speed: float | None = Field(default=None, ge=0.5, le=2.0)
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1)
    instruct: str | None = Field(default=None, max_length=1000)
    format: str = "wav"
    sample_rate: int = Field(default=24_000, ge=8_000, le=48_000)
    prompt_text: str = ""


def tts_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["speech"])

    @router.get("/tts/stream", response_class=Response, responses=AUDIO, openapi_extra=query_of_model(TtsRequest))
    async def tts_stream_get(request: Request) -> Response:
        """Speak a text. The options are in the query, as in the POST request's body."""
        return await speak(dict(request.query_params), None)

    body = body_of_model(TtsRequest, prompt_audio="3 to 30 s of speech: the voice is that of this recording")

    @router.post("/tts/stream", response_class=Response, responses=AUDIO, openapi_extra=body)
    async def tts_stream_post(request: Request) -> Response:
        """Speak a text, as JSON or a form. The response begins with the first audio."""
        values, recording = await read_body(request)
        return await speak(values, recording)

    async def speak(values: dict[str, Any], recording: bytes | None) -> Response:
        try:
            wanted = TtsRequest.model_validate({name: value for name, value in values.items() if value != ""})
        except ValidationError as error:
            problems = ("{}: {}".format(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors())
            raise BadRequest("; ".join(problems)[:500]) from error
        voice = api.voice(wanted.voice)
        text = api.text(wanted.text)
        if recording is not None:
            voice = await api.prompt(recording, wanted.prompt_text)
        speech = SpeechRequest(text, voice, wanted.lang, wanted.speed, wanted.seed, wanted.instruct)
        return api.speak(speech, wanted.format, wanted.sample_rate)

    return router


async def read_body(request: Request, file: str = "prompt_audio") -> tuple[dict[str, Any], bytes | None]:
    """The values of a JSON or form body, and the uploaded `file` of a form. Raises BadRequest."""
    if request.headers.get("content-type", "").strip().lower().startswith("application/json"):
        try:
            values = await request.json()
        except (ValueError, RecursionError) as error:
            raise BadRequest("the body is not JSON") from error
        if not isinstance(values, dict):
            raise BadRequest("the body is not a JSON object")
        return values, None
    form = await request.form()
    try:
        upload = form.get(file)
        recording = await upload.read() if isinstance(upload, UploadFile) else None
        return {name: value for name, value in form.items() if isinstance(value, str)}, recording
    finally:
        await form.close()
