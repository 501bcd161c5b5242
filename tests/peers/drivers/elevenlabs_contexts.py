"""multi-stream-input over the websockets package, as the SDK has no client for it: what its reference page shows.

Steps: `open:CONTEXT`, `say:CONTEXT:TEXT`, `flush:CONTEXT`, `end:CONTEXT` (close_context), `alive:CONTEXT`, `alive`,
`send:JSON`, `close` (close_socket).
Events: `audio` and `message` with their `context`, `final` with its context, `refused`, `closed`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import websockets
from reporting import Ear, arguments, report, split, websocket_url

OPTIONS = arguments(voice="tone", model="eleven_flash_v2_5", output_format="pcm_8000", path="multi-stream-input")
EAR = Ear(16, OPTIONS.within)


def heard(message: str) -> None:
    fields = json.loads(message)
    context = fields.pop("contextId", None)
    audio = fields.pop("audio", None)
    if audio:
        EAR.audio(base64.b64decode(audio), context=context, **fields)
    else:
        EAR.message("final" if fields.get("isFinal") else "message", context=context, **fields)


def request(kind: str, rest: str) -> dict[str, Any]:
    context, text = split(rest)
    return {
        "open": {"text": " ", "context_id": context, "voice_settings": {"stability": 0.5, "similarity_boost": 0.8}},
        "say": {"text": text, "context_id": context},
        "flush": {"context_id": context, "flush": True},
        "end": {"context_id": context, "close_context": True},
        "alive": {"text": "", **({"context_id": context} if context else {})},
        "close": {"close_socket": True},
    }[kind]


async def drive() -> None:
    url = f"{websocket_url(OPTIONS.url)}/v1/text-to-speech/{OPTIONS.voice}/{OPTIONS.path}"
    query = f"?model_id={OPTIONS.model}&output_format={OPTIONS.output_format}"
    async with websockets.connect(url + query, additional_headers={"xi-api-key": OPTIONS.key}) as socket:

        async def listen() -> None:
            try:
                async for message in socket:
                    heard(message)
            except websockets.ConnectionClosed:
                pass
            EAR.message("closed", code=socket.close_code, reason=socket.close_reason)

        listener = asyncio.create_task(listen())
        for step in OPTIONS.steps:
            kind, rest = split(step)
            if EAR.waits(step):
                await EAR.wait(step)
                continue
            if kind == "end":
                EAR.forget_audio()
                report("sent", message="close_context", context=rest)
            await socket.send(rest if kind == "send" else json.dumps(request(kind, rest)))
            if kind == "close":
                await asyncio.wait_for(listener, OPTIONS.within)
        listener.cancel()


try:
    asyncio.run(drive())
except websockets.InvalidStatus as refusal:
    report("refused", status=refusal.response.status_code, body=refusal.response.body.decode(errors="replace"))
