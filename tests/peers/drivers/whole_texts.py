"""The SDKs of Deepgram, ElevenLabs and Cartesia over HTTP: a whole text in a request, its audio as a stream.

`--service` deepgram, elevenlabs or cartesia. Steps: `speak:TEXT`. `--stop MS` ends a response early, after so much
audio of 16 bits at 8 kHz.
Events: `audio`, `done`, `stopped`, `failed` with the class, the status and the text of the SDK's error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reporting import arguments, report, split

OPTIONS = arguments(service="deepgram", voice="tone", stop=0)


def client() -> Any:
    if OPTIONS.service == "deepgram":
        from deepgram import DeepgramClient
        from deepgram.environment import DeepgramClientEnvironment

        place = DeepgramClientEnvironment(base=OPTIONS.url, production="", agent="", agent_rest=OPTIONS.url)
        return DeepgramClient(api_key=OPTIONS.key, environment=place)
    if OPTIONS.service == "elevenlabs":
        from elevenlabs.client import ElevenLabs

        return ElevenLabs(api_key=OPTIONS.key, base_url=OPTIONS.url)
    from cartesia import Cartesia

    return Cartesia(api_key=OPTIONS.key, base_url=OPTIONS.url, max_retries=0)


def spoken(made: Any, text: str) -> Iterator[bytes]:
    if OPTIONS.service == "deepgram":
        how: dict[str, Any] = {"encoding": "linear16", "container": "none", "sample_rate": 8000}
        yield from made.speak.v1.audio.generate(text=text, model=OPTIONS.voice, **how)
    elif OPTIONS.service == "elevenlabs":
        yield from made.text_to_speech.stream(OPTIONS.voice, text=text, output_format="pcm_8000")
    else:
        format = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}
        voice = {"mode": "id", "id": OPTIONS.voice}
        with made.tts.with_streaming_response.generate(
            model_id="sonic-3", output_format=format, transcript=text, voice=voice
        ) as response:
            yield from response.iter_bytes()


def speak(made: Any, text: str) -> None:
    n_bytes = 0
    for piece in spoken(made, text):
        report("audio", audio=piece)
        n_bytes += len(piece)
        if OPTIONS.stop and n_bytes >= OPTIONS.stop * 16:
            report("stopped")
            return
    report("done")


MADE = client()
for step in OPTIONS.steps:
    try:
        speak(MADE, split(step)[1])
    except Exception as failure:  # whatever the SDK raises is what its user sees
        report("failed", error=type(failure).__name__, status=getattr(failure, "status_code", None), text=str(failure))
