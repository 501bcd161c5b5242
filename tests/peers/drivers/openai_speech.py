"""The openai SDK (async) on /v1/audio/speech and the lists beside it.

Steps: `speak:TEXT`, `models`, `pause:SECONDS`, and `set:NAME=VALUE`, which changes one of the options `model`, `voice`,
`format`, `stream`, `instructions`, `speed` and `stop` for the requests after it. `--stop MS` drops the connection after
so much 24 kHz PCM.
`--format` is the response_format, `--stream` audio or sse.
Events: `headers` with the content type, `audio` (bytes of the body, or of each delta), `usage`, `done`, `stopped`,
`models`, `failed` with the SDK's error class, status and body.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import openai
from reporting import arguments, report, split

OPTIONS = arguments(
    model="gpt-4o-mini-tts", voice="alloy", format="pcm", stream="audio", instructions="", speed=0.0, query="", stop=0
)


def request(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": OPTIONS.model, "voice": OPTIONS.voice, "input": text, "response_format": OPTIONS.format,
        "stream_format": OPTIONS.stream,
    }  # fmt: skip
    if OPTIONS.instructions:
        fields["instructions"] = OPTIONS.instructions
    if OPTIONS.speed:
        fields["speed"] = OPTIONS.speed
    return fields


async def speak(client: Any, text: str) -> None:
    async with client.audio.speech.with_streaming_response.create(**request(text)) as response:
        report("headers", status=response.status_code, content_type=response.headers.get("content-type", ""))
        heard = 0
        if OPTIONS.stream == "sse":
            async for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event["type"] == "speech.audio.delta":
                    report("audio", audio=base64.b64decode(event["audio"]))
                else:
                    report("usage", type=event["type"], usage=event.get("usage"))
        else:
            async for chunk in response.iter_bytes():
                report("audio", audio=chunk)
                heard += len(chunk)
                if OPTIONS.stop and heard >= OPTIONS.stop * 48:
                    report("stopped")
                    return
        report("done")


async def drive() -> None:
    query = dict([OPTIONS.query.split("=", 1)]) if OPTIONS.query else None
    client = openai.AsyncOpenAI(
        api_key=OPTIONS.key, base_url=f"{OPTIONS.url}/v1", default_query=query, max_retries=0, timeout=OPTIONS.within
    )
    for step in OPTIONS.steps:
        kind, text = split(step)
        try:
            if kind == "speak":
                await speak(client, text)
            elif kind == "set":
                name, _, value = text.partition("=")
                setattr(OPTIONS, name, type(getattr(OPTIONS, name))(value))
            elif kind == "models":
                report("models", ids=[model.id async for model in client.models.list()])
            elif kind == "pause":
                await asyncio.sleep(float(text))
        except openai.APIStatusError as failure:
            report("failed", error=type(failure).__name__, status=failure.status_code, body=failure.body)
        except openai.APIError as failure:
            report("failed", error=type(failure).__name__, message=str(failure))
    await client.close()


asyncio.run(drive())
