"""The routes of upstream CosyVoice's own FastAPI server, so that its client works here (docs/protocol/cosyvoice.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from telephony_tts.http_api.api_schema import AUDIO, form
from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.speech_request import SpeechRequest
from telephony_tts.http_api.tts_routes import read_body

_RATE_HZ = 24_000
"""What CosyVoice2 speaks. Upstream sends its model's rate without naming it."""

_RECORDING = "prompt_wav"
_MEANINGS = {
    "tts_text": "what is spoken",
    "spk_id": "a voice, or `default`",
    "prompt_text": "the words of the recording",
    "instruct_text": "how to speak",
    _RECORDING: "3 to 30 s of speech: the voice is that of this recording",
}
ROUTES = {
    "/inference_sft": (("tts_text", "spk_id"), "A stored voice."),
    "/inference_zero_shot": (("tts_text", "prompt_text", _RECORDING), "The voice of a recording."),
    "/inference_cross_lingual": (("tts_text", _RECORDING), "The voice of a recording, without its words."),
    "/inference_instruct": (("tts_text", "spk_id", "instruct_text"), "A stored voice with an instruction."),
    "/inference_instruct2": (
        ("tts_text", "instruct_text", _RECORDING), "The voice of a recording with an instruction.",
    ),
}  # fmt: skip
"""The fields of each path, all of which must be there, and what it does."""


def cosyvoice_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["CosyVoice"])

    async def speak(request: Request, fields: tuple[str, ...]) -> Response:
        values, recording = await read_body(request, _RECORDING)
        missing = [name for name in fields if name != _RECORDING and not values.get(name)]
        if _RECORDING in fields and recording is None:
            missing.append(_RECORDING)
        if missing:
            raise BadRequest(f"missing form fields: {', '.join(missing)}")
        given = {name: values.get(name) for name in fields}
        voice = api.voice(given.get("spk_id"))
        text = api.text(values["tts_text"])
        if _RECORDING in fields:
            assert recording is not None
            voice = await api.prompt(recording, given.get("prompt_text") or "")
        speech = SpeechRequest(text, voice, instruct=given.get("instruct_text"))
        return api.speak(speech, "pcm", _RATE_HZ, "application/octet-stream")

    def route(fields: tuple[str, ...]) -> Callable[[Request], Awaitable[Response]]:
        async def speak_form(request: Request) -> Response:
            return await speak(request, fields)

        return speak_form

    for path, (fields, summary) in ROUTES.items():
        texts = {name: _MEANINGS[name] for name in fields if name != _RECORDING}
        files = {name: _MEANINGS[name] for name in fields if name == _RECORDING}
        router.add_api_route(
            path, route(fields), methods=["POST"], response_class=Response, responses=AUDIO, name=path[1:],
            summary=summary, openapi_extra=form(texts, files),
        )  # fmt: skip
        # Upstream's own client sends GET with a form as its body, which OpenAPI cannot describe.
        router.add_api_route(path, route(fields), methods=["GET"], response_class=Response, include_in_schema=False)
    return router
