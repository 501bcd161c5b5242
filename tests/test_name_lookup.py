"""How the event loop of our processes looks names up while a DNS server does not answer."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from telephony_tts.runtime import event_loop

N_REQUESTS = 200


class Dns:
    """Names that begin with "silent" have no answer until `answers` is set. "unknown" has none at all. The lookup of
    "broken" finds no memory."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()

    def __call__(self, host: str, port: int, *how: int) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.answers.wait(10)
        if host == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        if host == "broken":
            raise MemoryError
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    dns = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", dns)
    yield dns
    dns.answers.set()


@pytest.fixture(params=["uvloop", "asyncio"])
def new_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without uvloop."""
    if request.param == "asyncio":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


async def found(host: str) -> str:
    loop = asyncio.get_running_loop()
    ((*_, address),) = await loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
    return str(address[0])


pytestmark = pytest.mark.usefixtures("new_loop")


def test_many_requests_for_a_name_without_an_answer_leave_other_names_alone(dns: Dns) -> None:
    async def ask() -> None:
        waiting = [asyncio.create_task(found("silent.example")) for _ in range(N_REQUESTS)]
        others = [asyncio.create_task(found(f"silent{n}.example")) for n in range(40)]
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert await found("other.example") == "192.0.2.1"
        for task in waiting[::2]:
            task.cancel()
        await asyncio.wait(waiting[::2])
        assert dns.asked.count("silent.example") == 1 and not any(task.done() for task in others)
        dns.answers.set()
        async with asyncio.timeout(5):
            assert await asyncio.gather(*waiting[1::2], *others) == ["192.0.2.1"] * (N_REQUESTS // 2 + 40)
        assert await found("silent.example") == "192.0.2.1"
        assert dns.asked.count("silent.example") == 2, "what was found is not kept"

    event_loop.run(ask())


def test_each_request_for_an_unknown_name_gets_its_own_error(dns: Dns) -> None:
    async def ask() -> None:
        errors = await asyncio.gather(*(found("unknown") for _ in range(3)), return_exceptions=True)
        assert [error.args for error in errors if isinstance(error, socket.gaierror)] == [
            (socket.EAI_NONAME, "no such name")
        ] * 3
        assert len({id(error) for error in errors}) == 3 and dns.asked == ["unknown"]

    event_loop.run(ask())


def test_addresses_are_found_at_once_and_bad_names_are_errors() -> None:
    async def ask() -> None:
        n_threads = threading.active_count()
        assert [await found(host) for host in ("127.0.0.1", "::1")] == ["127.0.0.1", "::1"]
        assert threading.active_count() == n_threads
        with pytest.raises(OSError):
            await found("a" * 64 + ".example")

    event_loop.run(ask())


def test_a_lookup_that_finds_no_thread_is_an_error_and_the_next_one_may_succeed(
    dns: Dns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> None:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match=r"other.example: can't start new thread"):
                await found("other.example")
        async with asyncio.timeout(5):
            assert await found("other.example") == "192.0.2.1"

    event_loop.run(ask())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lookup_that_fails_in_any_way_is_an_error_for_all_who_wait(dns: Dns) -> None:
    """Pinned: the thread ended without an answer, and everyone who asked the same question waited for ever."""

    async def ask() -> None:
        waiting = [asyncio.create_task(found("broken")) for _ in range(3)]
        done, late = await asyncio.wait(waiting, timeout=5)
        for task in late:
            task.cancel()
        assert not late, "no answer"
        assert [str(task.exception()) for task in done] == ["broken: MemoryError"] * 3
        assert all(isinstance(task.exception(), OSError) for task in done) and dns.asked == ["broken"]
        assert await found("other.example") == "192.0.2.1"

    event_loop.run(ask())


LEAVES = """
import asyncio, socket, time
from telephony_tts.runtime import event_loop

socket.getaddrinfo = lambda *question: time.sleep(30)

async def main():
    asyncio.get_running_loop().create_task(asyncio.get_running_loop().getaddrinfo("silent.example", 80))
    await asyncio.sleep(0.1)

event_loop.run(main())
"""


@pytest.mark.slow
def test_a_process_does_not_wait_for_a_dns_server_at_its_end() -> None:
    begin_s = time.monotonic()
    subprocess.run([sys.executable, "-c", LEAVES], check=True, timeout=20)
    assert time.monotonic() - begin_s < 20
