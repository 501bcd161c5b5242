"""Plain HTTP in every form that a peer may send: each request gets one complete answer and causes no log line."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from neighbour import neighbour
from raw_peer import frame
from rig import Rig, run, serving
from websockets.frames import Opcode

from telephony_tts.transport import unserved

pytestmark = pytest.mark.timed

N_TIMES = 50
AT_ONCE = 10
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def request(method: bytes, path: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: x\r\n%b\r\n%b" % (method, path, headers, body)


@dataclass(frozen=True)
class Form:
    """A request, and the status of its answer. With `half_close` the peer closes its sending side at once."""

    data: bytes
    status: int
    half_close: bool = False
    byte_by_byte: bool = False


FORMS = {
    "plain": Form(HEALTH, 200),
    "byte by byte": Form(HEALTH, 200, byte_by_byte=True),
    "two at once": Form(HEALTH * 2, 200),
    "a thousand at once": Form(HEALTH * 1000, 200),
    "two at once and a half-close": Form(HEALTH * 2, 200, half_close=True),
    "the second one is for a WebSocket": Form(HEALTH + request(b"GET", b"/v1/stream", UPGRADE), 200),
    "half-close": Form(HEALTH, 200, half_close=True),
    "half-close on a WebSocket's path": Form(request(b"GET", b"/v1/stream"), 426, half_close=True),
    "half-close in the head": Form(HEALTH[:-2], 400, half_close=True),
    "half-close in the request line": Form(HEALTH[:5], 400, half_close=True),
    "a body": Form(request(b"GET", b"/healthz", b"Content-Length: 5\r\n", b"hello"), 400),
    "an empty body": Form(request(b"GET", b"/healthz", b"Content-Length: 0\r\n"), 200),
    "a chunked body": Form(
        request(b"GET", b"/healthz", b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n0\r\n\r\n"), 400
    ),
    "a body that is not announced": Form(HEALTH + b"hello", 200),
    "a body on a WebSocket's path": Form(
        request(b"GET", b"/v1/stream", UPGRADE + b"Content-Length: 2\r\n", b"{}"), 400
    ),
    "POST": Form(request(b"POST", b"/healthz"), 405),
    "POST with a body": Form(request(b"POST", b"/readyz", b"Content-Length: 100000\r\n", b"x" * 100_000), 405),
    "POST with a body and a half-close": Form(
        request(b"POST", b"/v1/stream", b"Content-Length: 2\r\n", b"{}"), 405, half_close=True
    ),
    "OPTIONS": Form(request(b"OPTIONS", b"/metrics"), 405),
    "BREW": Form(request(b"BREW", b"/healthz"), 405),
    "HEAD": Form(request(b"HEAD", b"/healthz"), 200),
    "HEAD of nothing": Form(request(b"HEAD", b"/nothing"), 404),
    "HEAD of a WebSocket": Form(request(b"HEAD", b"/v1/stream", UPGRADE), 426),
    "HEAD twice": Form(request(b"HEAD", b"/healthz") * 2, 200),
    "HTTP/1.0": Form(b"GET /readyz HTTP/1.0\r\n\r\n", 200),
    "a WebSocket by HTTP/1.0": Form(b"GET /v1/stream HTTP/1.0\r\n" + UPGRADE + b"\r\n", 505),
    "HTTP/1.2": Form(b"GET /healthz HTTP/1.2\r\n\r\n", 505),
    "HTTP/2": Form(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/0.9": Form(b"GET /healthz\r\n", 400),
    "no words": Form(b"\r\n\r\n", 400),
    "TLS": Form(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "line feeds alone": Form(HEALTH.replace(b"\r\n", b"\n"), 400),
    "a path that is not ASCII": Form("GET /é HTTP/1.1\r\n\r\n".encode(), 400),
    "a header without a colon": Form(request(b"GET", b"/healthz", b"what\r\n"), 400),
    "a header with a NUL": Form(request(b"GET", b"/healthz", b"x: \0\r\n"), 400),
    "a folded header": Form(request(b"GET", b"/healthz", b"x: 1\r\n 2\r\n"), 400),
    "a header of bytes": Form(request(b"GET", b"/healthz", b"x: \xff\xfe\r\n"), 200),
    "a long path": Form(request(b"GET", b"/" + b"x" * 9000), 414),
    "a line without an end": Form(b"x" * 9000, 414),
    "a long header": Form(request(b"GET", b"/healthz", b"x: " + b"y" * 9000 + b"\r\n"), 431),
    "a header without an end": Form(b"GET / HTTP/1.1\r\nx: " + b"y" * 9000, 431),
    "128 headers": Form(request(b"GET", b"/healthz", b"x: y\r\n" * 127), 200),
    "129 headers": Form(request(b"GET", b"/healthz", b"x: y\r\n" * 128), 431),
    "a large head": Form(request(b"GET", b"/healthz", (b"x: " + b"y" * 8000 + b"\r\n") * 9), 431),
    "300 kB behind it": Form(HEALTH + b"z" * 300_000, 200),
    "a refused WebSocket with frames behind": Form(
        request(b"GET", b"/v1/stream", UPGRADE.replace(b"==", b"")) + frame("hello") * 100, 400
    ),
    "no such WebSocket, with frames behind": Form(request(b"GET", b"/v2", UPGRADE) + frame("hello") * 100, 404),
}


async def exchange(rig: Rig, form: Form, seed: int) -> bytes:
    """Send the request in pieces cut by `seed` and return all that comes back. A reset is an error."""
    loop, chance = asyncio.get_running_loop(), random.Random(seed)
    n_cuts = len(form.data) - 1 if form.byte_by_byte else min(seed % 5, len(form.data) - 1)
    cuts = sorted(chance.sample(range(1, len(form.data)), n_cuts))
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, ("127.0.0.1", rig.server.port))
        for begin, end in zip([0, *cuts], [*cuts, len(form.data)], strict=True):
            await loop.sock_sendall(sock, form.data[begin:end])
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)  # the server reads this piece alone, or with the next
        if form.half_close:
            sock.shutdown(socket.SHUT_WR)
        got = b""
        while data := await loop.sock_recv(sock, 65_536):
            got += data
        return got


def status_of(answer: bytes, with_body: bool) -> int:
    """The status of one complete answer. Nothing may follow the answer."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    assert separator, f"no answer: {answer[:200]!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert first.startswith("HTTP/1.1 ") and headers["connection"] == "close"
    assert int(headers["content-length"]) > 0
    assert len(body) == (int(headers["content-length"]) if with_body else 0), answer[:200]
    status = int(first.split()[1])
    assert ("allow" in headers) == (status == 405) and ("upgrade" in headers) == (status == 426)
    return status


def assert_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    told = [(r.name, r.getMessage(), r.exc_info) for r in caplog.records if r.levelno >= logging.WARNING]
    assert not told


@pytest.mark.parametrize("plain_loop", [True, False], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_request_gets_one_answer(name: str, plain_loop: bool, caplog: pytest.LogCaptureFixture) -> None:
    form = FORMS[name]

    async def main() -> None:
        async with serving() as rig:
            for first in range(0, N_TIMES, AT_ONCE):
                seeds = range(first, first + AT_ONCE)
                for answer in await asyncio.gather(*(exchange(rig, form, seed) for seed in seeds)):
                    assert status_of(answer, with_body=not name.startswith("HEAD")) == form.status

    run(main, plain_loop=plain_loop)
    assert_no_warnings(caplog)


@pytest.mark.parametrize("plain_loop", [True, False], ids=["asyncio", "uvloop"])
def test_peers_that_vanish_after_their_request_log_no_warning(
    plain_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving() as rig:
            upgrade = request(b"GET", b"/v1/stream", UPGRADE + b"Origin: http://evil.example\r\n")
            loop = asyncio.get_running_loop()
            for form in (*FORMS.values(), Form(upgrade, 403)):
                for n in range(10):
                    sock = socket.socket()
                    sock.setblocking(False)
                    await loop.sock_connect(sock, ("127.0.0.1", rig.server.port))
                    await loop.sock_sendall(sock, form.data[:20_000])
                    for _ in range(n):
                        await asyncio.sleep(0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    sock.close()  # a reset

    run(main, plain_loop=plain_loop)
    assert_no_warnings(caplog)


PING = {"type": "ping", "id": "behind"}


@pytest.mark.parametrize("plain_loop", [True, False], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("behind", "answer"),
    [
        (b"", b'"ready"'),
        (frame(PING), b'"pong","id":"behind"'),
        (frame(b"there?", Opcode.PING), b"\x8a\x06there?"),
        (frame(b"there?", Opcode.PING) + frame(PING), b'"pong","id":"behind"'),
        (frame(b"\x03\xe8", Opcode.CLOSE), b"\x88\x02\x03\xe8"),
        (HEALTH, b"\x88"),
    ],
    ids=["nothing", "a message", "a ping", "both", "a close", "a request"],
)
def test_data_sent_with_the_upgrade_is_read_after_the_answer(
    behind: bytes, answer: bytes, plain_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    form = Form(request(b"GET", b"/v1/stream?audio=none", UPGRADE) + behind, 101)

    async def one(rig: Rig, seed: int) -> None:
        got = b""
        with socket.socket() as sock:
            loop = asyncio.get_running_loop()
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", rig.server.port))
            cut = random.Random(seed).randrange(1, len(form.data))
            for piece in (form.data[:cut], form.data[cut:]) if seed else (form.data,):
                await loop.sock_sendall(sock, piece)
                await asyncio.sleep(0)
            async with asyncio.timeout(8):
                while answer not in got:
                    data = await loop.sock_recv(sock, 65_536)
                    assert data, got
                    got += data
        assert got.startswith(b"HTTP/1.1 101 "), "nothing may come before the answer"
        assert got.index(b"\r\n\r\n") < got.index(answer)

    async def main() -> None:
        async with serving() as rig:
            for seed in range(N_TIMES):
                await one(rig, seed)

    run(main, plain_loop=plain_loop)
    assert_no_warnings(caplog)


def test_an_upgrade_and_a_half_close_is_answered_and_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as rig:
            for seed in range(N_TIMES):
                form = Form(request(b"GET", b"/v1/stream", UPGRADE), 101, half_close=True)
                assert (await exchange(rig, form, seed)).startswith(b"HTTP/1.1 101 ")
                await rig.empty()

    run(main)
    assert_no_warnings(caplog)


def test_a_peer_that_never_stops_sending_after_its_request_is_cut_off() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.port)
            writer.write(request(b"POST", b"/healthz", b"Content-Length: 1000000000\r\n"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 405")
            n_sent = 0
            with pytest.raises(ConnectionError):
                while n_sent < 100_000_000:
                    writer.write(b"x" * 65_536)
                    await writer.drain()
                    n_sent += 65_536
            assert n_sent >= unserved.LINGER_BYTES
            writer.close()

    run(main)


def test_over_tls_too(
    certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS has no half-closed connections: a client that waits for the end waits until it has been idle for a while."""
    monkeypatch.setattr(unserved, "LINGER_IDLE_S", 0.05)

    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        async with serving(tls=context) as rig:
            for name in ("plain", "two at once", "POST with a body", "HEAD", "no words", "a large head"):
                for _ in range(5):
                    reader, writer = await asyncio.open_connection("localhost", rig.server.port, ssl=trusting)
                    writer.write(FORMS[name].data)
                    answer = await asyncio.wait_for(reader.read(), 5)
                    assert status_of(answer, with_body=name != "HEAD") == FORMS[name].status
                    writer.close()
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("localhost", rig.server.port, ssl=trusting)
                writer.write(request(b"GET", b"/v1/stream?audio=none", UPGRADE) + frame(json.dumps(PING)))
                await reader.readuntil(b'"pong","id":"behind"')
                writer.close()

    run(main)
    assert_no_warnings(caplog)
