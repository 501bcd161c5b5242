"""How the server connects to a peer that has a name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from server_settings import transport_settings
from stage import new_call
from websockets.asyncio.server import ServerConnection, serve

from telephony_tts.transport.bot_dial import _connect
from telephony_tts.transport.connection import Dial

pytestmark = pytest.mark.slow


def found(host: str, port: int) -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))


@pytest.mark.parametrize("addresses", [("127.0.0.77", "127.0.0.1"), ("127.0.0.1", "127.0.0.77")])
def test_each_address_of_a_name_is_tried_and_the_peer_is_told_the_name(addresses: tuple[str, str]) -> None:
    hosts: list[str] = []

    async def greet(peer: ServerConnection) -> None:
        assert peer.request is not None
        hosts.append(peer.request.headers["Host"])

    async def main() -> None:
        async with serve(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            loop = asyncio.get_running_loop()
            healthy = loop.getaddrinfo

            async def look_up(host: str, port: int, **how: Any) -> list[tuple[Any, ...]]:
                if host != "bot.example":
                    return await healthy(host, port, **how)
                return [found(address, port) for address in addresses]

            loop.getaddrinfo = look_up  # type: ignore[assignment, method-assign]
            async with Dial(f"ws://bot.example:{port}/bot"):
                pass
        assert hosts == [f"bot.example:{port}"]

    asyncio.run(main())


def test_the_error_is_that_of_the_last_address() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def look_up(host: str, port: int, **how: Any) -> list[tuple[Any, ...]]:
            return [found("127.0.0.77", port), found("127.0.0.78", port)]

        loop.getaddrinfo = look_up  # type: ignore[assignment, method-assign]
        with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.78"):
            await Dial("ws://bot.example:9/bot")

    asyncio.run(main())


def test_the_bot_is_dialled_again_if_the_machine_has_no_thread_for_it_at_first() -> None:
    """Pinned: the call crashed."""

    async def greet(peer: ServerConnection) -> None:
        await peer.wait_closed()

    async def main() -> None:
        async with serve(greet, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            loop = asyncio.get_running_loop()
            healthy, failures = loop.getaddrinfo, iter([RuntimeError("can't start new thread")])

            async def look_up(host: str, port: int, **how: Any) -> list[tuple[Any, ...]]:
                for failure in failures:
                    raise failure
                return await healthy(host, port, **how)

            loop.getaddrinfo = look_up  # type: ignore[assignment, method-assign]
            call = new_call(media=False)
            connection = await _connect(call, transport_settings(bot_url=f"ws://127.0.0.1:{port}/bot"))
            assert connection is not None and not call.over
            await connection.close()

    asyncio.run(main())
