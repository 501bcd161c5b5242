"""A server beside other fronts that cannot be told anything, or that cannot be given a connection."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clean_run import run
from listener_faults import FullOnce
from log_lines import lines
from server_settings import transport_settings
from stage import new_call, started, until

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api.asgi import http_server
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.runtime import event_loop
from telephony_tts.transport.fronts import FrontLoad, MovedSocket
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.slow


class OtherFront:
    """All other fronts, as a server sees them: one, which always has less to do."""

    name = "0.1"

    def __init__(self) -> None:
        self.is_broken = False
        self.told = FrontLoad()
        self.n_given = 0

    def publish(self, load: FrontLoad) -> None:
        if self.is_broken:
            raise ValueError("a bug of ours")
        self.told = load

    def publish_use(self, use: Mapping[str, Mapping[str, float]]) -> None: ...

    def others(self) -> FrontLoad:
        return FrontLoad(is_able=True)

    def use_of_others(self) -> list[Mapping[str, Mapping[str, float]]]:
        return []

    def owner(self, call_id: str) -> str | None:
        return None

    claim = owner

    def release(self, call_id: str) -> None: ...

    def better(self) -> str:
        return "1.1"

    async def move(self, to: str, sock: Any, moved: Any, *, may_stay: bool) -> None:
        self.n_given += 1
        sock.close()


@asynccontextmanager
async def beside(fronts: Any, **settings: Any) -> AsyncIterator[Server]:
    catalog = Catalog([FakeEngine()])
    await catalog.start()
    server = Server(transport_settings(drain_s=0.1, **settings), catalog, fronts)
    server.http = http_server(server)
    async with server.running():
        yield server
    await catalog.close()


def test_a_load_that_cannot_be_told_ends_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: the server drained and ended."""

    async def main() -> None:
        others = OtherFront()
        async with beside(others) as server:
            ends, stays = new_call(call="ends"), new_call(call="stays")
            for call in (ends, stays):
                await started(server.registry, call)
            others.is_broken = True
            await until(lambda: lines(caplog, "load_not_published"), "it is told every 100 ms")
            ends.finish(1000, "over")
            await until(lambda: server.registry.calls() == [stays], "the end of the other call")
            assert not stays.over and not server.draining
            others.is_broken = False
            await until(lambda: others.told.n_calls == 1, "it is told again")
            stays.finish(1000, "over")

    run(main, within_s=15)
    assert len(lines(caplog, "load_not_published")) <= 25, "limited, as the lines of all that belongs to no call"


UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
GET = b"GET /v1/voices HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize(("request_", "status"), [(UPGRADE, b"101"), (GET, b"200")], ids=["websocket", "http"])
def test_a_connection_that_cannot_be_moved_to_spread_the_load_is_served_here(
    request_: bytes, status: bytes, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: without a descriptor for the copy of its socket it was closed."""

    def refuse(_fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        others = OtherFront()
        async with beside(others) as server:
            if is_full:
                monkeypatch.setattr(os, "dup", refuse)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request_)
            async with asyncio.timeout(5):
                line = await reader.readline()
            assert line.startswith(b"HTTP/1.1 " + status) if is_full else line == b""
            assert others.n_given == (0 if is_full else 1)
            writer.close()
            await writer.wait_closed()

    run(main, within_s=15)


@pytest.mark.parametrize("fault", ["epoll is full", "its connection is lost at once"])
def test_a_connection_of_another_front_that_cannot_be_taken_is_closed_and_not_counted(fault: str) -> None:
    """Pinned: the load of this front stayed one too high, and libuv could end the process."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with beside(OtherFront()) as server:
            ours, theirs = socket.socketpair()
            if fault == "epoll is full":
                loop.epoll = FullOnce(loop.epoll)
            else:

                async def connect(make: Callable[[], object], _sock: socket.socket) -> None:
                    make()
                    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

                loop.connect_accepted_socket = connect
            with pytest.raises(OSError, match="Cannot allocate memory"):
                await server.adopt(ours, MovedSocket("leg", 1, ("127.0.0.1", 1), ("127.0.0.1", 2), b"", UPGRADE))
            assert ours.fileno() == -1 and theirs.recv(1) == b""
            theirs.close()
            await asyncio.sleep(0)
            assert server._n_sockets == 0

    event_loop.run(main())


@pytest.mark.parametrize(("key", "answer"), [("gone", b"call_taken"), ("acme", b"ready")])
def test_a_connection_whose_key_was_removed_while_it_moved_does_not_become_one_without_limits(
    key: str, answer: bytes
) -> None:
    """Pinned: it got into the calls of others."""

    async def main() -> None:
        acme = Key("acme", digest_of(b"acme-token"))
        async with beside(OtherFront(), keys=KeyRing((), [acme])) as server:
            call = new_call(call="c", media=False)
            call.admit_bot(acme)
            await started(server.registry, call)
            ours, theirs = socket.socketpair()
            head = UPGRADE.replace(b"/v1/stream", b"/v1/stream?call=c")
            place = ("127.0.0.1", 1), ("127.0.0.1", 2)
            await server.adopt(ours, MovedSocket("leg", 1, *place, b"", head, may_begin=True, key=key))
            theirs.setblocking(False)
            async with asyncio.timeout(5):
                assert answer in await asyncio.get_running_loop().sock_recv(theirs, 4096)
            theirs.close()
            call.finish(1000, "over")

    run(main, within_s=15)
