"""The event loop of a process that serves: uvloop's where there is one, and the signals that end it."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from telephony_tts import logs
from telephony_tts.clock import NS_PER_MS, monotonic_ns

_log = logs.get(__name__)
_SAME_SIGNAL_NS = 300 * NS_PER_MS
_SWITCH_S = 0.0005
"""Threads hold the interpreter for 5 ms at a time by default, a quarter of a frame; a call must not wait so long for an
engine, nor an engine for a call."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on uvloop, or on asyncio's own loop. Raises what it raises."""
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def settle() -> None:
    """To be called when all is loaded, which then stays: a collector that walks through all of it stops every call
    meanwhile, for 12 ms in the server and 8 in the bridge before there is one (docs/experiments.md)."""
    gc.collect()
    gc.freeze()


@contextmanager
def quick_turns() -> Iterator[None]:
    """Threads give the interpreter to each other often while the context lasts."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


@contextmanager
def stop_signals(stop_at_once: Callable[[], None]) -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets while the context lasts. Each further signal calls `stop_at_once`."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    stopping_since_ns = 0

    def on_signal(name: str) -> None:
        nonlocal stopping_since_ns
        now_ns = monotonic_ns()
        if stop.is_set():
            if now_ns - stopping_since_ns < _SAME_SIGNAL_NS:
                return  # make and shells pass the group's signal on once more
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
