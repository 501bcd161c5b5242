"""Crowds that hold connections without a request: they are bounded, and a health check beside them is answered."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "sip_bridge"))

from bridge_rig import bridging
from half_open import HEADS, HalfOpen, crowd, crowd_beside, health_ms
from http_peer import http_peer
from rig import run, serving, until
from served import process
from standin_server import standin_server

from telephony_tts.transport.settings import ServerSettings
from telephony_tts.transport.unserved import UnservedConnections

pytestmark = pytest.mark.slow

N = 300
N_CHECKS = 20
REFUSED = HalfOpen(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", b"x")
"""It reads no answer and stays."""
KINDS = {**HEADS, "refused": REFUSED}


def secure(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


async def checked(port: int, kind: HalfOpen, *, tls: bool = False) -> None:
    """Every health check beside the crowd is answered, and its slowest but one within 50 ms."""

    def check() -> list[float]:
        with crowd(port, N, kind):
            return sorted(health_ms(port, tls=tls) for _ in range(N_CHECKS))

    await asyncio.to_thread(health_ms, port, tls=tls)
    times_ms = await asyncio.to_thread(check)
    assert times_ms[-2] < 50, times_ms


@pytest.mark.timed
@pytest.mark.parametrize("kind", KINDS)
def test_health_of_the_server(kind: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            await checked(rig.port, KINDS[kind])

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["silent", "slow drip"])
def test_health_of_the_server_with_tls(kind: str, certificate: tuple[Path, Path]) -> None:
    hello = HalfOpen(b"\x16\x03\x01\x01\x00", b"\x01") if kind == "slow drip" else HalfOpen()

    async def main() -> None:
        async with serving(tls=secure(certificate)) as rig:
            await checked(rig.port, hello, tls=True)

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("kind", KINDS)
def test_health_of_the_bridge(kind: str) -> None:
    """Pinned: it read a hundred requests at a time, and closed the next one without an answer."""

    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig:
            await checked(rig.http_port, KINDS[kind])

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("kind", HEADS)
def test_health_of_a_server_of_two_processes(kind: str) -> None:
    with process("--set", "server.processes=2") as (_, port), crowd(port, N, HEADS[kind]):
        times_ms = sorted(health_ms(port) for _ in range(N_CHECKS))
    assert times_ms[-2] < 50, times_ms


# ------------------------------------------------------------------ more than the process has descriptors


@contextmanager
def few_files() -> Iterator[None]:
    """Processes that are started inside may open 1024 files, as in most shells. This one is not limited."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_more_half_open_connections_than_descriptors(tls: bool, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """Pinned: no health check was answered, and no call was taken."""
    cert, key = certificate
    flags = ["--set", f"server.tls.cert={cert}", "--set", f"server.tls.key={key}"] if tls else []
    with few_files():
        served = process(*flags, log=tmp_path / "log", tls=tls)
        _, port = served.__enter__()
    try:
        with crowd(port, 1_500, HalfOpen()) as many:
            for _ in range(N_CHECKS):
                health_ms(port, tls=tls)
            assert 200 < sum(many.is_open()) <= 256
    finally:
        served.__exit__(None, None, None)
    assert "connection_not_taken" not in (tmp_path / "log").read_text()


# ---------------------------------------------------------------------------- who is dropped


@pytest.fixture
def eight_places(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = UnservedConnections.__init__
    monkeypatch.setattr(UnservedConnections, "__init__", lambda self, most=None: begin(self, most or 8))


@pytest.mark.usefixtures("eight_places")
def test_the_oldest_go_and_a_client_from_elsewhere_stays() -> None:
    async def main() -> None:
        async with (
            serving() as rig, crowd_beside(rig.port, 1, HEADS["slow drip"], "127.0.0.2") as client,
            crowd_beside(rig.port, 30, HalfOpen()) as many,
        ):
            await until(lambda: sum(many.is_open()) == 7, "the others are dropped")
            assert many.is_open() == [False] * 23 + [True] * 7
            assert client.is_open() == [True]

    run(main)


@pytest.mark.usefixtures("eight_places")
def test_connections_between_two_requests_count_and_end_without_a_reset() -> None:
    """The pages of the console need no token, so anyone can hold connections that were used once."""
    page = HalfOpen(b"GET /console/ HTTP/1.1\r\nHost: x\r\n\r\n")

    async def main() -> None:
        async with serving() as rig, http_peer(rig.port) as peer:
            await peer.send("GET", "/console/main.js")
            assert (await peer.answer()).status == 200
            async with crowd_beside(rig.port, 20, page):
                await until(lambda: len(rig.server.unserved) == 8, "they wait")
                assert await peer.reader.read() == b"", "no reset"

    run(main)


@pytest.mark.usefixtures("eight_places")
def test_a_request_that_is_served_has_no_place() -> None:
    async def main() -> None:
        async with serving(calls=30) as rig:
            bots = [rig.bot(audio="none") for _ in range(11)]
            for bot in bots:
                await bot.__aenter__()
            assert len(rig.server.unserved) == 0
            async with crowd_beside(rig.port, 30, HalfOpen()):
                await until(lambda: len(rig.server.unserved) == 8, "the crowd is there")
            for bot in bots:
                await bot.__aexit__(None, None, None)

    run(main)


@pytest.mark.usefixtures("eight_places")
def test_refused_clients_count_too() -> None:
    async def main() -> None:
        locked = ServerSettings(host="127.0.0.1", port=0, tokens=("key",))
        async with serving(server=locked) as rig:
            for path in (b"/tts/stream", b"/nothing"):
                refused = HalfOpen(REFUSED.begin.replace(b"/nothing", path), b"x")
                async with crowd_beside(rig.port, 20, refused) as many:
                    await until(lambda: len(rig.server.unserved) == 8, "eight are left")
                    assert await asyncio.to_thread(health_ms, rig.port) > 0
                    assert len(many.sockets) == 20
                await until(lambda: len(rig.server.unserved) == 0, "all have gone")

    run(main)


def test_a_server_that_stops_waits_for_none_of_them(certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for tls in (None, secure(certificate)):
            held: list[socket.socket] = []
            async with serving(tls=tls) as rig:
                for kind in (HalfOpen(), HEADS["slow drip"], REFUSED):
                    async with crowd_beside(rig.port, 3, kind) as some:
                        held += [sock.dup() for sock in some.sockets]
                await until(lambda: len(rig.server.unserved) >= 3, "they are there")
                begin_s = loop.time()
            assert loop.time() - begin_s < 2, "the server is closed"
            for sock in held:
                sock.close()

    run(main)
