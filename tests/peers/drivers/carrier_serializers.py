"""pipecat's serializers of carriers with binary audio, each as the bot that such a carrier would reach.

    carrier_serializers.py vonage|genesys RATE_HZ FILE

FILE has the carrier's messages, one JSON object a line: {"text": ...} or {"audio": base64}. They are deserialized one
after the other. Each gives an event `read` with `frame`, the class of pipecat's frame or null, and what is in it. What
the serializer answers to a message, and then what it sends for speech, an interruption and the end of the call, are
events `sent` with `text` or `audio`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    InputAudioRawFrame,
    InputDTMFFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportMessageUrgentFrame,
)
from pipecat.serializers.genesys import GenesysAudioHookSerializer
from pipecat.serializers.vonage import VonageFrameSerializer
from reporting import report

SPEECH = b"".join(int(1000 * (n % 50 - 25)).to_bytes(2, "little", signed=True) for n in range(3200))


def sent(what: str, data: str | bytes | None) -> None:
    report("sent", what=what, **({"audio": data} if isinstance(data, bytes) else {"text": data}))


async def main(kind: str, rate_hz: int, lines: list[str]) -> None:
    serializer: Any = (
        VonageFrameSerializer(VonageFrameSerializer.InputParams(vonage_sample_rate=rate_hz))
        if kind == "vonage"
        else GenesysAudioHookSerializer()
    )
    await serializer.setup(SimpleNamespace(audio_in_sample_rate=rate_hz))
    for line in lines:
        said = json.loads(line)
        frame = await serializer.deserialize(said["text"] if "text" in said else base64.b64decode(said["audio"]))
        fields: dict[str, Any] = {}
        if isinstance(frame, InputAudioRawFrame):
            fields = {"audio": frame.audio, "rate_hz": frame.sample_rate}
        elif isinstance(frame, InputDTMFFrame):
            fields = {"digit": frame.button.value}
        elif isinstance(frame, OutputTransportMessageUrgentFrame):
            sent(frame.message["type"], await serializer.serialize(frame))
        report("read", frame=None if frame is None else type(frame).__name__, **fields)
        if kind == "vonage" or serializer.is_open:
            continue
        return  # nothing is sent in a session that is closed
    speech = OutputAudioRawFrame(audio=SPEECH, sample_rate=rate_hz, num_channels=1)
    sent("speech", await serializer.serialize(speech))
    sent("interruption", await serializer.serialize(InterruptionFrame()))
    sent("end", await serializer.serialize(EndFrame()))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).read_text().splitlines()))
