"""How the torture judges HTTP requests that join a call: what it must not take for a broken promise, each beside the
broken promise that is like it."""

from __future__ import annotations

import asyncio
import time

import pytest

from torture import http_doors
from torture import violations as v
from torture.http_doors import HttpClient
from torture.joined_oracle import JoinedOracle, JoinedRequest
from torture.letters import FrameReader
from torture.surroundings import Surroundings
from torture.violations import Stops, Tally

MS = 1_000_000


class Watched:
    """A call of HTTP requests and its telephone. Times are in milliseconds from the begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, delay_ms: int = 0) -> None:
        monkeypatch.setattr(FrameReader, "letter", lambda self, payload: payload[:1].decode())
        self.tally = Tally()
        self.oracle = JoinedOracle(self.tally, Stops(), call=None, delay_ns=delay_ms * MS)

    def asks(self, at_ms: float, letter: str, n_chars: int) -> JoinedRequest:
        return self.oracle.asked(letter, n_chars, _at(at_ms))

    def hears(self, at_ms: float, letter: str, n: int) -> None:
        for _ in range(n):
            self.oracle.frame(letter.encode() * 160, _at(at_ms))

    def ends(self, at_ms: float, request: JoinedRequest) -> None:
        request.status, request.ended_ns, request.response_ms = 200, _at(at_ms), request.n_chars * 60

    def clears(self, at_ms: float) -> None:
        self.oracle.media_clear(_at(at_ms))

    def found(self) -> list[str]:
        self.oracle.finish(is_torn=True)
        return sorted({violation.check for violation in self.tally.violations})


def _at(ms: float) -> int:
    return round((1000 + ms) * MS)


@pytest.mark.parametrize(
    ("is_cleared", "again_ms", "found"),
    [(True, 250, []), (True, 430, [v.DONE]), (False, 250, [v.DONE, v.ORDER])],
    ids=["sent_again", "sent_again_too_late", "not_dropped"],
)
def test_speech_may_come_again_behind_its_response(
    monkeypatch: pytest.MonkeyPatch, is_cleared: bool, again_ms: int, found: list[str]
) -> None:
    """The client of the next request leaves. That drops what the telephone has of both, and the first is sent again:
    by when the telephone would have played it."""
    call = Watched(monkeypatch)
    first = call.asks(0, "a", 5)
    call.hears(1, "a", 15)  # until 301 ms
    call.ends(100, first)
    second = call.asks(101, "d", 20)
    call.hears(110, "d", 2)  # until 341 ms
    second.left_ns = _at(140)
    if is_cleared:
        call.clears(145)
    call.hears(again_ms, "a", 5)
    assert call.found() == found


@pytest.mark.slow
def test_a_client_that_leaves_while_it_connects_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is made and it is told to leave in the same round of the event loop."""

    async def use() -> None:
        came, lost = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            while await reader.read(1000):
                pass
            lost.set()
            writer.close()

        connect = asyncio.open_connection

        async def connect_and_leave(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            connected = await connect(host, port)
            asking.cancel()
            return connected

        monkeypatch.setattr(http_doors.asyncio, "open_connection", connect_and_leave)
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = HttpClient(Surroundings(server.sockets[0].getsockname()[1], Tally(), Stops()))
            asking = asyncio.ensure_future(client.ask("/", {}))
            done, _ = await asyncio.wait((asking,), timeout=2)
            client.disconnect()
            assert done and asking.cancelled(), "it still waits for its response"
            await asyncio.wait_for(came.wait(), 2)
            await asyncio.wait_for(lost.wait(), 2)

    asyncio.run(use())


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_time_of_an_answer_has_no_stops_in_it(monkeypatch: pytest.MonkeyPatch, is_stopped: bool) -> None:
    """The head of the answer comes at once, and its first piece when the time is over."""
    monkeypatch.setattr(http_doors, "_ANSWER_S", 0.3)

    async def use() -> bytes:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n2")
            await asyncio.sleep(0.6)
            writer.write(b"\r\nab\r\n")
            writer.close()
            over.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            stops = Stops()
            client = HttpClient(Surroundings(server.sockets[0].getsockname()[1], Tally(), stops))
            try:
                assert await client.ask("/", {}) == (200, b"")
                if is_stopped:
                    now_ns = time.monotonic_ns()
                    stops.add(now_ns, now_ns + 5_000 * MS)
                return await client.chunk()
            finally:
                await over.wait()
                client.disconnect()
                await asyncio.sleep(0.05)

    if is_stopped:
        assert asyncio.run(use()) == b"ab"
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(use())
