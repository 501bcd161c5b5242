"""deepgram-sdk (async) on /v2/speak, Flux.

Steps: `speak:TEXT`, `flush`, `interrupt`, `interrupt:MS` with a playback offset, `configure:SPEED`, `close`,
`send:JSON` for what the SDK has no method for.
Events: the server's messages by their type, `audio`, `refused`, `closed`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from deepgram import AsyncDeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v2.types import SpeakV2Configure, SpeakV2Interrupt, SpeakV2InterruptPlaybackOffset, SpeakV2Speak
from reporting import BYTES_PER_SAMPLE, Ear, arguments, report, split, websocket_url
from websockets.exceptions import ConnectionClosed

OPTIONS = arguments(model="flux-alexis-en", encoding="linear16", rate=8000, query=None)
EAR = Ear(OPTIONS.rate * BYTES_PER_SAMPLE.get(OPTIONS.encoding, 1) / 1000, OPTIONS.within)


def heard(message: Any) -> None:
    if isinstance(message, bytes):
        EAR.audio(message)
    else:
        fields = message if isinstance(message, dict) else message.dict()
        EAR.message(fields.pop("type"), parsed_as=type(message).__name__, **fields)


async def drive() -> None:
    base, socket = OPTIONS.url, websocket_url(OPTIONS.url)
    place = DeepgramClientEnvironment(base=base, production=socket, agent=socket, agent_rest=base)
    query = dict([OPTIONS.query.split("=", 1)]) if OPTIONS.query else {}
    connecting = AsyncDeepgramClient(api_key=OPTIONS.key, environment=place).speak.v2.connect(
        model=OPTIONS.model,
        encoding=OPTIONS.encoding,
        sample_rate=str(OPTIONS.rate),
        request_options={"additional_query_parameters": query},
    )
    async with connecting as speech:

        async def listen() -> None:
            try:
                while True:
                    heard(await speech.recv())
            except ConnectionClosed:
                EAR.message("closed", code=speech._websocket.close_code, reason=speech._websocket.close_reason)

        listener = asyncio.create_task(listen())
        for step in OPTIONS.steps:
            kind, text = split(step)
            if EAR.waits(step):
                await EAR.wait(step)
            elif kind == "speak":
                await speech.send_speak(SpeakV2Speak(text=text))
            elif kind == "flush":
                await speech.send_flush()
            elif kind == "interrupt":
                offset = SpeakV2InterruptPlaybackOffset(value=int(text)) if text else None
                EAR.forget_audio()
                report("sent", message="Interrupt")
                await speech.send_interrupt(SpeakV2Interrupt(playback_offset=offset) if offset else None)
            elif kind == "configure":
                await speech.send_configure(SpeakV2Configure(speed=float(text)))
            elif kind == "send":
                await speech._websocket.send(text)
            elif kind == "close":
                await speech.send_close()
                await asyncio.wait_for(listener, OPTIONS.within)
        listener.cancel()


try:
    asyncio.run(drive())
except ApiError as refusal:
    report("refused", status=refusal.status_code, body=str(refusal.body))
