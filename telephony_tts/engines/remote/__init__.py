"""Engines that run in another process or on another machine, and the server of such an engine.

This file is what others use: commands, fronts and `ray`. gRPC is an extra, and imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.plugin import EngineTimeouts, has_module
from telephony_tts.engines.remote.addresses import EngineAddress, parse_address, parse_addresses
from telephony_tts.engines.remote.settings import RemoteSettings
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine
    from telephony_tts.engines.remote.client import RemoteEngine
    from telephony_tts.engines.remote.server import EngineServer
    from telephony_tts.engines.remote.tls import TlsKeys

__all__ = [
    "EngineAddress", "EngineServer", "RemoteSettings", "connect", "need_grpc", "parse_address", "parse_addresses",
    "remote_voices", "serve_engine",
]  # fmt: skip


def need_grpc() -> None:
    """Raises EngineUnavailable where gRPC, which engines of other processes need, is not installed."""
    if not has_module("grpc"):
        raise EngineUnavailable(f"engines of other processes need grpcio: {how_to_get('remote')}")


def connect(
    name: str,
    targets: Sequence[str],
    settings: RemoteSettings | None = None,
    timeouts: EngineTimeouts | None = None,
    *,
    start_timeout_s: float | None = None,
) -> RemoteEngine:
    """The engine `name` of the engine servers at `targets`, not started. `settings` has their token and TLS; without it
    there is neither. Raises ConfigError and EngineUnavailable."""
    need_grpc()
    from telephony_tts.engines.remote.client import RemoteEngine

    settings, timeouts = settings or RemoteSettings(), timeouts or EngineTimeouts()
    return RemoteEngine(
        name,
        targets,
        token=settings.token,
        start_timeout_s=settings.start_timeout_s if start_timeout_s is None else start_timeout_s,
        wait_ready_s=timeouts.restart_wait_s,
        first_audio_timeout_ms=timeouts.first_audio_timeout_ms,
        tls=_tls(settings),
    )


def serve_engine(
    engine: Engine, settings: RemoteSettings | None = None, *, token: str | None = None, voices: Any = None
) -> EngineServer:
    """The server of an engine, which its owner starts and closes. `token` is that of `settings`, if it is not given.
    `voices`: what adds and removes its voices. Raises ConfigError and EngineUnavailable."""
    need_grpc()
    from telephony_tts.engines.remote.server import EngineServer

    settings = settings or RemoteSettings()
    return EngineServer(engine, token=token or settings.token, tls=_tls(settings), voices=voices)


def remote_voices(engine: RemoteEngine) -> Any:
    """What adds and removes the voices of engine servers (`http_api.voices.Voices`)."""
    from telephony_tts.engines.remote.voice_client import RemoteVoices

    return RemoteVoices(engine)


def _tls(settings: RemoteSettings) -> TlsKeys | None:
    from telephony_tts.engines.remote.tls import read_tls

    return read_tls(settings.tls.ca, settings.tls.cert, settings.tls.key)
