"""Our own media protocol, for programs that have the telephone call themselves (docs/protocol, PROTOCOL.md §9.4)."""

from __future__ import annotations

from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire import messages as m
from telephony_tts.wire.native_media import NativeMediaCodec
from telephony_tts.wire.query import RATES_HZ


class NativeLeg(MediaLeg):
    """A media process that handles the telephone call itself."""

    kind = "native"
    sends_dtmf = None

    def __init__(self, connection: CallConnection) -> None:
        self._codec = NativeMediaCodec()
        super().__init__(connection, self._codec)

    def attach(self, call: Call, start: m.MediaStart) -> None:
        self.sends_dtmf = self._codec.sends_dtmf
        super().attach(call, start)

    def complain(self, mistake: m.Invalid) -> None:
        self.connection.send_now(*self._codec.complaint(mistake))


DOOR = Door(
    "native",
    media=MediaSide(NativeLeg, lambda connection, settings: NativeLeg(connection), RATES_HZ, page="native-media"),
)
