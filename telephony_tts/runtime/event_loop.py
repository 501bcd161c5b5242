"""The event loop of a server process: uvloop if it is installed, memory, and the signals that stop it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.util
import os
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, monotonic_ns
from telephony_tts.runtime.name_lookup import Found, NameLookups

_log = logs.get(__name__)
_outside_log = _log.limited(logs.LineLimit.outside_calls())
_SAME_SIGNAL_NS = 300 * NS_PER_MS
_SWITCH_S = 0.0005
"""The interpreter's switch interval. The default of 5 ms is a quarter of a frame: too long for a call to wait for an
engine thread, or for an engine to wait for the event loop."""

_SHORT_SWITCH_S = 0.00005
_M_ARENA_MAX = -8
"""Of mallopt() in glibc's malloc.h."""

ACCEPT_QUEUE = 1024
"""So many connections may wait to be accepted. With more the system drops attempts, and clients try again after 1, 3
and 7 s."""

Result = TypeVar("Result")
MakeProtocol = Callable[..., asyncio.BaseProtocol]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end on uvloop, or on asyncio's loop without uvloop. Raises what it raises."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, or of asyncio without it. It looks names up as `NameLookups` does."""
    base: type[asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        base = uvloop.Loop
    return _looking_up(base)()


def _looking_up(base: type[asyncio.AbstractEventLoop]) -> type[asyncio.AbstractEventLoop]:
    """A class of loops that look names up as `NameLookups` does."""

    class Loop(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self._lookups = NameLookups(self)
            self.epoll = _epoll_of(self)

        def close(self) -> None:
            super().close()
            if self.epoll is not None:
                self.epoll.close()

        async def getaddrinfo(self, host: Any, port: Any, **how: int) -> Found:
            return await self._lookups.find(host, port, **how)

    return Loop


def _epoll_of(loop: Any) -> select.epoll | None:
    """The epoll by which libuv waits for the sockets of uvloop's `loop`. None of another loop or system."""
    if not hasattr(loop, "_get_backend_id") or not hasattr(select, "epoll"):
        return None
    return select.epoll.fromfd(os.dup(loop._get_backend_id()))


async def within(limit_s: float, awaited: Awaitable[Result]) -> Result:
    """What is awaited. After `limit_s` it is cancelled, and TimeoutError raised.

    What came while this process could not run counts, even if the limit was over by then. `asyncio.timeout` drops it:
    timers come before it.
    """
    future = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait((future,), timeout=limit_s)
        if not future.done():
            await asyncio.sleep(0)
        if not future.done():
            raise TimeoutError
        return future.result()
    finally:
        future.cancel()


class _Refusal(asyncio.Protocol):
    """Closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's is no subclass of it


_REFUSAL = _Refusal()
"""One for all connections: there may be no memory for another one."""


class _Admission(asyncio.Protocol):
    """Lets `protocol` have its connection if epoll takes the socket.

    When libuv gives a socket to epoll, and the system has no memory for that, it ends the process with SIGABRT. It
    accepts that epoll has the socket already. A listener that has TLS would give it the socket before this is called.
    Connections that we open, and one that is read again after a pause, are not protected either.
    """

    def __init__(self, protocol: asyncio.BaseProtocol, epoll: select.epoll) -> None:
        self._protocol, self._epoll = protocol, epoll
        # websockets looks for it here when it chooses a subprotocol.
        self.protocol: object = getattr(protocol, "protocol", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            self._epoll.register(transport.get_extra_info("socket").fileno(), 0)
            transport.set_protocol(self._protocol)
            self._protocol.connection_made(transport)
        except Exception:  # uvloop would neither read from the connection nor close it
            _tell_refusal()
            _REFUSAL.connection_made(transport)


@contextmanager
def watched(sock: socket.socket) -> Iterator[None]:
    """Let epoll have a socket that inside the context becomes a connection of the running loop. See `_Admission`.

    Raises OSError if epoll does not take it. If the context fails, epoll has it no longer: another process may still
    hold the file, and then epoll would tell of it after our end was closed.
    """
    epoll = getattr(asyncio.get_running_loop(), "epoll", None)
    if epoll is None:
        yield
        return
    epoll.register(sock.fileno(), 0)
    try:
        yield
    except BaseException:
        with suppress(OSError, ValueError):  # it is closed
            epoll.unregister(sock.fileno())
        raise


def _tell_refusal() -> None:
    """Log the exception that is being handled, if there is memory for it."""
    with suppress(Exception):
        _outside_log.exception("connection_not_taken")


def or_refuse(make: MakeProtocol) -> MakeProtocol:
    """`make`, the protocol factory of a listener. If it raises, or the system cannot watch one more socket, only that
    connection is closed. Without this, uvloop would let no further connection in, or end the process.
    """

    def make_or_refuse(*args: Any, **kwargs: Any) -> asyncio.BaseProtocol:
        try:
            protocol = make(*args, **kwargs)
            epoll = getattr(asyncio.get_running_loop(), "epoll", None)
            return protocol if epoll is None else _Admission(protocol, epoll)
        except Exception:
            _tell_refusal()
            return _REFUSAL

    return make_or_refuse


def settle() -> None:
    """Exclude all current objects from garbage collection. Call it when everything is loaded.

    A collection over these objects would stop every call, for 12 ms in the server and 8 ms in the bridge
    (docs/experiments.md).
    """
    gc.collect()
    gc.freeze()


def share_one_arena() -> None:
    """Let all threads of this process allocate from one arena of glibc. Call it before threads are started.

    By default each thread has an arena of its own, which keeps the most memory that the thread ever needed
    (docs/torture.md). MALLOC_ARENA_MAX and GLIBC_TUNABLES overrule this. Does nothing without glibc.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, 1)


@contextmanager
def quick_turns() -> Iterator[None]:
    """Set a short switch interval of the interpreter inside the context."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def giving_way(work: Callable[[], Result]) -> Result:
    """Do long work of Python code, in a thread beside the event loop, so that the loop waits as little as possible.

    uvloop asks for the interpreter at each timer and each socket, and then waits for the switch interval: with 50 calls
    0.5 ms each time are more than there is (docs/experiments.md).
    """
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SHORT_SWITCH_S)
    try:
        return work()
    finally:
        sys.setswitchinterval(before_s)


@contextmanager
def on_hangup(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at each SIGHUP inside the context. Outside it the signal ends the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextmanager
def stop_signals(stop_at_once: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets inside the context. Each further signal calls `stop_at_once`."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stopping_since_ns = 0

    def on_signal(name: str) -> None:
        nonlocal stopping_since_ns
        now_ns = monotonic_ns()
        if stop.is_set():
            if now_ns - stopping_since_ns < _SAME_SIGNAL_NS:
                return  # make and shells forward the signal of the group once more
            _log.warning("stopping_at_once", signal=name)
            stop_at_once()
        else:
            stopping_since_ns = now_ns
            _log.info("stopping", signal=name)
            stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    try:
        for number in numbers:
            loop.add_signal_handler(number, on_signal, signal.Signals(number).name)
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
