"""The program of an engine that runs once for all fronts: it serves the engine on a Unix socket of the runtime folder.

Its parent is `supervisor`. At SIGTERM, or when the supervisor is gone, it finishes what it speaks.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

from telephony_tts.app.engines import local_engine
from telephony_tts.app.serving import unless_stopped
from telephony_tts.engines import remote
from telephony_tts.engines.api import Engine
from telephony_tts.fronts.control_messages import EngineOrder, FrontReady, packed, read_order
from telephony_tts.fronts.front_process import ending_with_parent, telling_failure
from telephony_tts.runtime import event_loop, logs

if TYPE_CHECKING:
    from telephony_tts.engines.remote import EngineServer


def main(fd: int) -> None:
    """Serve what the first message on the socket `fd` says, until SIGTERM. Exits with 1 if that is not possible."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    control = socket.socket(fileno=fd)
    order: EngineOrder | None = read_order(control)
    if order is None:
        return
    logs.setup(order.config.log, engine=order.name)
    with telling_failure(control), event_loop.quick_turns():
        event_loop.run(_serve(order, local_engine(order.config, order.name), control))


async def _serve(order: EngineOrder, engine: Engine, control: socket.socket) -> None:
    server = remote.serve_engine(engine)
    at_once = asyncio.Event()
    with event_loop.stop_signals(at_once.set) as stop, ending_with_parent(control):
        try:
            await server.listen(remote.parse_address(order.address))
            if not await unless_stopped(stop, engine.start()):
                return
            event_loop.settle()
            server.engine_is_loaded()
            control.sendall(packed(FrontReady(None)))
            await stop.wait()
            await unless_stopped(at_once, _drain(server, order.config.server.drain_s))
        finally:
            try:
                await server.close()
            finally:
                await engine.close()


async def _drain(server: EngineServer, within_s: float) -> None:
    await server.drain(within_s)
