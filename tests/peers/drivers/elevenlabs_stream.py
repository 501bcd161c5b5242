"""The elevenlabs SDK's `convert_realtime`, on /v1/text-to-speech/{voice}/stream-input.

Steps: the pieces of text; `pause:SECONDS` between them. With an https address the SDK is as it comes, and needs
SSL_CERT_FILE; with an http address its wss is replaced.
Events: `handed` when the SDK takes a piece, `audio`, `done` when the SDK's iterator ended, `refused` or `failed` with
its error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from elevenlabs import VoiceSettings
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from reporting import arguments, report, split, websocket_url
from websockets.exceptions import InvalidStatus

OPTIONS = arguments(voice="tone", model="eleven_flash_v2_5", output_format="pcm_8000", speed=0.0)


def pieces() -> Iterator[str]:
    for step in OPTIONS.steps:
        kind, text = split(step)
        if kind == "pause":
            time.sleep(float(text))
        else:
            report("handed", text=step)
            yield step


client = ElevenLabs(api_key=OPTIONS.key, base_url=OPTIONS.url)
if OPTIONS.url.startswith("http:"):
    # The SDK insists on wss, whatever the address says.
    client.text_to_speech._ws_base_url = websocket_url(OPTIONS.url)
settings = {"voice_settings": VoiceSettings(speed=OPTIONS.speed)} if OPTIONS.speed else {}
try:
    spoken = client.text_to_speech.convert_realtime(
        voice_id=OPTIONS.voice, text=pieces(), model_id=OPTIONS.model, output_format=OPTIONS.output_format, **settings
    )
    for audio in spoken:
        report("audio", audio=audio)
    report("done")
except InvalidStatus as refusal:
    report("refused", status=refusal.response.status_code, body=refusal.response.body.decode(errors="replace"))
except ApiError as failure:
    report("failed", code=failure.status_code, body=failure.body)
