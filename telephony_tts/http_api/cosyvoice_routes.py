"""The routes of upstream CosyVoice's own FastAPI server, so that its client works here (docs/protocol/cosyvoice.md)."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from telephony_tts.http_api.responses import BadRequest, HttpApi
from telephony_tts.http_api.speech import SpeechRequest
from telephony_tts.http_api.tts_routes import read_body

_RATE_HZ = 24_000
"""What CosyVoice2 speaks. Upstream sends its model's rate without naming it."""


def cosyvoice_routes(api: HttpApi) -> APIRouter:
    router = APIRouter(tags=["CosyVoice"])  # upstream's own client sends GET with a body

    async def speak(request: Request, *fields: str, recording: bool = False) -> Response:
        values, audio = await read_body(request, "prompt_wav")
        missing = [name for name in ("tts_text", *fields) if not values.get(name)]
        if recording and audio is None:
            missing.append("prompt_wav")
        if missing:
            raise BadRequest(f"missing form fields: {', '.join(missing)}")
        voice = api.voice(values.get("spk_id")) if "spk_id" in fields else None
        text = api.text(values["tts_text"])
        if recording:
            assert audio is not None
            voice = await api.prompt(audio, values.get("prompt_text", "") if "prompt_text" in fields else "")
        speech = SpeechRequest(text, voice, instruct=values.get("instruct_text") if "instruct_text" in fields else None)
        return api.speak(speech, "pcm", _RATE_HZ, "application/octet-stream")

    @router.get("/inference_sft", response_class=Response, include_in_schema=False)
    @router.post("/inference_sft", response_class=Response)
    async def inference_sft(request: Request) -> Response:
        """A stored voice: `tts_text`, `spk_id`."""
        return await speak(request, "spk_id")

    @router.get("/inference_zero_shot", response_class=Response, include_in_schema=False)
    @router.post("/inference_zero_shot", response_class=Response)
    async def inference_zero_shot(request: Request) -> Response:
        """The voice of a recording: `tts_text`, `prompt_text`, `prompt_wav`."""
        return await speak(request, "prompt_text", recording=True)

    @router.get("/inference_cross_lingual", response_class=Response, include_in_schema=False)
    @router.post("/inference_cross_lingual", response_class=Response)
    async def inference_cross_lingual(request: Request) -> Response:
        """The voice of a recording without its words: `tts_text`, `prompt_wav`."""
        return await speak(request, recording=True)

    @router.get("/inference_instruct", response_class=Response, include_in_schema=False)
    @router.post("/inference_instruct", response_class=Response)
    async def inference_instruct(request: Request) -> Response:
        """A stored voice with an instruction: `tts_text`, `spk_id`, `instruct_text`."""
        return await speak(request, "spk_id", "instruct_text")

    @router.get("/inference_instruct2", response_class=Response, include_in_schema=False)
    @router.post("/inference_instruct2", response_class=Response)
    async def inference_instruct2(request: Request) -> Response:
        """The voice of a recording with an instruction: `tts_text`, `instruct_text`, `prompt_wav`."""
        return await speak(request, "instruct_text", recording=True)

    return router
