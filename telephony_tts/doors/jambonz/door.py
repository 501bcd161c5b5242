"""jambonz: its audio streams, and its custom speech vendor by WebSocket and by HTTP."""

from __future__ import annotations

import re
from typing import Any

from telephony_tts.doors.jambonz import tts_codec
from telephony_tts.doors.jambonz.leg import JambonzLeg
from telephony_tts.transport.connection import CallConnection
from telephony_tts.transport.door import Door, HttpRoutes, MediaSide, Vendor
from telephony_tts.transport.media_leg import call_of, rate_of
from telephony_tts.transport.settings import TransportSettings
from telephony_tts.wire.query import RATES_HZ


def _leg(connection: CallConnection, settings: TransportSettings) -> JambonzLeg:
    return JambonzLeg(connection, call_of(connection), rate_of(connection))


def _routes(api: Any) -> Any:
    from telephony_tts.doors.jambonz.routes import jambonz_routes

    return jambonz_routes(api)


DOOR = Door(
    "jambonz",
    media=MediaSide(JambonzLeg, _leg, RATES_HZ, reads_options=True),
    bots=(
        Vendor(
            "jambonz", re.compile(r"/jambonz/tts/?"), tts_codec.open_tts, tts_codec.refuse, tts_codec.OWN_VOICE,
            page="jambonz-tts",
        ),
    ),
    http=HttpRoutes(("/jambonz",), _routes, page="custom-voices"),
)  # fmt: skip
