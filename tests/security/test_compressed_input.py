"""Compression is a way to make a small input large: nothing that comes from outside is decompressed without a limit."""

from __future__ import annotations

import asyncio
import base64
import os
import resource
import sys
import zlib

import pytest
from http_peer import http_peer
from rig import run, serving

pytestmark = pytest.mark.slow

BOMB_MB = 300
MOST_MB = 100


def small_that_becomes_large(begin: bytes, end: bytes) -> bytes:
    """`begin`, BOMB_MB of one letter, and `end`, in gzip."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(
        [
            packer.compress(begin),
            *(packer.compress(b"a" * 1_000_000) for _ in range(BOMB_MB)),
            packer.compress(end),
            packer.flush(),
        ]
    )


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024 * 1024)


@pytest.mark.parametrize("path", ["/v1/stream", "/media/twilio", "/v1/speak", "/media/native"])
def test_compression_of_messages_is_not_agreed_to(path: str) -> None:
    """A frame with the compression bit then ends the connection: test_websocket_door.py."""

    async def main() -> None:
        async with serving() as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            key = base64.b64encode(os.urandom(16)).decode()
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101") and b"extensions" not in head.lower()
            writer.close()

    run(main)


def test_a_compressed_body_is_refused_and_not_opened() -> None:
    async def main() -> None:
        bomb = small_that_becomes_large(b'{"text":"', b'"}')
        before_mb = _peak_mb()
        async with serving() as rig:
            for encoding in ("gzip", "GZIP", "deflate", "br, gzip"):
                async with http_peer(rig.port) as peer:
                    how = {"Content_Type": "application/json", "Content_Encoding": encoding}
                    await peer.send("POST", "/tts/stream", bomb, **how)
                    answer = await peer.answer()
                    assert answer.status == 415 and b"Content-Encoding" in answer.body, answer
            async with http_peer(rig.port) as peer:
                plain = {"Content_Type": "application/json", "Content_Encoding": "identity"}
                await peer.send("POST", "/tts/stream", b'{"text":"Hi.","format":"pcm"}', **plain)
                assert (await peer.answer()).status == 200
        assert _peak_mb() - before_mb < MOST_MB

    run(main)
