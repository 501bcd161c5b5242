"""Bandwidth's media streaming, `<StartStream mode="bidirectional">`."""

from __future__ import annotations

from telephony_tts.doors.bandwidth.codec import BandwidthCodec
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.media_leg import MediaLeg


class BandwidthLeg(MediaLeg):
    kind = "bandwidth"
    reports_marks = False

    def __init__(self, connection: CallConnection) -> None:
        super().__init__(connection, BandwidthCodec())


DOOR = Door(
    "bandwidth",
    media=MediaSide(
        BandwidthLeg, lambda connection, settings: BandwidthLeg(connection), BandwidthCodec.keys.rates_hz,
        token_in_start=True,
    ),
)  # fmt: skip
