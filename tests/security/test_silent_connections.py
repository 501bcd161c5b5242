"""Connections that take a place and say nothing, or little (slowloris): each ends after a time, whatever it does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path

import pytest
from raw_peer import raw_peer
from rig import Tones, run, serving
from server_settings import transport_settings

from telephony_tts.engines.catalog import Catalog
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.slow

OPEN_S = 0.5
WITHIN_S = 6.0
"""Far below the defaults of the libraries, which are 10 s and 60 s."""
UPGRADE = b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: "


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.transport.server._OPEN_TIMEOUT_S", OPEN_S)


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dribble: bytes = b"") -> None:
    """The server closes this connection in time, while the peer sends a byte now and then."""
    begin_s = time.monotonic()
    reading = asyncio.ensure_future(reader.read())
    try:
        for byte in dribble:
            if reading.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.wait((reading,), timeout=0.03)
        await asyncio.wait((reading,), timeout=WITHIN_S)
        assert reading.done(), "the connection is still open"
        assert time.monotonic() - begin_s < WITHIN_S
        if (error := reading.exception()) is not None:
            assert isinstance(error, ConnectionError), error
    finally:
        reading.cancel()
        writer.close()


@pytest.mark.parametrize("dribble", [b"", b"\x16", b"\x16\x03\x01" + bytes(400)], ids=["nothing", "a byte", "slowly"])
def test_a_tls_handshake_that_does_not_come_to_its_end(dribble: bytes, certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        async with serving(tls=context) as rig:
            await ends(*await asyncio.open_connection("127.0.0.1", rig.port), dribble)

    run(main)


def test_a_tls_handshake_at_the_second_address(certificate: tuple[Path, Path]) -> None:
    """The library listens at the first address, and asyncio, whose default is a minute, at the others."""

    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        catalog = Catalog([Tones()])
        await catalog.start()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        try:
            async with Server(transport_settings(tls=context), catalog).running(sockets=sockets):
                await ends(*await asyncio.open_connection(*sockets[1].getsockname()))
        finally:
            for each in sockets:
                each.close()
            await catalog.close()

    run(main)


@pytest.mark.parametrize("head", [b"", UPGRADE + b"a" * 400, b"POST /v1/speak HTTP/1.1\r\n" + b"X: y\r\n" * 80])
def test_a_head_that_does_not_come_to_its_end(head: bytes) -> None:
    async def main() -> None:
        async with serving() as rig:
            await ends(*await asyncio.open_connection("127.0.0.1", rig.port), head)

    run(main)


def test_a_hundred_silent_connections_keep_no_bot_out() -> None:
    async def main() -> None:
        async with serving(calls=2) as rig:
            silent = [await asyncio.open_connection("127.0.0.1", rig.port) for _ in range(100)]
            for _, writer in silent[::2]:
                writer.write(UPGRADE)
            async with rig.bot(audio="none") as bot:
                await bot.say("Hello.", "t")
                await bot.event("done", turn="t")
            for reader, writer in silent:
                await ends(reader, writer)

    run(main)


def test_a_websocket_that_never_answers_a_ping_is_dropped() -> None:
    async def main() -> None:
        async with serving(ping_interval_s=0.3) as rig, raw_peer(rig.port, "/v1/stream?audio=none") as peer:
            await peer.read_to_end(WITHIN_S)

    run(main)
