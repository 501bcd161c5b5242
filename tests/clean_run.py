"""Runs a test's coroutine in an event loop of its own and checks that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import uvloop

PATIENCE = float(os.environ.get("TESTS_PATIENCE", "1"))
"""So many times as long may each wait take. `run_all.py` sets it for the tests that judge no clock: they only get the
time that others leave them. Where a test runs by itself it is 1."""
TIMEOUT_S = 8.0 * PATIENCE
"""The default timeout of a test's wait."""


def run(main: Callable[[], Coroutine[Any, Any, None]], *, plain_loop: bool = False, within_s: float = 40) -> None:
    """Run `main`. Afterwards none of its sockets, tasks and timers may be left.

    It runs on uvloop, as our processes do. With `plain_loop` it runs on asyncio's loop, whose timers can be counted.
    """
    before = _sockets()

    async def bounded() -> None:
        async with asyncio.timeout(within_s * PATIENCE):
            await main()
        for _ in range(3):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left: {left}"
        if plain_loop:
            timers = [t for t in asyncio.get_running_loop()._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
            own = [t for t in timers if "Timeout" not in repr(t)]
            assert not own, f"timers left: {own}"

    with asyncio.Runner(loop_factory=None if plain_loop else uvloop.new_event_loop) as runner:
        try:
            runner.run(bounded())
        except BaseExceptionGroup as group:
            raise _first(group) from None
    after = _sockets()
    left = [_told(fd) for fd in after if after[fd] != before.get(fd)]
    assert len(after) <= len(before), f"sockets left open: {left}"


def _first(error: BaseException) -> BaseException:
    """The first failure, without the exception groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def count_sockets() -> int:
    return len(_sockets())


def _sockets() -> dict[int, str]:
    """The open sockets: descriptor and the kernel's name. Those to fork servers (`forked_process`) stay open, so they
    are left out. No other socket is of their type."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            if name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(fd))) as copy:
                    if copy.type != socket.SOCK_SEQPACKET:
                        found[int(fd)] = name
    return found


def _told(fd: int) -> str:
    """The two addresses of a socket, to find out which code opened it."""
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            ends = [copy.getsockname()]
            with suppress(OSError):
                ends.append(copy.getpeername())
            return f"{copy.family.name} {ends}"
    except OSError as error:
        return str(error)


async def until(true: Callable[[], object], what: str, within_s: float = TIMEOUT_S) -> None:
    """Wait for a condition by polling it every 5 ms."""
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s, f"not reached: {what}"
        await asyncio.sleep(0.005)
