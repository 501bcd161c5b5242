"""Runs one of pipecat's serializers, the bot's side of a carrier's media stream.

Arguments: the carrier (`twilio`, `telnyx`, `plivo`, `exotel`), the rate of the stream in Hz, the encodings of the
caller's audio and of the bot's speech (for Telnyx), 16-bit samples at that rate as base64, and the carrier's messages.
Reports `start` (what pipecat takes the stream for), `heard` or `pressed` for each message that it understands, and
`sent` for the samples as speech and for an interruption.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace

from pipecat.frames.frames import InputAudioRawFrame, InputDTMFFrame, InterruptionFrame, OutputAudioRawFrame
from pipecat.runner.utils import parse_telephony_websocket
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from reporting import report


class Socket:
    """As much of a WebSocket as pipecat reads before a call."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages

    async def iter_text(self) -> AsyncIterator[str]:
        for message in self._messages:
            yield message


def serializer(carrier: str, rate_hz: int, heard: str, spoken: str, stream: str) -> FrameSerializer:
    if carrier == "twilio":
        of_twilio = TwilioFrameSerializer.InputParams(auto_hang_up=False, twilio_sample_rate=rate_hz)
        return TwilioFrameSerializer(stream, params=of_twilio)
    if carrier == "telnyx":
        of_telnyx = TelnyxFrameSerializer.InputParams(auto_hang_up=False, telnyx_sample_rate=rate_hz)
        # Its names are those of the call: what comes out of the call is heard here.
        return TelnyxFrameSerializer(stream, heard, spoken, params=of_telnyx)
    if carrier == "plivo":
        of_plivo = PlivoFrameSerializer.InputParams(auto_hang_up=False, plivo_sample_rate=rate_hz)
        return PlivoFrameSerializer(stream, params=of_plivo)
    return ExotelFrameSerializer(stream, params=ExotelFrameSerializer.InputParams(exotel_sample_rate=rate_hz))


async def main() -> None:
    carrier, rate, heard, spoken, samples, *messages = sys.argv[1:]
    kind, call = await parse_telephony_websocket(Socket(messages))  # type: ignore[arg-type]
    report("start", kind=kind, call=call["call_id"], stream=call["stream_id"])
    serial = serializer(carrier, int(rate), heard, spoken, call["stream_id"])
    await serial.setup(SimpleNamespace(audio_in_sample_rate=int(rate)))  # type: ignore[arg-type]
    for message in messages:
        frame = await serial.deserialize(message)
        if isinstance(frame, InputAudioRawFrame):
            report("heard", audio=frame.audio)
        elif isinstance(frame, InputDTMFFrame):
            report("pressed", digit=frame.button.value)
    speech = OutputAudioRawFrame(audio=base64.b64decode(samples), sample_rate=int(rate), num_channels=1)
    for frame in (speech, InterruptionFrame()):
        wire = await serial.serialize(frame)
        assert isinstance(wire, str)
        report("sent", message=json.loads(wire))


asyncio.run(main())
