"""A listener that cannot take one connection lets the next ones in."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from listener_faults import FullOnce, answer, failing_once
from log_lines import lines
from rig import run
from server_settings import transport_settings

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime import event_loop
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("address", [0, 1])
def test_a_connection_that_cannot_be_taken_is_closed_and_the_next_one_is_served(
    address: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: uvloop let no more connections in. The library listens at the first address, and we at the others."""

    async def main() -> None:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [sock.getsockname()[1] for sock in sockets]
        async with Server(transport_settings(), Catalog([FakeEngine()])).running(sockets=sockets):
            monkeypatch.setattr(Server, "_websocket", failing_once(Server._websocket))
            assert await answer(ports[address]) == b""
            for port in ports:
                assert (await answer(port)).startswith(b"HTTP/1.1 200")
        for sock in sockets:
            sock.close()

    run(main)
    assert len(lines(caplog, "connection_not_taken")) == 1


@pytest.mark.parametrize("address", [0, 1])
def test_a_socket_that_epoll_does_not_take_is_closed_and_the_next_one_is_served(
    address: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: libuv ended the process with SIGABRT, and all its calls."""

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [sock.getsockname()[1] for sock in sockets]
        async with Server(transport_settings(), Catalog([FakeEngine()])).running(sockets=sockets):
            loop.epoll = FullOnce(loop.epoll)
            assert await answer(ports[address]) == b""
            for port in ports:
                assert (await answer(port)).startswith(b"HTTP/1.1 200")
        for sock in sockets:
            sock.close()

    event_loop.run(main())
    assert len(lines(caplog, "connection_not_taken")) == 1


def test_a_connection_that_fails_at_its_beginning_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """uvloop neither reads from it nor closes it."""

    class Failing(asyncio.Protocol):
        connection_made = failing_once(asyncio.Protocol.connection_made)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(event_loop.or_refuse(Failing), "127.0.0.1", 0)
        assert await answer(server.sockets[0].getsockname()[1]) == b""
        server.close()
        await server.wait_closed()

    event_loop.run(main())
    assert len(lines(caplog, "connection_not_taken")) == 1
