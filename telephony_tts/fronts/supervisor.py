"""A server with several processes: starts a front for each core, keeps them running, and ends them.

It opens the listening socket, so that a port in use is an error at once, and it stays out of every call. A front that
dies is started again, after a pause if it dies again and again; its calls are lost, and what it had claimed is free.
SIGTERM goes to all fronts, which drain.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from telephony_tts.fronts import metrics_folder
from telephony_tts.fronts.claims import remove_claims_of
from telephony_tts.fronts.control_messages import HEADER, EngineOrder, FrontFailed, FrontOrder, FrontReady, packed
from telephony_tts.fronts.loads import Loads, name_of
from telephony_tts.fronts.restarts import RestartPauses
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import ConfigError, EngineError, TelephonyTTSError

_log = logs.get(__name__)
_KILL_S = 20.0
"""A front is killed so long after its drain should have ended."""

_ENGINE_END_S = 10.0
"""How long a shared engine may take to end. All fronts have ended before it."""

_FRONT_CHILD, _ENGINE_CHILD = (
    f"import sys; sys.path[:] = sys.argv[2:]; from telephony_tts.fronts.{module} import main; main(int(sys.argv[1]))"
    for module in ("front_process", "shared_engine_process")
)
"""They take the module path of this process. With `-m` Python would search the working directory first."""


def listen(host: str, port: int) -> list[socket.socket]:
    """The sockets of all addresses that `host` stands for, listening on one port. Raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and port == 0:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(event_loop.ACCEPT_QUEUE)
            sock.setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


async def supervise(
    configs: Sequence[Any], host: str, port: int, drain_s: float, runtime_folder: str | None,
    announce: Callable[[Any], None], shared_engine: tuple[str, Any] | None = None, *, reloads: bool = False,
) -> None:  # fmt: skip
    """Run a front for each of `configs` until SIGTERM or SIGINT, then let them drain. A second signal does not wait.

    `drain_s`: how long a drain may take. `shared_engine`: the name and the configuration of an engine that runs once,
    in a process of its own. With `reloads` the fronts have files to read again at SIGHUP. `announce` is called with
    what the first front serves, when all are ready.

    Raises OSError for an address that cannot be used, and the error of a front that cannot start.
    """
    sockets = listen(host, port)
    try:
        folder = RuntimeFolder.make(runtime_folder)
        try:
            loads = Loads(folder.loads, len(configs), create=True)
            try:
                supervisor = Supervisor(configs, sockets, folder, loads, drain_s, shared_engine)
                hangup = event_loop.on_hangup(supervisor.reload) if reloads else nullcontext()
                with event_loop.stop_signals(supervisor.stop_at_once) as stop, hangup:
                    await supervisor.run(stop, announce)
            finally:
                loads.close()
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"server.runtime_folder: {folder.path} cannot be used: {why}") from error
        finally:
            folder.remove()
    finally:
        for sock in sockets:
            sock.close()


