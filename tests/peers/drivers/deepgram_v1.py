"""deepgram-sdk on /v1/speak. `--client` sync or async.

Steps: `speak:TEXT`, `flush`, `clear`, `close`, `send:JSON` for what the SDK has no method for.
Events: the server's messages by their type, `audio`, `refused` with the status of a refused handshake, `closed`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text
from reporting import BYTES_PER_SAMPLE, Ear, arguments, report, split, websocket_url
from websockets.exceptions import ConnectionClosed, InvalidStatus

OPTIONS = arguments(client="async", model="aura-2-thalia-en", encoding="linear16", rate=8000, query=None)
EAR = Ear(OPTIONS.rate * BYTES_PER_SAMPLE.get(OPTIONS.encoding, 1) / 1000, OPTIONS.within)


def settings() -> dict[str, Any]:
    """What the client is made with: the base URL is the one line that a user changes."""
    base, socket = OPTIONS.url, websocket_url(OPTIONS.url)
    place = DeepgramClientEnvironment(base=base, production=socket, agent=socket, agent_rest=base)
    return {"api_key": OPTIONS.key, "environment": place}


def connection() -> dict[str, Any]:
    query = dict([OPTIONS.query.split("=", 1)]) if OPTIONS.query else {}
    return {
        "model": OPTIONS.model,
        "encoding": OPTIONS.encoding,
        "sample_rate": str(OPTIONS.rate),
        "request_options": {"additional_query_parameters": query},
    }


def heard(message: Any) -> None:
    if isinstance(message, bytes):
        EAR.audio(message)
    else:
        fields = message if isinstance(message, dict) else message.dict()
        # The SDK reads Cleared into the class of Flushed: its users go by `type`.
        EAR.message(fields.pop("type"), parsed_as=type(message).__name__, **fields)


def ended(socket: Any) -> None:
    EAR.message("closed", code=socket.close_code, reason=socket.close_reason)


def drive_blocking() -> None:
    with DeepgramClient(**settings()).speak.v1.connect(**connection()) as speech:

        def listen() -> None:
            try:
                while True:
                    heard(speech.recv())
            except ConnectionClosed:
                ended(speech._websocket)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        for step in OPTIONS.steps:
            kind, text = split(step)
            if EAR.waits(step):
                EAR.wait_in_thread(step)
            elif kind == "speak":
                speech.send_text(SpeakV1Text(text=text))
            elif kind == "flush":
                speech.send_flush()
            elif kind == "clear":
                EAR.forget_audio()
                report("sent", message="Clear")
                speech.send_clear()
            elif kind == "send":
                speech._websocket.send(text)
            elif kind == "close":
                speech.send_close()
                listener.join(OPTIONS.within)


async def drive_async() -> None:
    async with AsyncDeepgramClient(**settings()).speak.v1.connect(**connection()) as speech:

        async def listen() -> None:
            try:
                while True:
                    heard(await speech.recv())
            except ConnectionClosed:
                ended(speech._websocket)

        listener = asyncio.create_task(listen())
        for step in OPTIONS.steps:
            kind, text = split(step)
            if EAR.waits(step):
                await EAR.wait(step)
            elif kind == "speak":
                await speech.send_text(SpeakV1Text(text=text))
            elif kind == "flush":
                await speech.send_flush()
            elif kind == "clear":
                EAR.forget_audio()
                report("sent", message="Clear")
                await speech.send_clear()
            elif kind == "send":
                await speech._websocket.send(text)
            elif kind == "close":
                await speech.send_close()
                await asyncio.wait_for(listener, OPTIONS.within)
        listener.cancel()


try:
    if OPTIONS.client == "sync":
        drive_blocking()
    else:
        asyncio.run(drive_async())
except ApiError as refusal:
    report("refused", status=refusal.status_code, body=str(refusal.body))
except InvalidStatus as refusal:
    # The blocking client does not translate it, and its user sees the error of the websockets package.
    report("refused", status=refusal.response.status_code, headers=dict(refusal.response.headers.raw_items()))
