"""The program of one front. Its parent is `supervisor`.

It is the server of `app.serving.serve` on sockets that it inherits. It ends like that server: at SIGTERM it drains. It
does the same when the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from telephony_tts.app.serving import Served, import_slow_modules, serve
from telephony_tts.fronts.control_messages import FrontFailed, FrontOrder, FrontReady, packed, read_order
from telephony_tts.fronts.front import Front
from telephony_tts.fronts.loads import Loads
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError

_log = logs.get(__name__)


def main(fd: int) -> None:
    """Serve what the first message on the socket `fd` says, until SIGTERM. Exits with 1 if that is not possible."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    with socket.socket(fileno=fd) as control:
        order: FrontOrder | None = read_order(control)
        if order is None:
            return
        logs.setup(order.config.log, front=order.number)
        with telling_failure(control):
            _run(order, control)


@contextmanager
def telling_failure(control: socket.socket) -> Iterator[None]:
    """Tell the supervisor why this process cannot start, and exit with 1."""
    try:
        yield
    except (TelephonyTTSError, OSError, BaseExceptionGroup) as error:
        first = _first(error)
        if not isinstance(first, TelephonyTTSError | OSError):
            raise
        told = first.message if isinstance(first, TelephonyTTSError) else str(first)
        _log.error("front_failed", why=told)
        control.setblocking(True)
        with suppress(OSError):
            control.sendall(packed(FrontFailed(told, isinstance(first, ConfigError))))
        sys.exit(1)


def _run(order: FrontOrder, control: socket.socket) -> None:
    event_loop.share_one_arena()
    folder = RuntimeFolder(Path(order.folder))
    loads = Loads(folder.loads, order.n_fronts)
    try:
        front = Front(folder, loads, order.number, order.generation, frozenset(order.shared_engines))
        import_slow_modules()
        with event_loop.quick_turns():
            event_loop.run(_serve(order, control, front))
    finally:
        loads.close()
        folder.close()


async def _serve(order: FrontOrder, control: socket.socket, front: Front) -> None:
    def announce(served: Served) -> None:
        control.sendall(packed(FrontReady(served)))

    with ending_with_parent(control):
        sockets = [socket.socket(fileno=fd) for fd in order.sockets]
        await serve(
            order.config, announce, front, sockets, listens_at_once=order.listens_at_once, shared=order.shared_engines
        )


@contextmanager
def ending_with_parent(control: socket.socket) -> Iterator[None]:
    """Inside the context this process gets SIGTERM when its supervisor is gone."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)

    def on_control() -> None:
        """The supervisor says nothing more: this is its end."""
        loop.remove_reader(control)
        _log.error("supervisor_gone", why="the server drains and ends")
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(control, on_control)
    try:
        yield
    finally:
        loop.remove_reader(control)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
