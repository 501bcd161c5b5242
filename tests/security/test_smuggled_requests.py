"""Two servers read one port: WebSockets and HTTP. No request can hide behind another, or be two things to them.

tests/e2e/test_http_api.py has the shapes of single requests. Here a second request stands behind each, which a proxy in
front of us would take for a part of the first one. It must not be served.
"""

from __future__ import annotations

import asyncio

import pytest
from rig import run, serving

pytestmark = pytest.mark.slow

HIDDEN = b"GET /tts/stream?text=smuggled&format=ulaw HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /tts/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
)
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

REFUSED: dict[str, bytes] = {
    "a length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, then a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 90\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n",
    "a tab before the colon": POST + b"Transfer-Encoding\t: chunked\r\nContent-Length: 0\r\n\r\n",
    "a vertical tab": POST + b"Transfer-Encoding:\x0bchunked\r\nContent-Length: 0\r\n\r\n",
    "a carriage return alone": POST + b"X: y\rTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "a line feed alone": POST + b"X: y\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "a zero byte": POST + b"X: y\0\r\nContent-Length: 0\r\n\r\n",
    "a folded header": POST + b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks of HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length in hex": POST + b"Content-Length: 0x0\r\n\r\n",
    "a length of other digits": POST + "Content-Length: ٠\r\n\r\n".encode(),
    "a WebSocket with a body": UPGRADE + KEY + b"Content-Length: %d\r\n\r\n" % len(HIDDEN),
    "a WebSocket with chunks": UPGRADE + KEY + b"Transfer-Encoding: chunked\r\n\r\n",
    "a WebSocket without a key": UPGRADE + b"\r\n",
    "a WebSocket by POST": (UPGRADE + KEY).replace(b"GET", b"POST") + b"\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "a version of two digits": b"GET /healthz HTTP/1.10\r\nHost: x\r\n\r\n",
    "a target with a space": b"GET /healthz x HTTP/1.1\r\nHost: x\r\n\r\n",
}


async def answer_to(port: int, data: bytes, step: int) -> bytes:
    """All that the server says to these bytes, until it closes or is silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await asyncio.sleep(0)
    told = b""
    try:
        async with asyncio.timeout(8):
            while piece := await reader.read(65_536):
                told += piece
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return told


@pytest.mark.parametrize("name", REFUSED)
def test_what_stands_behind_a_refused_request_is_not_served(name: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            for step in (4_096, 13):
                told = await answer_to(rig.port, REFUSED[name] + HIDDEN, step)
                assert told.startswith(b"HTTP/1.1 4") or told.startswith(b"HTTP/1.1 505"), told[:100]
                assert told.count(b"HTTP/1.1 ") == 1, told
            assert rig.engine.spoken == []  # type: ignore[attr-defined]  # of Tones

    run(main)


def test_a_request_inside_a_body_is_a_body() -> None:
    async def main() -> None:
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
        async with serving() as rig:
            for data in (
                POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
                POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk,
                POST + b"Transfer-Encoding: CHUNKED\r\nConnection: close\r\n\r\n" + chunk,
            ):
                told = await answer_to(rig.port, data, 4_096)
                assert told.startswith(b"HTTP/1.1 400") and told.count(b"HTTP/1.1 ") == 1, told
            assert rig.engine.spoken == []  # type: ignore[attr-defined]

    run(main)


def test_bytes_behind_an_upgrade_are_frames_and_no_request() -> None:
    async def main() -> None:
        async with serving() as rig:
            told = await answer_to(rig.port, UPGRADE + KEY + b"\r\n" + HIDDEN, 4_096)
            assert told.startswith(b"HTTP/1.1 101") and told.count(b"HTTP/1.1 ") == 1
            assert rig.engine.spoken == []  # type: ignore[attr-defined]

    run(main)


def test_a_second_request_that_is_honest_is_served() -> None:
    """Otherwise the tests above would prove nothing."""

    async def main() -> None:
        async with serving() as rig:
            last = HIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            told = await answer_to(rig.port, POST + b"Content-Length: 15\r\n\r\n" + b'{"text":"one."}' + last, 4_096)
            assert told.count(b"HTTP/1.1 200") == 2
            assert rig.engine.spoken == ["one.", "smuggled"]  # type: ignore[attr-defined]

    run(main)
