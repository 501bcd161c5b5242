"""A connection that another front gave away, on a socket pair: what it has read, and what it takes along."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from telephony_tts.transport.front_connection import FrontConnection
from telephony_tts.transport.fronts import MovedSocket

HEAD = b"GET /media/twilio HTTP/1.1\r\nHost: x\r\n\r\n"


def sent(opcode: Opcode, payload: bytes) -> bytes:
    return Frame(opcode, payload).serialize(mask=True, extensions=[])


async def nothing(_connection: object) -> None:
    """A handler that has not come to its connection yet."""


@asynccontextmanager
async def moved(read: bytes, unread: bytes = b"") -> AsyncIterator[tuple[FrontConnection, socket.socket]]:
    """A leg that came with these bytes, and the peer's end of its socket."""
    came = MovedSocket("leg", 1, ("127.0.0.1", 80), ("127.0.0.1", 4000), read, HEAD, unread)
    library: Any = SimpleNamespace(handler=nothing, handler_tasks=set())
    connection = FrontConnection(ServerProtocol(state=OPEN), library, moved=came)
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
        await asyncio.wait(library.handler_tasks)
        yield connection, theirs
        transport.abort()
        await connection.connection_lost_waiter


def test_a_leg_that_moves_on_before_it_is_listened_to_takes_all_bytes_along() -> None:
    async def main() -> None:
        async with moved(b"read here", b"unread") as (connection, peer):
            peer.sendall(b", late")
            await asyncio.sleep(0.05)
            sock, on = await connection.take_away(lambda _relay: None, 1)
            peer.sendall(b"later")
            with sock:
                assert on.read + on.unread == b"read hereunread, late" and sock.recv(9) == b"later"

    asyncio.run(main())


def test_a_peer_that_has_left_is_heard_before_its_end_counts() -> None:
    """Its messages, its close and the end of its socket are there before anyone listens."""

    async def main() -> None:
        heard: list[bytes] = []
        messages = sent(Opcode.TEXT, b"start") + sent(Opcode.PING, b"p") + sent(Opcode.TEXT, b"stop")
        async with moved(messages, sent(Opcode.TEXT, b"late")) as (connection, peer):
            peer.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.05)
            assert not connection.left.done()
            connection.listen(lambda payload, is_text: heard.append(payload), lambda flag: None)
            assert heard == [b"start", b"stop", b"late"]
            await asyncio.wait_for(connection.left, 1)
            assert peer.recv(99) in (b"", b"\x88\x00"), "the other front has answered the ping"
        heard.clear()
        async with moved(messages + sent(Opcode.CLOSE, b"\x03\xe8")) as (connection, _):
            connection.listen(lambda payload, is_text: heard.append(payload), lambda flag: None)
            assert heard == [b"start", b"stop"] and connection.left.done()

    asyncio.run(main())


def test_of_a_peer_that_has_left_a_closed_socket_moves_with_what_it_said() -> None:
    async def main() -> None:
        start = sent(Opcode.TEXT, b"start")
        async with moved(start) as (connection, peer):
            connection.listen(lambda payload, is_text: None, lambda flag: None)
            peer.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(connection.left, 1)
            sock, on = await connection.take_away(lambda _relay: None, 1)
            with sock:
                assert on.read == start and sock.recv(1) == b""

    asyncio.run(main())
