"""Telnyx media streaming."""

from __future__ import annotations

from telephony_tts.doors.telnyx.codec import TelnyxCodec, options_of, parse_options
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.media_leg import MediaLeg
from telephony_tts.wire.messages import Invalid


class TelnyxLeg(MediaLeg):
    kind = "telnyx"

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection, TelnyxCodec(options_of(connection.target)))


def _flaw(target: str) -> str | None:
    options = parse_options(target)
    return options.message if isinstance(options, Invalid) else None


DOOR = Door(
    "telnyx",
    media=MediaSide(
        TelnyxLeg, lambda connection, settings: TelnyxLeg(connection), TelnyxCodec.keys.rates_hz, token_in_start=True,
        flaw_of_target=_flaw,
    ),
)  # fmt: skip