class Supervisor:
    """See the module text."""

    def __init__(
        self,
        configs: Sequence[Any],
        sockets: Sequence[socket.socket],
        folder: RuntimeFolder,
        loads: Loads,
        drain_s: float,
        shared_engine: tuple[str, Any] | None,
    ) -> None:
        self._configs = configs
        self._sockets = sockets
        self._folder = folder
        self._loads = loads
        self._drain_s = drain_s
        self._shared_engine = shared_engine
        self._shared: dict[str, str] = {}
        """The address of the shared engine, by its name."""
        if shared_engine is not None:
            self._shared[shared_engine[0]] = f"unix:{folder.path / 'engine.sock'}"
        self._engine: Process | None = None
        self._engine_was_ready = False
        self._fronts_ended = asyncio.Event()
        self._running: dict[int, Process] = {}
        self._ready: dict[int, Any] = {}
        """What the first front of each number serves."""
        self._ready_now: set[int] = set()
        """The numbers of the fronts whose present process is ready."""
        self._all_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failure: TelephonyTTSError | None = None

    async def run(self, stop: asyncio.Event, announce: Callable[[Any], None]) -> None:
        """Keep all fronts running until `stop`. Raises the error of a front that cannot start."""
        _log.info("starting", processes=len(self._configs), port=self._sockets[0].getsockname()[1])
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(self._keep(number)) for number in range(len(self._configs))]
            engine = None if self._shared_engine is None else group.create_task(self._keep_engine(*self._shared_engine))
            waits = [group.create_task(event.wait()) for event in (stop, self._stopping, self._all_ready)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._all_ready.is_set() and not self._stopping.is_set():
                announce(self._ready[0])
                await asyncio.wait(waits[:2], return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            self._stop()
            _, late = await asyncio.wait(keepers, timeout=self._drain_s + _KILL_S)
            if late:
                _log.error("fronts_killed", fronts=sorted(self._running), why="they did not end after their drain")
                self._signal(signal.SIGKILL)
                await asyncio.wait(late)
            self._fronts_ended.set()
            if engine is not None:
                await self._end_engine(engine)
        if self._failure is not None:
            raise self._failure
        _log.info("stopped", processes=len(self._configs))

    def stop_at_once(self) -> None:
        """Another signal came: the fronts do not wait for live speech any more."""
        self._signal(signal.SIGTERM)

    def reload(self) -> None:
        """SIGHUP came: the fronts read their files again."""
        for number, process in self._running.items():
            if number in self._ready_now:  # one that starts reads them anyway, and would be ended by the signal
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGHUP)

    def _stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)
        for sock in self._sockets:
            sock.close()  # the fronts have copies

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Run a front, and another one when it has ended, until the server stops."""
        pauses = RestartPauses()
        generation = 0
        while not self._stopping.is_set():
            generation += 1
            name = name_of(number, generation)
            begun_ns = monotonic_ns()
            how, failed = await self._run_front(number, generation)
            self._remove_traces(number, name)
            if self._stopping.is_set():
                if how != "exit status 0":
                    _log.warning("front_ended", front=number, how=how)
                return
            if number not in self._ready:
                self._give_up(failed or FrontFailed(f"front {number} ended while it started: {how}", False))
                return
            pause_s = pauses.after(monotonic_ns() - begun_ns)
            _log.error("front_ended", front=number, how=how, again_in_s=pause_s, why=failed.message if failed else None)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    def _give_up(self, failed: FrontFailed) -> None:
        """A front cannot start, so the server cannot."""
        kind = ConfigError if failed.is_config else EngineError
        self._failure = self._failure or kind(failed.message)
        self._stopping.set()

    async def _keep_engine(self, name: str, config: Any) -> None:
        """Run the shared engine, and again when it has ended, until all fronts have ended."""
        pauses = RestartPauses()
        while not self._fronts_ended.is_set():
            begun_ns = monotonic_ns()
            how, failed = await self._run_engine(EngineOrder(config, name, self._shared[name]))
            if self._fronts_ended.is_set():
                return
            if not self._engine_was_ready:
                why = f"the process of the engine {name} ended while it started: {how}"
                self._give_up(failed or FrontFailed(why, False))
                return
            pause_s = pauses.after(monotonic_ns() - begun_ns)
            problem = failed.message if failed else None
            _log.error("engine_process_ended", engine=name, how=how, again_in_s=pause_s, why=problem)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._fronts_ended.wait(), pause_s)

    async def _end_engine(self, keeper: asyncio.Task[None]) -> None:
        """End the shared engine. Nobody needs it any more."""
        if self._engine is not None:
            with suppress(ProcessLookupError):
                self._engine.terminate()
        _, late = await asyncio.wait((keeper,), timeout=_ENGINE_END_S)
        if late and self._engine is not None:
            with suppress(ProcessLookupError):
                self._engine.kill()

    async def _run_engine(self, order: EngineOrder) -> tuple[str, FrontFailed | None]:
        """Run the process of the shared engine to its end. Returns how it ended, and why it could not start."""

        def begun(process: Process) -> None:
            self._engine = process
            _log.info("engine_started", engine=order.name, pid=process.pid)

        def is_ready(message: FrontReady) -> None:
            self._engine_was_ready = True

        try:
            return await _run(_ENGINE_CHILD, order, (), begun, is_ready)
        finally:
            self._engine = None

    async def _run_front(self, number: int, generation: int) -> tuple[str, FrontFailed | None]:
        """Run one front to its end. Returns how it ended, and why it could not start."""
        listening = tuple(sock.fileno() for sock in self._sockets)
        order = FrontOrder(
            self._configs[number], str(self._folder.path), number, generation, len(self._configs), listening,
            generation == 1, self._shared,
        )  # fmt: skip

        def begun(process: Process) -> None:
            self._running[number] = process
            _log.info("front_started", front=number, pid=process.pid, generation=generation)
            if self._stopping.is_set():
                process.terminate()

        def is_ready(message: FrontReady) -> None:
            self._ready_now.add(number)
            self._ready.setdefault(number, message.served)
            if len(self._ready) == len(self._configs):
                self._all_ready.set()

        try:
            return await _run(_FRONT_CHILD, order, listening, begun, is_ready)
        finally:
            self._ready_now.discard(number)
            self._running.pop(number, None)

    def _remove_traces(self, number: int, name: str) -> None:
        """Free what a front that has ended had claimed, and keep what it had counted."""
        self._loads.clear(number)
        self._folder.socket_of(name).unlink(missing_ok=True)
        try:
            n_calls = remove_claims_of(self._folder.calls, self._folder.claims_lock, name)
            metrics_folder.add_ended(self._folder.metrics, name)
        except OSError as error:
            _log.error("traces_left", front=number, why=error.strerror or str(error))
        else:
            if n_calls:
                _log.warning("claims_freed", front=number, calls=n_calls)


async def _run(
    program: str,
    order: FrontOrder | EngineOrder,
    fds: Sequence[int],
    begun: Callable[[Process], None],
    is_ready: Callable[[FrontReady], None],
) -> tuple[str, FrontFailed | None]:
    """Run a process to its end. It inherits `fds`. Returns how it ended, and why it could not start if it says so."""
    ours: socket.socket | None = None
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", program, str(theirs.fileno()), *sys.path,
                pass_fds=(theirs.fileno(), *fds), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        if ours is not None:
            ours.close()
        return f"it could not be started: {error.strerror or error}", None
    reader, writer = await asyncio.open_connection(sock=ours)
    begun(process)
    failed = None
    try:
        writer.write(packed(order))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (n,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                message = pickle.loads(await reader.readexactly(n))
                if isinstance(message, FrontReady):
                    is_ready(message)
                elif isinstance(message, FrontFailed):
                    failed = message
        return _how_it_ended(await process.wait()), failed
    finally:
        writer.transport.abort()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
