"""The routes of upstream CosyVoice's own server."""

from __future__ import annotations

from typing import Any

from telephony_tts.transport.door import Door, HttpRoutes


def _routes(api: Any) -> Any:
    from telephony_tts.doors.cosyvoice.routes import cosyvoice_routes

    return cosyvoice_routes(api)


DOOR = Door("cosyvoice", http=HttpRoutes(("/inference",), _routes))
