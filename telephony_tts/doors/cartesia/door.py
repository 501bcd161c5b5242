"""Cartesia's speech: contexts by WebSocket, and whole texts by HTTP."""

from __future__ import annotations

import re
from typing import Any

from telephony_tts.doors import vendor_errors
from telephony_tts.doors.cartesia import codec
from telephony_tts.transport.door import Door, HttpRoutes, Vendor

CONTEXTS = Vendor(
    "cartesia", re.compile(r"/tts/websocket/?"), codec.open_contexts, codec.refuse, codec.OWN_VOICE
)


def _routes(api: Any) -> Any:
    from telephony_tts.doors.cartesia.routes import cartesia_routes

    return cartesia_routes(api, CONTEXTS)


DOOR = Door(
    "cartesia",
    bots=(CONTEXTS,),
    http=HttpRoutes(
        ("/tts/bytes",), _routes, vendor_errors.at(re.compile(r"/tts/bytes"), CONTEXTS), page="vendor-http"
    ),
    key_headers=("X-API-Key",),
    key_options=("api_key", "access_token"),
)
