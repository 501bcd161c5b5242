"""Deepgram's speech: `Speak` and Flux by WebSocket, and whole texts by HTTP."""

from __future__ import annotations

import re
from typing import Any

from telephony_tts.doors import vendor_errors
from telephony_tts.doors.deepgram import codec, flux
from telephony_tts.transport.door import Door, HttpRoutes, Vendor

SPEAK = Vendor("deepgram", re.compile(r"/v1/speak/?"), codec.open_speak, codec.refuse, codec.OWN_VOICE)


def _routes(api: Any) -> Any:
    from telephony_tts.doors.deepgram.routes import deepgram_routes

    return deepgram_routes(api, SPEAK)


DOOR = Door(
    "deepgram",
    bots=(
        SPEAK,
        Vendor("deepgram_flux", re.compile(r"/v2/speak/?"), flux.open_flux, codec.refuse, codec.OWN_VOICE),
    ),
    http=HttpRoutes(
        ("/v1/speak",), _routes, vendor_errors.at(re.compile(r"/v1/speak"), SPEAK), page="vendor-http"
    ),
)
