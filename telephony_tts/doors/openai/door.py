"""OpenAI's speech routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.door import Door, HttpRoutes


def _routes(api: Any) -> Any:
    from telephony_tts.doors.openai.routes import openai_routes

    return openai_routes(api)


def _refusal(path: str) -> Callable[[TelephonyTTSError], Any] | None:
    from telephony_tts.doors.openai.routes import owns, refusal

    return refusal if owns(path) else None


DOOR = Door("openai", http=HttpRoutes(("/v1/audio", "/v1/models"), _routes, _refusal))
