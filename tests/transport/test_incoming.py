"""Who gets a connection, and when."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from telephony_tts.runtime import event_loop
from telephony_tts.transport.fronts import MovedSocket
from telephony_tts.transport.incoming import IncomingConnection, OnePerRound
from telephony_tts.transport.unserved import UnservedConnections

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
    connection = IncomingConnection(Receiver, Http(), begin_http, 10.0, UnservedConnections(), protocol=None)
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


# ------------------------------------------------------------------ on real sockets

UPGRADE = b"GET /stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class Later:
    """Calls nothing until it is told to, as `OnePerRound` while many requests arrive."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call(self, function: Callable[[], object]) -> None:
        self.waiting.append(function)


class Chosen(Receiver):
    """A receiver that is made for one of the two sides, and sees the end of what it is sent."""

    def __init__(self, side: str, all_of_them: list[Chosen]) -> None:
        super().__init__()
        self.side = side
        self.n_ends = 0
        all_of_them.append(self)

    def eof_received(self) -> None:
        self.n_ends += 1


class Sides(Http):
    """The HTTP side, and the WebSocket side as `websocket`. `chosen` has each one that got a connection."""

    def __init__(self) -> None:
        self.chosen: list[Chosen] = []

    def connection(self, take_back: object, lost: object) -> asyncio.Protocol:
        return Chosen("http", self.chosen)

    def websocket(self) -> asyncio.Protocol:
        return Chosen("websocket", self.chosen)


class Connected:
    """A connection on a socket pair. `peer` is the other end."""

    def __init__(self, is_moved_away: bool = False) -> None:
        self.sides, self.later = Sides(), Later()
        self.ours, self.peer = socket.socketpair()
        self._route = (lambda connection, head: True) if is_moved_away else None
        self.incoming: Any = None

    async def open(self, read: bytes = b"") -> None:
        """`read`: another front has read these bytes of it."""
        moved = MovedSocket("request", 1, ("127.0.0.1", 80), ("127.0.0.1", 4000), read) if read else None
        later: Any = self.later
        make = partial(
            IncomingConnection, self.sides.websocket, self.sides, later, 10.0, UnservedConnections(), protocol=None,
            route=self._route, moved=moved,
        )  # fmt: skip
        _, self.incoming = await asyncio.get_running_loop().connect_accepted_socket(make, self.ours)

    async def ended(self) -> bytes | None:
        """What the peer still gets before the end; None if the connection does not end."""
        self.peer.setblocking(False)
        got = b""
        try:
            async with asyncio.timeout(5):
                while piece := await asyncio.get_running_loop().sock_recv(self.peer, 1 << 20):
                    got += piece
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        return got


LOOPS = pytest.mark.parametrize("new_loop", [event_loop.new_loop, asyncio.SelectorEventLoop])


