"""The bridge's process: start → ready → drain → stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sip_bridge import metrics
from sip_bridge.ari.application import AriApplication
from sip_bridge.ari.originate import Originator
from sip_bridge.audiosocket.call import AudioSocketCall
from sip_bridge.audiosocket.connection import CallerSocket
from sip_bridge.config import BridgeConfig
from sip_bridge.freeswitch.application import FreeSwitchApplication
from sip_bridge.http_server import HttpServer, serve_http
from sip_bridge.rtp.codec import rtp_codec
from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.runtime.logs import EventLogger
from telephony_tts.transport.unserved import UnservedConnections

Listener = TypeVar("Listener")

_log = logs.get(__name__)
_SETTINGS = {"not_allowed": "audiosocket.allowed", "busy": "audiosocket.max_calls"}
"""The setting behind each reason to refuse a connection."""

_MAX_WITHOUT_UUID = 256
"""Connections that have not sent their UUID yet. Asterisk sends it at once, so connections without one must not keep
its calls out."""

_RESTART_PAUSE_S = 1.0
"""The pause before an application that has crashed is started again."""


@dataclass(frozen=True, slots=True)
class ListeningPorts:
    """The ports that were bound: a configured port may be 0, for any free one."""

    audiosocket_port: int
    http_port: int


class PbxApplication(Protocol):
    """A connection to a PBX that brings calls: ARI or FreeSWITCH's event socket."""

    async def run(self) -> None: ...


class PbxCall(Protocol):
    """A call of any kind of PBX connection."""

    async def run(self) -> None: ...
    def end(self, reason: str) -> None: ...


