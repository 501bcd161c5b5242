"""Every error this package raises on purpose.

TelephonyTTSError
├── ConfigError            a configuration file or flag is wrong; raised before anything starts
├── AudioError             audio of a shape, rate or codec that cannot be carried
├── Busy                   the server refuses work it could not do in time; says when to come back
└── EngineError            speech could not be made; ends the turn, never the call
    ├── EngineUnavailable  the engine's package or files are not installed
    ├── UnknownVoice       no engine has a voice of that name
    └── UnsupportedText    the engine cannot read this script; `Catalog.choose` adds the voices that can

Malformed input from a peer is not an exception: decoders return `wire.messages.Invalid`, because
a peer's mistake is an ordinary event of a call and never ends it.
"""

from __future__ import annotations


class TelephonyTTSError(Exception):
    """Base of all deliberate errors. `code` is the stable word sent on the wire.

    `retry_after_ms`: after how long the same may succeed, where that is known; a hint, not a promise.
    """

    code = "internal"
    retryable = False
    retry_after_ms: int | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms


class ConfigError(TelephonyTTSError):
    code = "bad_config"


class AudioError(TelephonyTTSError):
    code = "bad_audio"


class Busy(TelephonyTTSError):
    """Refused to protect live calls."""

    code = "busy"
    retryable = True
    retry_after_ms: int

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)


class EngineError(TelephonyTTSError):
    code = "engine_failed"
    retryable = True


class EngineUnavailable(EngineError):
    code = "engine_unavailable"
    retryable = False


class UnknownVoice(EngineError):
    code = "unknown_voice"
    retryable = False


class UnsupportedText(EngineError):
    code = "unsupported_text"
    retryable = False