def run_on(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@LOOPS
@pytest.mark.parametrize("is_moved", [True, False])
def test_a_half_closed_request_that_waits_goes_to_the_side_that_was_chosen(
    new_loop: Callable[[], asyncio.AbstractEventLoop], is_moved: bool
) -> None:
    """Pinned: its end came while it waited, and the WebSocket side answered it. uvloop reads on there, because a
    connection of another front is paused before the reading begins."""

    async def main() -> None:
        connected = Connected()
        with connected.peer as peer:
            if not is_moved:
                peer.sendall(POST)
            peer.shutdown(socket.SHUT_WR)
            await connected.open(POST if is_moved else b"")
            await asyncio.sleep(0.05)
            assert connected.sides.chosen == [], "it waits"
            (begin,) = connected.later.waiting
            begin()
            await asyncio.sleep(0.05)
            (chosen,) = connected.sides.chosen
            assert (chosen.side, chosen.received, chosen.n_ends) == ("http", POST, 1)
            assert await connected.ended() == b""

    run_on(new_loop, main)


@LOOPS
@pytest.mark.parametrize("request_", [POST, UPGRADE])
def test_a_half_closed_request_that_is_moved_on_takes_its_end_along(
    new_loop: Callable[[], asyncio.AbstractEventLoop], request_: bytes
) -> None:
    async def main() -> None:
        connected = Connected(is_moved_away=True)
        with connected.peer as peer:
            peer.shutdown(socket.SHUT_WR)
            await connected.open(request_)
            await asyncio.sleep(0.05)
            taken = await connected.incoming.take_away(lambda _relay: None, 1.0)
            assert connected.sides.chosen == [] and taken is not None
            sock, moved = taken
            with sock:
                assert moved.read == request_ and sock.recv(1) == b""

    run_on(new_loop, main)


@LOOPS
def test_a_connection_that_cannot_be_taken_away_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: without a descriptor for the copy it stayed open, unread and unanswered, for ever."""

    def no_descriptor(_fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        connected = Connected(is_moved_away=True)
        with connected.peer:
            await connected.open(UPGRADE)
            connected.incoming.stop_reading()
            with monkeypatch.context() as full, pytest.raises(OSError, match="Too many open files"):
                full.setattr(os, "dup", no_descriptor)
                await connected.incoming.take_away(lambda _relay: None, 1.0)
            assert await connected.ended() == b""
            assert connected.incoming.transport is None

    run_on(new_loop, main)


@LOOPS
@pytest.mark.parametrize(("request_", "side"), [(POST, "http"), (UPGRADE, "websocket")])
def test_a_connection_that_cannot_be_taken_away_but_may_stay_is_served_here(
    new_loop: Callable[[], asyncio.AbstractEventLoop], request_: bytes, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(_fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def route(incoming: IncomingConnection, _head: object) -> bool:
        if not incoming.stays:
            incoming.stop_reading(may_stay=True)
        return not incoming.stays

    async def main() -> None:
        connected = Connected()
        connected._route = route
        with connected.peer as peer:
            peer.sendall(request_)
            await connected.open()
            await asyncio.sleep(0.05)
            assert not connected.sides.chosen and not connected.later.waiting
            with monkeypatch.context() as full:
                full.setattr(os, "dup", no_descriptor)
                assert await connected.incoming.take_away(lambda _relay: None, 1.0) is None
            for begin in connected.later.waiting:
                begin()
            peer.sendall(b"more")
            peer.shutdown(socket.SHUT_WR)
            assert await connected.ended() == b""
            (chosen,) = connected.sides.chosen
            assert (chosen.side, chosen.received, chosen.n_ends) == (side, request_ + b"more", 1)

    run_on(new_loop, main)


@LOOPS
def test_a_peer_that_reads_nothing_does_not_hold_up_its_move_for_ever(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: the rest of an earlier response was waited for without a limit."""
    monkeypatch.setattr("telephony_tts.transport.incoming.FLUSH_S", 0.05, raising=False)

    async def main() -> None:
        connected = Connected(is_moved_away=True)
        with connected.peer:
            await connected.open(UPGRADE)
            connected.incoming.stop_reading()
            connected.incoming.transport.write(bytes(8_000_000))
            moving = asyncio.create_task(connected.incoming.take_away(lambda _relay: None, 1.0))
            await asyncio.wait([moving], timeout=5)
            assert moving.done(), "it waits"
            assert isinstance(moving.exception(), TimeoutError)
            rest = await connected.ended()
            assert rest is not None and len(rest) < 8_000_000, "the socket is closed, with all its copies"

    run_on(new_loop, main)


def test_a_rest_that_is_read_in_time_goes_before_the_move() -> None:
    async def main() -> None:
        connected = Connected(is_moved_away=True)
        with connected.peer:
            await connected.open(UPGRADE)
            connected.incoming.stop_reading()
            connected.incoming.transport.write(bytes(2_000_000))
            ended = asyncio.create_task(connected.ended())
            taken = await connected.incoming.take_away(lambda _relay: None, 1.0)
            assert taken is not None and not ended.done(), "the peer's connection is open"
            taken[0].close()
            assert await ended == bytes(2_000_000)

    run_on(event_loop.new_loop, main)
