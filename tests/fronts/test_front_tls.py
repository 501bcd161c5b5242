"""TLS connections of a server with several processes. They cannot be moved, so their bytes are relayed."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, create_connection
from typing import Any

import pytest
from front_server import FrontServer, front_server
from media_peer import START, Peer
from rig import Bot, correlation, decoded, rendering, run, until
from twilio_peer import TwilioPeer
from websockets.asyncio.client import connect
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_in_thread

pytestmark = pytest.mark.timed

SENTENCE = "Your parcel left the depot on Tuesday."


@pytest.fixture(scope="module")
def server(short_of_module: Path) -> Iterator[FrontServer]:
    cert, key = short_of_module / "cert.pem", short_of_module / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", str(key), "-out", str(cert)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with front_server(
        short_of_module, f"server.tls.cert={cert}", f"server.tls.key={key}", "server.slow_reader_s=1",
        "server.drain_s=20",
    ) as server:  # fmt: skip
        assert server.address.startswith("wss://")
        yield server


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def dialled(url: str, **how: Any) -> connect:
    return connect(url, ssl=unchecked(), proxy=None, max_queue=None, compression=None, **how)


def test_a_media_leg_with_tls_joins_the_bot_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        bot = Bot(await dialled(server.url(call="CA1")))
        await bot.event("ready")
        owner = server.owner("CA1")
        assert owner is not None
        with server.stopped(owner):
            socket = await dialled(server.url("/media/twilio"))
        peer = TwilioPeer(socket, "CA1")
        await peer.start(plan="gold")
        for digit in "123456789*0#":
            await peer.press(digit)
        await bot.event("call")
        for digit in "123456789*0#":
            assert (await bot.event("dtmf"))["digit"] == digit
        for turn in ("a", "b"):
            await bot.say(SENTENCE, turn)
            await bot.event("done", turn=turn)
        n_samples = len(rendering([SENTENCE]))
        assert correlation(decoded(peer.played), rendering([SENTENCE])) > 0.98
        assert correlation(decoded(peer.played)[-n_samples // 160 * 160 :], rendering([SENTENCE])) > 0.5
        await bot.say(SENTENCE * 3, "c")
        await bot.event("started", turn="c")
        await bot.send({"type": "clear"})
        await bot.event("cleared", turn="c")
        await until(lambda: peer.n_clears == 1, "the clear")
        await bot.send({"type": "close"})
        assert (await peer.gone())[0] == 1000
        assert (await bot.gone())[0] == 1000
        await peer.aclose()
        await bot.aclose()

    run(main)


def test_a_bot_with_tls_joins_the_call_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        socket = await dialled(server.url("/media/native"))
        peer = Peer(socket)
        await peer.tell(START)
        await until(lambda: server.owner("c1") is not None, "the call")
        owner = server.owner("c1")
        assert owner is not None
        with server.stopped(owner):
            joining = asyncio.ensure_future(dialled(server.url(call="c1")))
            await asyncio.sleep(0.3)
        bot = Bot(await joining)
        await bot.event("ready")
        await bot.say(SENTENCE, "a")
        await bot.event("done", turn="a")
        assert correlation(decoded(peer.frames), rendering([SENTENCE])) > 0.98
        await bot.send({"type": "close"})
        await bot.gone()
        assert await peer.closed() == 1000
        await bot.aclose()

    run(main)


def test_a_relayed_bot_that_only_sends_stays(server: FrontServer) -> None:
    """The call's owner decides. The relay would end a peer that reads nothing after a second."""

    left = ExitStack()

    def joined() -> ClientConnection:
        own = create_connection(("127.0.0.1", server.port))
        own.setsockopt(SOL_SOCKET, SO_RCVBUF, 32_768)  # otherwise the kernel takes megabytes for it
        how = {"ping_interval": None, "close_timeout": 0.1, "compression": None}
        return left.enter_context(connect_in_thread(server.url(call="c3"), sock=own, ssl=unchecked(), **how))

    async def main() -> None:
        peer = Peer(await dialled(server.url("/media/native")))
        await peer.tell({**START, "call": "c3"})
        await until(lambda: server.owner("c3") is not None, "the call")
        owner = server.owner("c3")
        assert owner is not None
        with server.stopped(owner):
            joining = asyncio.ensure_future(asyncio.to_thread(joined))
            await asyncio.sleep(0.3)
        bot = await joining

        def ask() -> None:
            """Ask for 3.5 MB of answers."""
            for n in range(24_000):
                bot.send(json.dumps({"type": "ping", "id": "x" * 120}))
                if n % 150 == 0:
                    time.sleep(0.03)

        def read_to_warning() -> dict[str, Any]:
            while (event := json.loads(bot.recv(8)))["type"] != "warning":
                pass
            return dict(event)

        try:
            await asyncio.to_thread(ask)
            await asyncio.to_thread(bot.send, json.dumps({"type": "say", "text": SENTENCE}))
            wanted = rendering([SENTENCE])
            await until(lambda: len(peer.frames) >= len(wanted) // 160, "the speech")
            assert correlation(decoded(peer.frames), wanted) > 0.98
            warning = await asyncio.to_thread(read_to_warning)
            assert warning["code"] == "events_lost" and warning["lost_events"] > 0
            # The relay ends when the owner ends the connection, though the relay reads nothing of that.
            await asyncio.to_thread(ask)
            pid = server.pids[server.other(owner)]
            n_before = _n_connections(pid)
            await peer.socket.close()
            await until(lambda: _n_connections(pid) < n_before, "the relay is over", 10)
        finally:
            bot.socket.close()
            await asyncio.to_thread(left.close)
            await peer.socket.close()

    run(main, within_s=180)  # 48,000 messages, each through four processes, take up to a minute on a busy machine


def test_a_relayed_page_is_judged_by_the_address_it_came_to(server: FrontServer) -> None:
    """A page of our own host may use the server, and another one may not, also if its connection was relayed."""

    async def main() -> None:
        bot = Bot(await dialled(server.url(call="P1")))
        await bot.event("ready")
        owner = server.owner("P1")
        assert owner is not None
        for origin, status in ((f"https://127.0.0.1:{server.port}", "call_taken"), ("https://evil.example", "403")):
            with server.stopped(owner):
                joining = asyncio.ensure_future(dialled(server.url(call="P1"), origin=origin))
                await asyncio.sleep(0.3)
            if status == "403":
                with pytest.raises(Exception, match="403"):
                    await joining
            else:
                socket = await joining
                assert json.loads(await socket.recv())["code"] == status
                await socket.close()
        await bot.aclose()

    run(main)


def test_a_relayed_peer_that_reads_nothing_is_dropped(server: FrontServer) -> None:
    async def main() -> None:
        bot = Bot(await dialled(server.url(call="c2")))
        await bot.event("ready")
        owner = server.owner("c2")
        assert owner is not None
        with server.stopped(owner):
            socket = await dialled(server.url("/media/native"))
        await socket.send(json.dumps({**START, "call": "c2", "codec": "pcm", "rate_hz": 48000, "lead_ms": 60_000}))
        await bot.event("call")
        socket.transport.pause_reading()
        await bot.say("This is a very long text that will never be heard. " * 60, "a")
        try:
            await bot.event("hangup", within_s=20)
            assert await bot.gone()
            # The peer is still there and reads nothing. The relay ends all the same.
            pid = server.pids[server.other(owner)]
            await until(lambda: not _n_connections(pid), "the relay is over", 10)
        finally:
            socket.transport.abort()
            await bot.aclose()

    run(main, within_s=60)
    assert server.logged("slow_reader")


def _n_connections(pid: int) -> int:
    """How many TCP connections a process has, beside the listening socket."""
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if os.path.islink(fd)}
    established = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(f"socket:[{line[9]}]" in sockets for line in established if line[3] == "01")


def test_relayed_speech_is_not_cut_by_a_drain(server: FrontServer) -> None:
    """The last test of this file: it ends the server."""

    async def main() -> None:
        bot = Bot(await dialled(server.url(call="CA9")))
        await bot.event("ready")
        owner = server.owner("CA9")
        assert owner is not None
        with server.stopped(owner):
            socket = await dialled(server.url("/media/twilio"))
        peer = TwilioPeer(socket, "CA9")
        await peer.start()
        await bot.event("call")
        text = "This is said to its very end, whatever else may happen to the server in the meantime."
        await bot.say(text, "a")
        await bot.event("started")
        server.served.terminate()
        await bot.event("done", turn="a", within_s=12)
        assert correlation(decoded(peer.played), rendering([text])) > 0.98
        assert (await peer.gone())[0] == 1001
        await peer.aclose()
        await bot.aclose()

    run(main)
    assert server.served.wait(10) == 0
    assert [line for line in server.log if line["level"] == "error"] == []
