"""The bridge's process: start → ready → drain → stop."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sip_bridge import metrics
from sip_bridge.ari import AriApplication
from sip_bridge.audiosocket import CallerSocket
from sip_bridge.call import Call
from sip_bridge.config import Config
from sip_bridge.freeswitch import FreeSwitchApplication
from sip_bridge.health import HealthServer, serve_health
from sip_bridge.originate import Originator
from telephony_tts import logs
from telephony_tts.clock import NS_PER_MS, monotonic_ns
from telephony_tts.errors import ConfigError

Listener = TypeVar("Listener")

_log = logs.get(__name__)
_SAME_SIGNAL_NS = 300 * NS_PER_MS
_SETTINGS = {"not_allowed": "audiosocket.allowed", "busy": "audiosocket.max_calls"}
"""Which setting refuses a connection."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the bridge really listens (a configured port may be 0)."""

    audiosocket_port: int
    http_port: int


class AnyCall(Protocol):
    """A call, whichever way it came."""

    async def run(self) -> None: ...
    def end(self, reason: str) -> None: ...


class Bridge:
    """Takes Asterisk's calls, each with a task of its own."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._calls: set[AnyCall] = set()
        self._n_connections = 0
        self._group: asyncio.TaskGroup | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._at_once = asyncio.Event()
        self._ari = AriApplication(config.ari, config.server, self._begin) if config.ari.enabled else None
        switch = config.freeswitch
        self._freeswitch = FreeSwitchApplication(switch, self._begin) if switch.enabled else None
        self.draining = False

    @property
    def n_calls(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Listening]:
        """Listen for the duration of the context; on leaving, drain. Raises ConfigError where it cannot listen."""
        where, http = self._config.audiosocket, self._config.http
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as self._group:
            listener = await _listen(
                "audiosocket", where.host, where.port,
                loop.create_server(
                    lambda: CallerSocket(self._accept), where.host, where.port, reuse_address=True, start_serving=False
                ),
            )
            try:
                health = await _listen("http", http.host, http.port, self._serve_health())
                applications = [each for each in (self._ari, self._freeswitch) if each is not None]
                asking = [self._group.create_task(each.run()) for each in applications]
                try:
                    await listener.start_serving()
                    yield Listening(int(listener.sockets[0].getsockname()[1]), health.port)
                    listener.close()
                    await self._drain()
                finally:
                    for task in asking:
                        task.cancel()
                    health.close()
                    await health.wait_closed()
            finally:
                listener.close()
                for call in list(self._calls):
                    call.end("drain")

    def stop_at_once(self) -> None:
        """Do not wait for calls any longer, nor when the drain is still to begin."""
        self._at_once.set()

    async def _drain(self) -> None:
        """Take no new calls, let the others go on up to `drain_s`, then end them."""
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
        elif self._n_connections >= self._config.audiosocket.max_calls:
            reason = "busy"
        if reason is not None:
            metrics.REFUSED.labels(reason).inc()
            _log.warning("refused", reason=reason, peer=socket.peer, setting=_SETTINGS.get(reason))
            socket.abort()
            return
        self._n_connections += 1
        self._begin(Call(socket, self._config), lambda: self._closed(socket))

    def _closed(self, socket: CallerSocket) -> None:
        socket.abort()  # nothing is left of it, but where the task was cancelled before it began
        self._n_connections -= 1

    def _begin(self, call: AnyCall, then: Callable[[], None] = lambda: None) -> None:
        assert self._group is not None
        self._calls.add(call)
        self._empty.clear()
        self._group.create_task(call.run()).add_done_callback(lambda _task: self._ended(call, then))

    def _ended(self, call: AnyCall, then: Callable[[], None]) -> None:
        then()
        self._calls.discard(call)
        if not self._calls:
            self._empty.set()

    async def _serve_health(self) -> HealthServer:
        where, ari = self._config.http, self._ari
        originate = Originator(self._config.ari.originate, ari.originate).answer if ari is not None else None
        return await serve_health(where.host, where.port, self._why_not_ready, originate)

    def _why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        reasons = [each.why_not_ready() for each in (self._ari, self._freeswitch) if each is not None]
        return "; ".join(reason for reason in reasons if reason is not None) or None


async def _listen(section: str, host: str, port: int, listening: Awaitable[Listener]) -> Listener:
    try:
        return await listening
    except OSError as error:
        why = f"cannot listen on {host}:{port}: {error.strerror or error}; set {section}.port or {section}.host"
        raise ConfigError(why) from error


async def serve(config: Config, announce: Callable[[Listening], None] | None = None) -> None:
    """Run the bridge until SIGTERM or SIGINT, then drain and return. A second signal does not wait."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    bridge = Bridge(config)
    stopping_since_ns = 0

    def on_signal(name: str) -> None:
        nonlocal stopping_since_ns
        now_ns = monotonic_ns()
        if stop.is_set():
            if now_ns - stopping_since_ns < _SAME_SIGNAL_NS:
                return  # make and shells pass the group's signal on once more
            _log.warning("stopping_at_once", signal=name)
            bridge.stop_at_once()
        else:
            stopping_since_ns = now_ns
            _log.info("stopping", signal=name)
            stop.set()

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, signal.Signals(number).name)
        async with bridge.running() as listening:
            _log.info("ready", audiosocket_port=listening.audiosocket_port, http_port=listening.http_port)
            if announce is not None:
                announce(listening)
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    _log.info("stopped")


def run(config: Config, announce: Callable[[Listening], None] | None = None) -> None:
    """`serve` on uvloop where there is one. Raises ConfigError where it cannot listen."""
    logs.setup(config.log)
    try:
        if importlib.util.find_spec("uvloop") is not None:
            import uvloop

            uvloop.run(serve(config, announce))
        else:
            asyncio.run(serve(config, announce))
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
