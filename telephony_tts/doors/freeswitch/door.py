"""FreeSWITCH's mod_audio_stream and mod_audio_fork."""

from __future__ import annotations

from telephony_tts.doors.freeswitch.codec import CALL_HEADER, RATES_HZ
from telephony_tts.doors.freeswitch.leg import FreeSwitchLeg
from telephony_tts.transport.door import Door, MediaSide
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.wire.fields import CALL_NAME


def _call_in(head: RequestHead) -> str | None:
    named = head.values(CALL_HEADER.lower())
    return named[0] if len(named) == 1 and CALL_NAME.fullmatch(named[0]) else None


DOOR = Door(
    "freeswitch",
    media=MediaSide(FreeSwitchLeg, lambda connection, settings: FreeSwitchLeg(connection), RATES_HZ, call_in=_call_in),
)
