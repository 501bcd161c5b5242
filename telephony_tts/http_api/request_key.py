"""The key of the HTTP request that is being served. `Gate` sets it, in the task in which the request is served."""

from __future__ import annotations

from contextvars import ContextVar

from telephony_tts.ops.keys.key import NO_KEY, Key

REQUEST_KEY: ContextVar[Key] = ContextVar("request_key", default=NO_KEY)
