"""The cartesia SDK (async) on /tts/websocket.

Steps: `push:CONTEXT:TEXT` (the first opens the context), `flush:CONTEXT`, `end:CONTEXT` (no_more_inputs),
`cancel:CONTEXT`. `--client sync` takes the same steps with the blocking client; it reads a context to its end at
`read:CONTEXT`, so `hear` and `wait` are not for it.
Events: `audio`, `timestamps`, `flush_done`, `done`, `error`, each with its `context`; `refused`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import websockets
from cartesia import AsyncCartesia, Cartesia
from reporting import BYTES_PER_SAMPLE, Ear, arguments, report, split, websocket_url

OPTIONS = arguments(client="async", voice="tone", model="sonic-3", encoding="pcm_s16le", rate=8000, query=None)
EAR = Ear(OPTIONS.rate * BYTES_PER_SAMPLE.get(OPTIONS.encoding, 4) / 1000, OPTIONS.within)
QUERY = dict([OPTIONS.query.split("=", 1)]) if OPTIONS.query else {}
CONTEXT: dict[str, Any] = {
    "model_id": OPTIONS.model,
    "voice": {"mode": "id", "id": OPTIONS.voice},
    "output_format": {"container": "raw", "encoding": OPTIONS.encoding, "sample_rate": OPTIONS.rate},
    "language": "en",
    "add_timestamps": True,
}


def heard(message: Any) -> None:
    fields = message.model_dump()
    kind = fields.pop("type")
    context = fields.pop("context_id", None)
    fields.pop("data", None)
    if kind == "chunk":
        EAR.audio(message.audio or b"", context=context, **fields)
    else:
        EAR.message(kind, context=context, **fields)


async def drive_async() -> None:
    client = AsyncCartesia(api_key=OPTIONS.key, websocket_base_url=websocket_url(OPTIONS.url))
    async with client.tts.websocket_connect(extra_query=QUERY) as speech:
        contexts: dict[str, Any] = {}
        readers: list[asyncio.Task[None]] = []

        async def read(context: Any) -> None:
            async for message in context.receive():
                heard(message)

        for step in OPTIONS.steps:
            kind, rest = split(step)
            name, text = split(rest)
            if EAR.waits(step):
                await EAR.wait(step)
                continue
            if name not in contexts:
                contexts[name] = speech.context(name, **CONTEXT)
                readers.append(asyncio.create_task(read(contexts[name])))
            context = contexts[name]
            if kind == "push":
                await context.push(text)
            elif kind == "flush":
                await context.push("", flush=True)
            elif kind == "end":
                await context.no_more_inputs()
            elif kind == "cancel":
                EAR.forget_audio()
                report("sent", message="cancel", context=name)
                await context.cancel()
        for reader in readers:
            reader.cancel()


def drive_blocking() -> None:
    client = Cartesia(api_key=OPTIONS.key, websocket_base_url=websocket_url(OPTIONS.url))
    with client.tts.websocket_connect(extra_query=QUERY) as speech:
        contexts: dict[str, Any] = {}
        for step in OPTIONS.steps:
            kind, rest = split(step)
            name, text = split(rest)
            if name not in contexts:
                contexts[name] = speech.context(name, timeout=OPTIONS.within, **CONTEXT)
            context = contexts[name]
            if kind == "push":
                context.push(text)
            elif kind == "end":
                context.no_more_inputs()
            elif kind == "cancel":
                context.cancel()
            elif kind == "read":
                for message in context.receive():
                    heard(message)


try:
    if OPTIONS.client == "sync":
        drive_blocking()
    else:
        asyncio.run(drive_async())
except websockets.InvalidStatus as refusal:
    report("refused", status=refusal.response.status_code, body=(refusal.response.body or b"").decode(errors="replace"))
