"""SignalWire's `<Stream>`."""

from __future__ import annotations

from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.media_leg import MediaLeg


class SignalWireLeg(MediaLeg):
    kind = "signalwire"
    sends_dtmf = True

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection, SignalWireCodec())


DOOR = Door(
    "signalwire",
    media=MediaSide(
        SignalWireLeg, lambda connection, settings: SignalWireLeg(connection), SignalWireCodec.keys.rates_hz,
        token_in_start=True,
    ),
)  # fmt: skip
