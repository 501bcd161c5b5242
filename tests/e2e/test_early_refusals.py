"""A request that is refused before its body was read: its client sees the status and the reason, however long the body
is. Clients that write everything before they read are the hardest: a reset would take their response away."""

from __future__ import annotations

import asyncio
import http.client
import io
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "sip_bridge"))

from bridge_rig import bridging
from http_peer import http_peer, request
from neighbour import neighbour
from raw_peer import frame
from rig import Rig, run, serving, until
from served import process
from standin_server import standin_server

from telephony_tts.transport import unserved
from telephony_tts.transport.settings import ServerSettings

pytestmark = pytest.mark.slow

MEGABYTES = (0.5, 2, 8, 30)
LOCKED = ServerSettings(host="127.0.0.1", port=0, tokens=("key",))
KEY = {"Authorization": "Bearer key"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
UNCHECKED = ssl._create_unverified_context()

Ask = Callable[[int, str, str, bytes, dict[str, str]], tuple[int, bytes]]
"""(port, method, path, body, headers) to the status and the body of the response."""


def with_http_client(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """It writes the whole body before it reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        got = connection.getresponse()
        return got.status, got.read()
    finally:
        connection.close()


def in_chunks(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        pieces: Iterator[bytes] = (body[at : at + 50_000] for at in range(0, len(body), 50_000))
        connection.request(method, path, pieces, headers, encode_chunked=True)
        got = connection.getresponse()
        return got.status, got.read()
    finally:
        connection.close()


def with_tls(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=UNCHECKED)
    try:
        connection.request(method, path, body, headers)
        got = connection.getresponse()
        return got.status, got.read()
    finally:
        connection.close()


def with_httpx(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    got = httpx2.request(method, f"http://127.0.0.1:{port}{path}", content=body, headers=headers, timeout=30)
    return got.status_code, got.content


def with_aiohttp(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    aiohttp = pytest.importorskip("aiohttp")

    async def main() -> tuple[int, bytes]:
        url, data = f"http://127.0.0.1:{port}{path}", io.BytesIO(body)
        used: list[socket.socket] = []

        def own_socket(about: tuple[Any, ...]) -> socket.socket:
            used.append(socket.socket(*about[:3]))
            return used[-1]

        connector = aiohttp.TCPConnector(socket_factory=own_socket)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, url, data=data, headers=headers) as got,
        ):
            answer = got.status, await got.read()
        # A closed session does not wait for what it has not sent yet, and a loop that ends meanwhile leaves the socket.
        await until(lambda: all(each.fileno() < 0 for each in used), "the end of aiohttp's connection", 30)
        return answer

    return asyncio.run(main())


def with_curl(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """It asks before it sends (`Expect: 100-continue`), and waits a second for the answer."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    named = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "-m", "30", "-X", method, "-w", "\n%{http_code}", *named, "--data-binary", "@-"]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], input=body, capture_output=True, check=True)
    told, _, status = done.stdout.rpartition(b"\n")
    return int(status), told


CLIENTS: dict[str, Ask] = {
    "http.client": with_http_client,
    "in chunks": in_chunks,
    "httpx": with_httpx,
    "aiohttp": with_aiohttp,
    "curl": with_curl,
}
DOORS: dict[str, tuple[str, str, dict[str, str], int, bytes]] = {
    # method, path, headers, status, what the body says
    "native": ("POST", "/tts/stream", JSON, 401, b"a token is needed"),
    "openai": ("POST", "/v1/audio/speech", JSON, 401, b"a token is needed"),
    "deepgram": ("POST", "/v1/speak", JSON, 401, b"a token is needed"),
    "elevenlabs": ("POST", "/v1/text-to-speech/tone", JSON, 401, b"a token is needed"),
    "cartesia": ("POST", "/tts/bytes", JSON, 401, b"a token is needed"),
    "vapi": ("POST", "/vapi/voice", JSON, 401, b"a token is needed"),
    "jambonz": ("POST", "/jambonz/tts", JSON, 401, b"a token is needed"),
    "cosyvoice": ("POST", "/inference_sft", FORM, 401, b"a token is needed"),
    "a call": ("POST", "/calls/c1/tts/stream", JSON, 401, b"a token is needed"),
    "voices": ("POST", "/v1/voices", FORM, 401, b"a token is needed"),
    "too large": ("POST", "/tts/stream", {**JSON, **KEY}, 413, b"the body is larger than"),
    "too large a form": ("POST", "/v1/voices", {**FORM, **KEY}, 413, b"the body is larger than 100000 bytes"),
    "compressed": ("POST", "/tts/stream", {**JSON, **KEY, "Content-Encoding": "gzip"}, 415, b"Content-Encoding"),
    "another page": ("POST", "/tts/stream", {**JSON, "Origin": "http://evil.example"}, 403, b"evil.example"),
    "open page": ("POST", "/docs", JSON, 400, b"is read with GET"),
    "console": ("PUT", "/console/api/lexicons/a", JSON, 401, b"a token is needed"),
    "no such path": ("POST", "/nothing", JSON, 405, b"the method is not allowed"),
    "GET with a body": ("GET", "/healthz", JSON, 400, b"a request with a body is not accepted"),
}


def asked_of(rig: Rig, ask: Ask, door: str, n_bytes: int) -> Any:
    method, path, headers, status, told = DOORS[door]
    return asyncio.to_thread(ask, rig.port, method, path, b"x" * n_bytes, headers), status, told


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_reads_why_whatever_it_sends(client: str) -> None:
    """Pinned: behind a megabyte the client got a reset (http.client: 401, 413, 405 from 2 MB on)."""

    async def main() -> None:
        async with serving(server=LOCKED, vendors_request_bytes=100_000) as rig:
            for megabytes in MEGABYTES:
                for door in ("native", "too large", "voices", "no such path"):
                    answer, status, told = asked_of(rig, CLIENTS[client], door, int(megabytes * 1e6))
                    got = await answer
                    assert got[0] == status and told in got[1], (door, megabytes, got)

    run(main)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_lets_a_client_read_why(door: str) -> None:
    async def main() -> None:
        async with serving(server=LOCKED, vendors_request_bytes=100_000) as rig:
            for ask in (with_http_client, in_chunks):
                answer, status, told = asked_of(rig, ask, door, 8_000_000)
                got = await answer
                assert got[0] == status and told in got[1], got

    run(main)


def test_over_tls_too(certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async def main() -> None:
        async with serving(server=LOCKED, tls=context) as rig:
            for megabytes in MEGABYTES:
                for door in ("native", "no such path"):
                    answer, status, told = asked_of(rig, with_tls, door, int(megabytes * 1e6))
                    got = await answer
                    assert got[0] == status and told in got[1], (door, megabytes, got)

    run(main)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_bridge_too(client: str) -> None:
    async def main() -> None:
        async with standin_server() as server, bridging(server.url) as rig:
            for megabytes in MEGABYTES:
                for method, path, status, told in (
                    ("POST", "/originate", 413, b"at most 65536 bytes"),
                    ("PUT", "/metrics", 405, b"only GET"),
                    ("GET", "/nothing", 404, b"no such path"),
                ):
                    if client == "in chunks" and method == "POST":
                        status, told = 411, b"Content-Length is needed"
                    body = b"x" * int(megabytes * 1e6)
                    got = await asyncio.to_thread(CLIENTS[client], rig.http_port, method, path, body, JSON)
                    assert got[0] == status and told in got[1], (path, megabytes, got)

    run(main)


UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_a_refused_handshake_with_messages_behind_it() -> None:
    """The client does not wait for the answer before it sends."""

    def ask(port: int, n_bytes: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 30) as sock:
            sock.sendall(UPGRADE)
            behind = frame(b"x" * 60_000)
            for _ in range(n_bytes // 60_000):
                sock.sendall(behind)
            got = b""
            while piece := sock.recv(65_536):
                got += piece
            return got

    async def main() -> None:
        async with serving(server=LOCKED) as rig:
            for megabytes in MEGABYTES:
                got = await asyncio.to_thread(ask, rig.port, int(megabytes * 1e6))
                assert got.startswith(b"HTTP/1.1 401 ") and b"a token is needed" in got

    run(main)


def test_a_client_that_asks_before_it_sends_gets_the_refusal_alone() -> None:
    """RFC 9110 §10.1.1: it needs no `100 Continue`, and sends no body."""

    async def main() -> None:
        async with serving(server=LOCKED) as rig, http_peer(rig.port) as peer:
            head = {"Content_Type": "application/json", "Content_Length": "1000", "Expect": "100-continue"}
            await peer.send("POST", "/tts/stream", **head)
            got = await peer.answer()
            assert (got.status, got.code) == (401, "unauthorized")
            assert await peer.reader.read() == b""

    run(main)


# ------------------------------------------------------------------------- the limits


def test_what_is_behind_a_refused_request_is_not_another_request() -> None:
    async def main() -> None:
        async with serving(server=LOCKED) as rig, http_peer(rig.port) as peer:
            body = request("GET", "/healthz")
            peer.writer.write(request("POST", "/tts/stream", body, Content_Type="application/json") + body)
            assert (await peer.answer()).status == 401
            assert await peer.reader.read() == b""

    run(main)


@pytest.mark.parametrize("path", ["/tts/stream", "/nothing"])
@pytest.mark.parametrize("keeps_sending", [True, False], ids=["a byte now and then", "nothing more"])
def test_a_refused_client_that_stays(path: str, keeps_sending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = "LINGER_S" if keeps_sending else "LINGER_IDLE_S"
    monkeypatch.setattr(unserved, limit, 0.3)

    async def main() -> None:
        async with serving(server=LOCKED) as rig, http_peer(rig.port) as peer:
            await peer.send("POST", path, b"x", Content_Type="application/json", Content_Length="1000")
            assert (await peer.answer()).status in (401, 405)
            begin_s = time.monotonic()
            with pytest.raises(ConnectionError):
                while time.monotonic() - begin_s < 8:
                    await asyncio.sleep(0.05)
                    if keeps_sending or time.monotonic() - begin_s > 1:
                        peer.writer.write(b"x")
                        await peer.writer.drain()
            await until(lambda: len(rig.server.unserved) == 0, "its place is free")

    run(main)


@pytest.mark.timed
def test_many_refused_bodies_at_once_delay_no_call() -> None:
    """Eight bodies of 30 MB beside a call whose every frame must be in time."""

    async def main() -> None:
        async with serving(server=LOCKED) as rig, neighbour(rig, token="key"):
            asked = [asked_of(rig, with_http_client, "native", 30_000_000)[0] for _ in range(8)]
            assert [status for status, _ in await asyncio.gather(*asked)] == [401] * 8

    run(main)


def test_refused_bodies_take_no_memory() -> None:
    """Eight bodies of 30 MB at a time, twice. They would be 240 MB."""

    def peak_mb(pid: int) -> float:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    async def flood(port: int, path: str) -> None:
        asked = [asyncio.to_thread(with_http_client, port, "POST", path, b"x" * 30_000_000, JSON) for _ in range(8)]
        assert {status for status, _ in await asyncio.gather(*asked)} <= {401, 405}

    with process("--set", 'server.tokens=["key"]') as (served, port):
        with_http_client(port, "POST", "/tts/stream", b"x", JSON)
        before_mb = peak_mb(served.pid)
        for path in ("/tts/stream", "/nothing"):
            asyncio.run(flood(port, path))
        assert peak_mb(served.pid) - before_mb < 30
