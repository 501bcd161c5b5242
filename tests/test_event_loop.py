"""Signals that stop a process: which repeated signals count as one request to stop, and which as a second one."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from telephony_tts.runtime import event_loop

TERM, INT = signal.SIGTERM, signal.SIGINT


class Clock:
    now_ns = 5_000_000_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_loop, "monotonic_ns", clock)
    return clock


async def signalled(number: signal.Signals) -> None:
    """Send the signal to this process and let the event loop run often enough to handle it."""
    os.kill(os.getpid(), number)
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("run", [event_loop.run, asyncio.run])
@pytest.mark.parametrize(("first", "second"), [(TERM, TERM), (INT, INT), (TERM, INT)])
def test_a_signal_drains_and_the_next_stops_at_once(
    run: Callable[[Coroutine[Any, Any, None]], None], first: signal.Signals, second: signal.Signals, clock: Clock
) -> None:
    before = signal.getsignal(TERM), signal.getsignal(INT)
    hurried: list[int] = []

    async def main() -> None:
        with event_loop.stop_signals(lambda: hurried.append(clock.now_ns)) as stop:
            await asyncio.sleep(0)
            assert not stop.is_set()
            await signalled(first)
            assert stop.is_set()
            clock.now_ns += 299_999_999
            await signalled(second)
            assert hurried == [], "a signal that make or a shell passes on is not a second request"
            for _ in range(2):
                clock.now_ns += 1
                await signalled(second)
            assert hurried == [5_300_000_000, 5_300_000_001]

    run(main())
    assert (signal.getsignal(TERM), signal.getsignal(INT)) == before


def test_received_signals_are_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with event_loop.stop_signals(lambda: None):
            await signalled(INT)
            await signalled(TERM)
            clock.now_ns += 10**9
            await signalled(TERM)

    with caplog.at_level(logging.INFO):
        event_loop.run(main())
    told = [(record.levelname, record.getMessage(), vars(record)["fields"]) for record in caplog.records]
    assert told == [
        ("INFO", "stopping", {"signal": "SIGINT"}),
        ("WARNING", "stopping_at_once", {"signal": "SIGTERM"}),
    ]


def test_signal_handlers_are_removed_after_a_failure() -> None:
    before = signal.getsignal(TERM), signal.getsignal(INT)

    async def main() -> None:
        with event_loop.stop_signals(lambda: None):
            assert signal.getsignal(TERM) != before[0]
            raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        event_loop.run(main())
    assert (signal.getsignal(TERM), signal.getsignal(INT)) == before


def test_it_runs_on_uvloop_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[str] = []

    async def main() -> None:
        loops.append(type(asyncio.get_running_loop()).__mro__[1].__module__)

    event_loop.run(main())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    event_loop.run(main())
    assert loops[0].startswith("uvloop") and loops[1].startswith("asyncio")


def test_objects_loaded_at_start_are_frozen_for_the_garbage_collector() -> None:
    loaded: list[object] = [[]]
    event_loop.settle()
    later: list[object] = [[]]
    walked = {id(thing) for thing in gc.get_objects()}
    assert id(loaded) not in walked and id(later) in walked


def test_work_that_gives_way_leaves_the_switch_interval_as_it_was() -> None:
    def work() -> float:
        return sys.getswitchinterval()

    def fail() -> None:
        raise OSError("gone")

    with event_loop.quick_turns():
        before_s = sys.getswitchinterval()
        assert event_loop.giving_way(work) < before_s / 5
        with pytest.raises(OSError, match="gone"):
            event_loop.giving_way(fail)
        assert sys.getswitchinterval() == before_s


THREADS = """
import ctypes, os, sys, threading
from telephony_tts.runtime import event_loop

if "shared" in sys.argv:
    event_loop.share_one_arena()
library = ctypes.CDLL("libc.so.6")
meet = threading.Barrier(9)

def resident_kib():
    library.malloc_trim(0)
    with open("/proc/self/statm") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

def work():
    bytearray(8_000_000)  # a large block that is freed: from now on glibc keeps up to twice as much at a top
    pieces = [bytearray(50_000) for _ in range(80)]
    meet.wait()
    del pieces
    meet.wait()
    meet.wait()  # the thread goes on, as that of a pool does

before = resident_kib()
for _ in range(8):
    threading.Thread(target=work).start()
meet.wait()
meet.wait()
print(resident_kib() - before)
meet.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
                    reason="arenas are glibc's")  # fmt: skip
def test_threads_that_share_an_arena_give_back_what_they_no_longer_need() -> None:
    """Unless the operator has set the number of arenas."""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}

    def kept_kib(*arguments: str, **more: str) -> int:
        child = [sys.executable, "-c", THREADS, *arguments]
        ended = subprocess.run(child, env=environment | more, capture_output=True, text=True, check=True, timeout=60)
        return int(ended.stdout)

    shared = kept_kib("shared")
    assert shared < 4_000
    assert kept_kib() > shared + 8_000
    assert kept_kib("shared", MALLOC_ARENA_MAX="64") > shared + 8_000
