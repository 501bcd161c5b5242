"""One connection of Asterisk: a flood is read in slices, and the loop runs other calls in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import virtual_loop

from sip_bridge.audiosocket.connection import CallerSocket
from sip_bridge.audiosocket.frames import AudioFrame, AudioSocketFrame, UuidFrame


class PretendTransport:
    def __init__(self) -> None:
        self.is_reading = True
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None:
        self.is_aborted = True


def feed(sock: CallerSocket, data: bytes) -> int:
    """One read of the loop; returns how many bytes of `data` were read."""
    buffer = sock.get_buffer(-1)
    n = min(len(buffer), len(data))
    buffer[:n] = data[:n]
    sock.buffer_updated(n)
    return n


def connected(on_items: Callable[[list[AudioSocketFrame], int], None]) -> tuple[CallerSocket, PretendTransport]:
    transport = PretendTransport()
    sock = CallerSocket(lambda accepted: accepted.listen(on_items))
    sock.connection_made(cast(asyncio.Transport, transport))
    return sock, transport


def test_a_read_that_fills_the_buffer_lets_the_loop_run_before_the_next() -> None:
    async def main() -> None:
        heard: list[AudioSocketFrame] = []
        sock, transport = connected(lambda items, _ns: heard.extend(items))
        data = b"\x01\x00\x10" + bytes(16) + (b"\x10\x01\x40" + bytes(320)) * 200
        while data:
            n = feed(sock, data)
            assert transport.is_reading is (n < len(sock.get_buffer(-1)))
            data = data[n:]
            await asyncio.sleep(0)
            assert transport.is_reading
        assert len(heard) == 201 and isinstance(heard[0], UuidFrame)
        assert all(isinstance(item, AudioFrame) for item in heard[1:])

    virtual_loop.run(main())


def test_a_crash_of_the_listener_closes_only_this_connection() -> None:
    async def main() -> None:
        def fails(items: list[AudioSocketFrame], now_ns: int) -> None:
            raise RuntimeError("a fault")

        sock, transport = connected(fails)
        feed(sock, b"\x01\x00\x10" + bytes(16))
        assert transport.is_aborted

    virtual_loop.run(main())
