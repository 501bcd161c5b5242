"""One WebSocket used synchronously: order, closing, floods, and peers that do not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from log_lines import lines
from stage import run, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from telephony_tts.transport.connection import CallConnection, DialledConnection

Handler = Callable[[CallConnection], Awaitable[None]]

pytestmark = pytest.mark.alone


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[int]:
    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, CallConnection)
        await handler(connection)

    async with serve(
        handle, "127.0.0.1", 0, compression=None, create_connection=CallConnection, close_timeout=0.5
    ) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def client(port: int) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://127.0.0.1:{port}/", compression=None, proxy=None, close_timeout=0.5) as socket:
        yield socket


def text(payload: str, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    return Frame(opcode, payload.encode(), fin).serialize(mask=True)


def test_messages_come_in_order_also_those_from_before_anyone_listened() -> None:
    async def main() -> None:
        heard: list[tuple[bytes, bool]] = []

        async def handler(connection: CallConnection) -> None:
            await asyncio.sleep(0.05)
            connection.listen(lambda payload, is_text: heard.append((payload, is_text)), lambda flag: None)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            for n in range(3):
                await socket.send(str(n))
            await socket.send(b"\x00")
            await socket.send(["fragm", "ented"])
            await until(lambda: len(heard) == 5, "all messages")
        assert heard == [(b"0", True), (b"1", True), (b"2", True), (b"\x00", False), (b"fragmented", True)]

    run(main)


def test_an_end_is_sent_at_once_and_nothing_is_delivered_after_it() -> None:
    async def main() -> None:
        heard: list[bytes] = []

        async def handler(connection: CallConnection) -> None:
            def on_message(payload: bytes, is_text: bool) -> None:
                heard.append(payload)
                connection.send_now(b"last word", True)
                connection.end(4404, "é" * 100)
                connection.end(1011, "again")
                connection.send_now(b"too late", True)

            connection.listen(on_message, lambda flag: None)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            socket.transport.write(text("one") + text("two") + text("three"))
            assert await socket.recv() == "last word"
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert (socket.close_code, socket.close_reason) == (4404, "é" * 61)
        assert heard == [b"one"]

    run(main)


def test_a_callback_that_breaks_ends_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handler(connection: CallConnection) -> None:
            def divide(payload: bytes, is_text: bool) -> None:
                connection.send_now(b"%d" % (10 // int(payload)), True)

            connection.listen(divide, lambda flag: None)
            await connection.left

        async with served(handler) as port, client(port) as good, client(port) as bad:
            # In the middle of a flood, while the rest is held: the connection must not hang.
            bad.transport.write(text("0") + text("1") * 5000)
            with pytest.raises(ConnectionClosed):
                while True:
                    await bad.recv()
            assert bad.close_code == 1011
            await good.send("5")
            assert await good.recv() == "2"

    run(main)
    crash = next(record for record in caplog.records if record.message == "message_crashed")
    assert crash.exc_info is not None and crash.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize(
    "farewell", [Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True), b"\x81\x02hi"], ids=["close", "unmasked"]
)
def test_a_connection_has_left_at_the_close_frame_not_at_the_end_of_the_socket(farewell: bytes) -> None:
    """A close frame, or bytes that are not a WebSocket frame. Then the peer keeps its socket open and does nothing."""

    async def main() -> None:
        left_s: list[float] = []

        async def handler(connection: CallConnection) -> None:
            await connection.left
            left_s.append(time.monotonic())

        async with served(handler) as port, client(port) as socket:
            socket.transport.write(farewell)
            sent_s = time.monotonic()
            socket.transport.pause_reading()
            await until(lambda: left_s, "the server has not noticed", 0.4)
            assert left_s[0] - sent_s < 0.3
            socket.transport.abort()

    run(main)


def test_a_flood_leaves_time_for_other_calls() -> None:
    async def main() -> None:
        n_heard = 0

        async def handler(connection: CallConnection) -> None:
            def busy(payload: bytes, is_text: bool) -> None:
                nonlocal n_heard
                n_heard += 1
                end_ns = time.perf_counter_ns() + 100_000
                while time.perf_counter_ns() < end_ns:
                    pass

            connection.listen(busy, lambda flag: None)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            socket.transport.write(text("") * 5000)
            gaps: list[float] = []
            begin_s = time.monotonic()
            while n_heard < 5000:
                before_s = time.monotonic()
                await asyncio.sleep(0)
                gaps.append(time.monotonic() - before_s)
            # Half a second of work. One piece of the flood is 170 messages, 17 ms; as one lump it is 500 ms.
            assert sorted(gaps)[-3] < 0.06, f"the loop stood still for {max(gaps) * 1000:.0f} ms"
            # Half of the time is left for the engines' threads, which need the interpreter too.
            assert time.monotonic() - begin_s > 0.95, "half a second of work takes a second"

    run(main)


def test_a_dialled_peer_has_the_fragment_limit_too() -> None:
    async def main() -> None:
        closed: list[tuple[int | None, str | None]] = []

        async def peer(socket: ServerConnection) -> None:
            begin = Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=False)
            socket.transport.write(begin + Frame(Opcode.CONT, b"", fin=False).serialize(mask=False) * 10_000)
            await socket.wait_closed()
            closed.append((socket.close_code, socket.close_reason))

        async with serve(peer, "127.0.0.1", 0, compression=None) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(
                f"ws://127.0.0.1:{port}/", compression=None, proxy=None, create_connection=DialledConnection
            ) as connection:
                assert isinstance(connection, DialledConnection)
                heard: list[bytes] = []
                connection.listen(lambda payload, is_text: heard.append(payload), lambda flag: None)
                await asyncio.wait_for(connection.left, 5)
                assert not heard and not connection._fragments
        assert closed == [(1009, "more than 4096 fragments in a message")]

    run(main)


def test_a_full_socket_is_reported_and_so_is_its_room_again() -> None:
    async def main() -> None:
        flags: list[bool] = []
        connections: list[CallConnection] = []

        async def handler(connection: CallConnection) -> None:
            connections.append(connection)
            connection.watch_slow_reader(5)
            connection.listen(lambda payload, is_text: None, flags.append)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            socket.transport.pause_reading()
            await until(lambda: connections, "the handler")
            n_sent = 0
            while not flags and n_sent < 20_000:
                connections[0].send_now(b"x" * 1000, False)
                n_sent += 1
                await asyncio.sleep(0)
            assert flags == [False]
            socket.transport.resume_reading()
            for _ in range(n_sent):
                await socket.recv()
            assert flags == [False, True]
            assert connections[0]._slow_timer is None

    run(main)


def test_a_peer_that_reads_nothing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: all frames that were due were written to the aborted connection, with a dozen log lines."""

    async def main() -> None:
        async def handler(connection: CallConnection) -> None:
            connection.listen(lambda payload, is_text: None, lambda flag: None)
            for _ in range(20_000):
                connection.send_now(b"x" * 1000, False)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            socket.transport.pause_reading()
            await until(lambda: lines(caplog), "it is dropped")
            socket.transport.abort()

    run(main)
    (line,) = lines(caplog)
    assert caplog.messages == ["reads_nothing"] and 1 << 20 < line["unsent_bytes"] < (1 << 20) + 70_000


