"""One server in this process: start, ready, drain, stop."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from telephony_tts.app.config import Config, doubtful_settings
from telephony_tts.app.disks import watch_disks
from telephony_tts.app.engines import build_catalog, voice_service
from telephony_tts.app.examination import findings
from telephony_tts.app.reloads import Reloads
from telephony_tts.app.settings import (
    check_voices,
    open_experiments,
    open_keys,
    open_lexicons,
    open_recordings,
    transport_settings,
    why_tokens_are_needed,
)
from telephony_tts.app.spans import close_tracing, open_tracing
from telephony_tts.audio.voice_activity import import_runtime
from telephony_tts.engines.api import EngineStats, Voice
from telephony_tts.fronts.front import Front
from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.errors import AudioError, ConfigError
from telephony_tts.transport.server import Server
from telephony_tts.transport.voice_model import VOICE_MODEL

_log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """The facts that are printed for the operator when the server is ready."""

    address: str
    """Where a program on this machine connects, such as "ws://127.0.0.1:8080"."""
    port: int
    voices: tuple[Voice, ...]
    stats: dict[str, EngineStats]
    n_processes: int = 1


def _host_here(host: str) -> str:
    """The host part of the URL at which a program on this machine reaches a server that listens on `host`.

    0.0.0.0 and :: mean all addresses, and a client needs one address. IPv6 stands in brackets (RFC 3986 §3.2.2).
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if ip.is_unspecified:
        host = "127.0.0.1" if ip.version == 4 else "::1"
    return host if ip.version == 4 else f"[{host}]"


async def serve(
    config: Config,
    announce: Callable[[Served], None] | None = None,
    front: Front | None = None,
    sockets: Sequence[socket.socket] = (),
    *,
    listens_at_once: bool = True,
    shared: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the server until SIGTERM or SIGINT, then drain and return. A second signal does not wait.

    It listens before its engines are loaded. So a port in use is reported at once, and /readyz is 503 while they load.

    `front`: this process is one of several, and listens on `sockets`. One that replaces another does not listen at
    once: the others answer until it can speak. `shared`: see `build_catalog`.
    """
    lexicons, keys = open_lexicons(config), open_keys(config)
    settings = transport_settings(config, lexicons, keys)
    if settings.speech.barge_in.enabled:
        _load_voice_model("barge_in.enabled")
    elif settings.speech.caller.silent_ms:
        _load_voice_model("caller.silent_ms")
    elif settings.speech.caller.answering_machine:
        _load_voice_model("caller.answering_machine")
    recordings = open_recordings(config)
    catalog = build_catalog(config, shared=shared)
    server = Server(settings, catalog, front)
    experiments = open_experiments(config, catalog, lambda: server.ready)
    if experiments is not None:
        settings.experiments.replace(experiments.content)
    server.registry.recordings = recordings
    tracing = server.registry.tracing = open_tracing(config)
    voices = voice_service(config, catalog, shared)
    # Imported already, see `import_slow_modules`.
    from telephony_tts.http_api.asgi import http_server
    from telephony_tts.http_api.console_routes import ConsoleTools

    server.http = http_server(server, voices, ConsoleTools(partial(findings, config), lexicons))
    disks = asyncio.create_task(watch_disks(config), name="watch disks")
    reloads = Reloads()
    if lexicons is not None:
        reloads.add(lexicons.reload, lambda _: None, config.lexicons.check_s)
    if keys is not None:
        reloads.add(keys.reload, settings.keys.replace, config.keys.check_s)
    if experiments is not None:
        reloads.add(experiments.reload, settings.experiments.replace, config.experiments.check_s)
    try:
        with event_loop.stop_signals(server.stop_at_once) as stop, reloads.running():
            async with AsyncExitStack() as stack:
                if front is not None:
                    moved = front.listening(server.adopt, server.refresh_gauges, server.activity)
                    await stack.enter_async_context(moved)
                await stack.enter_async_context(
                    server.running(ready=False, sockets=sockets, listens_at_once=listens_at_once)
                )
                _log.info("starting", port=server.port, engines=[engine.name for engine in catalog.engines])
                if not await unless_stopped(stop, catalog.start()):
                    _log.info("stopped_before_ready")
                    return
                catalog.resolve(settings.speech.voice, None, "")
                if experiments is not None:
                    check_voices(experiments.content, catalog, str(config.experiments.file))
                event_loop.settle()
                server.ready = True
                await server.start_listening()
                scheme = "wss" if settings.tls is not None else "ws"
                address = f"{scheme}://{_host_here(settings.server.host)}:{server.port}"
                _log.info("ready", address=address, engines=[engine.name for engine in catalog.engines])
                for doubt in doubtful_settings(config):
                    _log.warning("doubtful_setting", why=doubt)
                if (why := why_tokens_are_needed(config)) is not None:
                    _log.warning("open_to_everyone", why=f"{why}; no token is set, and server.open is true")
                if announce is not None:
                    announce(Served(address, server.port, catalog.voices, catalog.stats()))
                await stop.wait()
    finally:
        disks.cancel()
        try:
            if voices is not None:
                await voices.close()
            await catalog.close()
        finally:
            try:
                if recordings is not None:
                    await recordings.close()
            finally:
                if tracing is not None:
                    await close_tracing(tracing)
    _log.info("stopped")


def _load_voice_model(needed_by: str) -> None:
    """Raises ConfigError if the network cannot be loaded: a server whose configuration needs it must not start without
    it."""
    try:
        VOICE_MODEL.load()
    except AudioError as error:
        raise ConfigError(f"{needed_by}: {error.message}") from error


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or `stop` is set. True if it ended. Raises its errors."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
    if task.cancelled():
        return False
    task.result()
    return True


def import_slow_modules() -> None:
    """Import the HTTP interface and onnxruntime before an event loop runs. Within it the import would make calls late,
    and on a busy machine a front would be silent for too long. Commands that serve nothing do without them."""
    import telephony_tts.http_api.asgi  # noqa: F401

    import_runtime()
