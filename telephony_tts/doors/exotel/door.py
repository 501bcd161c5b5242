"""Exotel's AgentStream."""

from __future__ import annotations

from telephony_tts.doors.exotel.codec import ExotelCodec
from telephony_tts.doors.exotel.leg import ExotelLeg
from telephony_tts.transport.door import Door, MediaSide

DOOR = Door(
    "exotel",
    media=MediaSide(
        ExotelLeg, lambda connection, settings: ExotelLeg(connection, settings.speech.lead_ms),
        ExotelCodec.keys.rates_hz, token_in_start=True,
    ),
)  # fmt: skip
