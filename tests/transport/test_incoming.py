"""Who gets a connection, and when."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from telephony_tts.transport.incoming import IncomingConnection, OnePerRound

GET = b"GET /x HTTP/1.1\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that keeps its protocol and whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.is_read = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Receiver(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


class Http:
    def owns(self, path: str) -> bool:
        return path == "/x"

    def connection(self, take_back: object, lost: object) -> asyncio.Protocol:
        return Receiver()

    async def close(self) -> None: ...


def incoming(begin_http: OnePerRound) -> tuple[IncomingConnection, Wire]:
    wire = Wire()
    connection = IncomingConnection(Receiver, Http(), begin_http, 10.0, protocol=None)
    connection.connection_made(wire)
    return connection, wire


def test_one_is_called_at_once_and_the_others_in_a_round_each() -> None:
    async def use() -> None:
        rounds = OnePerRound()
        called: list[tuple[int, int]] = []
        n_rounds = 0
        for number in range(3):
            rounds.call(lambda number=number: called.append((number, n_rounds)))
        for _ in range(4):
            await asyncio.sleep(0)
            n_rounds += 1
        rounds.call(lambda: called.append((3, n_rounds)))
        assert called == [(0, 0), (1, 0), (2, 1), (3, 4)], called

    asyncio.run(use())


def test_one_that_fails_does_not_stop_the_others() -> None:
    async def use() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        rounds = OnePerRound()
        called: list[int] = []
        rounds.call(partial(called.append, 1))
        rounds.call(partial(int, "no number"))
        rounds.call(partial(called.append, 2))
        for _ in range(4):
            await asyncio.sleep(0)
        assert called == [1, 2]

    asyncio.run(use())


def test_an_http_request_that_waits_is_not_read_and_gets_all_its_bytes() -> None:
    async def use() -> None:
        begin = OnePerRound()
        (first, _), (second, wire), (third, other) = (incoming(begin) for _ in range(3))
        first.data_received(GET)
        second.data_received(GET[:5])
        second.data_received(GET[5:] + b"body")
        assert wire.protocol is None and not wire.is_read
        third.data_received(b"GET /stream HTTP/1.1\r\n\r\n")  # it is not HTTP's, so it does not wait
        assert other.protocol.received == b"GET /stream HTTP/1.1\r\n\r\n" and other.is_read
        await asyncio.sleep(0)
        assert wire.protocol.received == GET + b"body" and wire.is_read

    asyncio.run(use())


def test_a_connection_that_is_lost_while_it_waits_is_not_handed_over() -> None:
    async def use() -> None:
        begin = OnePerRound()
        (first, _), (second, wire) = incoming(begin), incoming(begin)
        first.data_received(GET)
        second.data_received(GET)
        second.connection_lost(None)
        await asyncio.sleep(0)
        assert wire.protocol is None

    asyncio.run(use())