class SipBridge:
    """Accepts AudioSocket connections, runs the PBX applications, and has a task for each call."""

    def __init__(self, config: BridgeConfig) -> None:
        self._config = config
        self._calls: set[PbxCall] = set()
        self._without_uuid = UnservedConnections(_MAX_WITHOUT_UUID)
        self._with_uuid: set[AudioSocketCall] = set()
        self._limit = logs.LineLimit.outside_calls()
        self._log = _log.limited(self._limit)
        """The logger for connections that are not part of a call, with a limit on its lines."""
        self._group: asyncio.TaskGroup | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._at_once = asyncio.Event()
        if config.ari.enabled and config.ari.media == "rtp" and config.ari.format in ("auto", "g722"):
            rtp_codec("g722")  # a missing package is reported now, and loaded before the first call
        self._ari = AriApplication(config.ari, config.server, self._begin, self._limit) if config.ari.enabled else None
        switch = config.freeswitch
        self._freeswitch = FreeSwitchApplication(switch, self._begin, self._limit) if switch.enabled else None
        self.draining = False

    @property
    def n_calls(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ListeningPorts]:
        """Listen for the duration of the context; on leaving, drain. Raises ConfigError if a port cannot be bound."""
        where, http = self._config.audiosocket, self._config.http
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._group:
            listener = await _listen(
                "audiosocket", where.host, where.port,
                loop.create_server(
                    event_loop.or_refuse(lambda: CallerSocket(self._accept)), where.host, where.port,
                    reuse_address=True, start_serving=False,
                ),
            )
            try:
                http_server = await _listen("http", http.host, http.port, self._serve_http())
                applications = [each for each in (self._ari, self._freeswitch) if each is not None]
                running = [self._group.create_task(_keep_running(each)) for each in applications]
                try:
                    await listener.start_serving()
                    yield ListeningPorts(int(listener.sockets[0].getsockname()[1]), http_server.port)
                    listener.close()
                    await self._drain()
                finally:
                    for task in running:
                        task.cancel()
                    http_server.close()
                    await http_server.wait_closed()
            finally:
                listener.close()
                for call in list(self._calls):
                    call.end("drain")
                if self._limit.n_left_out:
                    self._log.summary("lines_left_out", of="connections that are not part of a call")

    def stop_at_once(self) -> None:
        """Do not wait for live calls: end a running drain, and skip one that has not begun."""
        self._at_once.set()

    async def _drain(self) -> None:
        """Refuse new calls, let live calls go on for up to `drain_s`, then end them."""
        self.draining = True
        for application in (self._ari, self._freeswitch):
            if application is not None:
                application.draining = True
        if not self._calls:
            return
        _log.info("draining", calls=len(self._calls), at_most_s=self._config.drain_s)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._empty, self._at_once)]
        try:
            await asyncio.wait(waits, timeout=self._config.drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for call in list(self._calls):
            call.end("drain")
        await self._empty.wait()

    def _accept(self, socket: CallerSocket) -> None:
        reason = None
        if self.draining:
            reason = "draining"
        elif not self._config.audiosocket.allows(socket.peer):
            reason = "not_allowed"
        elif self._is_full:
            reason = "busy"
        if reason is not None:
            self._refused(reason, self._log.bind(peer=socket.peer))
            socket.abort()
            return
        call = AudioSocketCall(socket, self._config, log=self._log, may_begin=self._may_begin)

        def drop() -> None:
            call.end("no_uuid", why=f"{_MAX_WITHOUT_UUID} connections have sent no UUID: are they Asterisk's?")
            socket.abort()

        self._without_uuid.add(call, socket.peer, drop)
        self._begin(call, lambda: self._closed(call, socket))

    @property
    def _is_full(self) -> bool:
        return len(self._with_uuid) >= self._config.audiosocket.max_calls

    def _may_begin(self, call: AudioSocketCall) -> bool:
        """Whether a call that has sent its UUID may go on. It counts against max_calls from now on."""
        self._without_uuid.remove(call)
        if self._is_full:
            self._refused("busy", call.log)
            return False
        self._with_uuid.add(call)
        return True

    def _refused(self, reason: str, log: EventLogger) -> None:
        metrics.REFUSED.labels(reason).inc()
        log.warning("refused", reason=reason, setting=_SETTINGS.get(reason))

    def _closed(self, call: AudioSocketCall, socket: CallerSocket) -> None:
        socket.abort()  # still open only if the task was cancelled before it ran
        self._without_uuid.remove(call)
        self._with_uuid.discard(call)

    def _begin(self, call: PbxCall, then: Callable[[], None] = lambda: None) -> None:
        assert self._group is not None
        self._calls.add(call)
        self._empty.clear()
        self._group.create_task(call.run()).add_done_callback(lambda _task: self._ended(call, then))

    def _ended(self, call: PbxCall, then: Callable[[], None]) -> None:
        then()
        self._calls.discard(call)
        if not self._calls:
            self._empty.set()

    async def _serve_http(self) -> HttpServer:
        where, ari = self._config.http, self._ari
        originate = Originator(self._config.ari.originate, ari.originate).answer if ari is not None else None
        return await serve_http(where.host, where.port, self._why_not_ready, originate)

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        reasons = [each.why_not_ready() for each in (self._ari, self._freeswitch) if each is not None]
        return "; ".join(reason for reason in reasons if reason is not None) or None


async def _keep_running(application: PbxApplication) -> None:
    """Run an application and restart it after a crash: an exception in the task group would end every call."""
    while True:
        try:
            await application.run()
        except Exception:
            _log.exception("application_crashed", application=type(application).__name__)
        await asyncio.sleep(_RESTART_PAUSE_S)


async def _listen(section: str, host: str, port: int, listening: Awaitable[Listener]) -> Listener:
    try:
        return await listening
    except OSError as error:
        why = f"cannot listen on {host}:{port}: {error.strerror or error}; set {section}.port or {section}.host"
        raise ConfigError(why) from error


async def serve(config: BridgeConfig, announce: Callable[[ListeningPorts], None] | None = None) -> None:
    """Run the bridge until SIGTERM or SIGINT, then drain and return. A second signal ends live calls at once."""
    bridge = SipBridge(config)
    with event_loop.stop_signals(bridge.stop_at_once) as stop:
        async with bridge.running() as listening:
            event_loop.settle()
            _log.info("ready", audiosocket_port=listening.audiosocket_port, http_port=listening.http_port)
            if announce is not None:
                announce(listening)
            await stop.wait()
    _log.info("stopped")


def run(config: BridgeConfig, announce: Callable[[ListeningPorts], None] | None = None) -> None:
    """Run `serve`, on uvloop if it is installed. Raises ConfigError if a port cannot be bound."""
    logs.setup(config.log)
    try:
        event_loop.run(serve(config, announce))
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
