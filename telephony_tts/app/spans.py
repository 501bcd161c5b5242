"""Traces of turns, if a collector is configured."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from telephony_tts.app.config import Config
from telephony_tts.app.engines import installed, version
from telephony_tts.runtime import logs
from telephony_tts.runtime.daemon_pool import DaemonPool
from telephony_tts.runtime.errors import ConfigError, how_to_get

if TYPE_CHECKING:
    from telephony_tts.app.tracing import TurnTracing

_log = logs.get(__name__)

_LAST_SPANS_S = 5.0


def open_tracing(config: Config) -> TurnTracing | None:
    """What makes spans of turns, None without a collector. OpenTelemetry is an extra. Raises EngineUnavailable."""
    settings = config.tracing
    if settings.endpoint is None:
        return None
    if not installed("opentelemetry"):
        raise ConfigError(
            f"tracing.endpoint is set, and traces need OpenTelemetry: {how_to_get('otel')}"
        )
    from telephony_tts.app.tracing import TurnTracing

    return TurnTracing(settings.endpoint, settings.share, version())


async def close_tracing(tracing: TurnTracing) -> None:
    """Send the last spans, unless the collector takes too long."""
    pool = DaemonPool(1, "last spans")
    try:
        sent = asyncio.wrap_future(pool.submit(tracing.close))
    except RuntimeError as error:
        _log.warning("spans_lost", why=str(error))
        return
    _, late = await asyncio.wait((sent,), timeout=_LAST_SPANS_S)
    if late:
        _log.warning("spans_lost", why=f"tracing.endpoint did not take the last spans within {_LAST_SPANS_S:g} s")
    pool.shutdown(wait=False)
