"""Vapi's custom voice."""

from __future__ import annotations

from typing import Any

from telephony_tts.transport.door import Door, HttpRoutes


def _routes(api: Any) -> Any:
    from telephony_tts.doors.vapi.routes import vapi_routes

    return vapi_routes(api)


DOOR = Door("vapi", http=HttpRoutes(("/vapi",), _routes, page="custom-voices"), key_headers=("X-Vapi-Secret",))
