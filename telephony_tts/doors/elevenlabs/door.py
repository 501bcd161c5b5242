"""ElevenLabs' speech: `stream-input` and `multi-stream-input` by WebSocket, and whole texts by HTTP."""

from __future__ import annotations

import re
from typing import Any

from telephony_tts.doors import vendor_errors
from telephony_tts.doors.elevenlabs import codec
from telephony_tts.transport.door import Door, HttpRoutes, Vendor

STREAM = Vendor(
    "elevenlabs", codec.PATH, codec.open_stream, codec.refuse, codec.OWN_VOICE, key_may_follow=True,
    repeats_silent_turns=True,
)  # fmt: skip


def _routes(api: Any) -> Any:
    from telephony_tts.doors.elevenlabs.routes import elevenlabs_routes

    return elevenlabs_routes(api, STREAM)


DOOR = Door(
    "elevenlabs",
    bots=(STREAM,),
    http=HttpRoutes(
        ("/v1/text-to-speech",), _routes, vendor_errors.at(re.compile(r"/v1/text-to-speech/.*"), STREAM),
        page="vendor-http",
    ),
    key_headers=("xi-api-key",),
    key_options=("xi-api-key", "xi_api_key", "single_use_token"),
)