def test_a_larger_send_buffer_can_be_allowed_for_a_peer_that_reads() -> None:
    """A FreeSWITCH leg may send again more at once than other legs ever have unsent."""

    async def main() -> None:
        async def handler(connection: CallConnection) -> None:
            connection.listen(lambda payload, is_text: None, lambda flag: None)
            connection.max_unsent_bytes = 4 << 20
            for n in range(3):
                connection.send_now(bytes([n]) * (1 << 20), False)
            await connection.left

        async with served(handler) as port, client(port) as socket:
            got = [await socket.recv() for _ in range(3)]
            assert got == [bytes([n]) * (1 << 20) for n in range(3)]

    run(main)


@pytest.mark.parametrize("how", ["slow", "endless"])
def test_a_peer_that_does_not_read_is_dropped(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def handler(connection: CallConnection) -> None:
            connection.watch_slow_reader(0.1 if how == "slow" else 60)
            connection.listen(lambda payload, is_text: None, lambda flag: None)
            n_sent = 0
            while not connection.left.done() and n_sent < 50_000:
                if how == "endless" or not connection.paused:
                    connection.send_now(b"x" * 1000, False)
                    n_sent += 1
                await asyncio.sleep(0)
            assert n_sent < (4_000 if how == "endless" else 2_000), "more was sent than can be unread"
            await connection.left
            done.set()

        async with served(handler) as port, client(port) as socket:
            socket.transport.pause_reading()
            await asyncio.wait_for(done.wait(), 5)
            socket.transport.abort()

    run(main)
    assert any(record.message in ("slow_reader", "reads_nothing") for record in caplog.records)
