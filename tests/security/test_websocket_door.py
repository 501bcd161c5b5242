"""The WebSocket protocol at our door: the cases of the Autobahn test suite, by raw bytes.

Its groups are framing (1), pings (2), reserved bits (3) and opcodes (4), fragmentation (5), UTF-8 (6), the closing
handshake (7), and sizes (9). We differ from it in one thing, on purpose: a text that is not UTF-8 is an error event,
and the connection goes on (guarantee 4 of ARCHITECTURE.md). Compression (12 and 13) is not spoken here; see
test_compressed_input.py. `make autobahn` runs the suite itself.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from raw_peer import RawPeer, frame, raw_peer
from rig import run, serving
from websockets.frames import Opcode

pytestmark = pytest.mark.slow

PATH = "/v1/stream?audio=none"
PING = '{"type":"ping","id":"still here"}'
PROTOCOL_ERROR, BAD_UTF8, TOO_BIG = 1002, 1007, 1009


@dataclass
class ServerFrame:
    opcode: int
    payload: bytes


def frames_in(data: bytes) -> list[ServerFrame]:
    """The whole frames in bytes of the server, which masks nothing."""
    frames, at = [], 0
    while at + 2 <= len(data):
        opcode, length = data[at] & 15, data[at + 1]
        assert length < 128, "the server has masked a frame"
        at += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            break
        frames.append(ServerFrame(opcode, data[at : at + length]))
        at += length
    return frames


def events_in(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in frames_in(data) if each.opcode == Opcode.TEXT]


@asynccontextmanager
async def at_the_door() -> AsyncIterator[RawPeer]:
    async with serving() as rig, raw_peer(rig.port, PATH) as peer:
        yield peer


async def is_answered(peer: RawPeer) -> None:
    """A message of ours is still read and answered."""
    await peer.send(PING)
    await peer.read_until(b'"still here"')


def raw(first: int, payload: bytes = b"", *, masked: bool = True, length: bytes | None = None) -> bytes:
    """A frame by its first byte, so that any bit can be set. `length`: the bytes of its length, with the mask bit."""
    n = len(payload)
    bit = 128 if masked else 0
    if length is None:
        length = bytes((bit | n,)) if n < 126 else bytes((bit | 126,)) + struct.pack("!H", n)
    return bytes((first,)) + length + (bytes(4) if masked else b"") + payload  # a mask of zeros changes nothing


REFUSED: dict[str, tuple[bytes, int]] = {
    "3 the first reserved bit": (raw(0xC1, b"x"), PROTOCOL_ERROR),
    "3 the second reserved bit": (raw(0xA1, b"x"), PROTOCOL_ERROR),
    "3 the third reserved bit": (raw(0x91, b"x"), PROTOCOL_ERROR),
    "3 a reserved bit in a ping": (raw(0xC9, b"x"), PROTOCOL_ERROR),
    "3 a reserved bit in a close": (raw(0xA8), PROTOCOL_ERROR),
    **{
        f"4 opcode {opcode}": (raw(0x80 | opcode, b"x"), PROTOCOL_ERROR)
        for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
    },
    "2 a ping of 126 bytes": (raw(0x89, bytes(126)), PROTOCOL_ERROR),
    "5 a ping in fragments": (raw(0x09, b"x"), PROTOCOL_ERROR),
    "5 a close in fragments": (raw(0x08), PROTOCOL_ERROR),
    "5 a pong in fragments": (raw(0x0A, b"x"), PROTOCOL_ERROR),
    "5 an end without a beginning": (raw(0x80, b"x"), PROTOCOL_ERROR),
    "5 a middle without a beginning": (raw(0x00, b"x"), PROTOCOL_ERROR),
    "5 a text inside a text": (raw(0x01, b"x") + raw(0x81, b"y"), PROTOCOL_ERROR),
    "5 a binary message inside a text": (raw(0x01, b"x") + raw(0x82, b"y"), PROTOCOL_ERROR),
    "5 an end after the end": (raw(0x01, b"x") + raw(0x80, b"y") + raw(0x80, b"z"), PROTOCOL_ERROR),
    "a client that masks nothing": (raw(0x81, b"x", masked=False), PROTOCOL_ERROR),
    "7 a close of one byte": (raw(0x88, b"\x03"), PROTOCOL_ERROR),
    "7 a close of 126 bytes": (raw(0x88, struct.pack("!H", 1000) + bytes(124)), PROTOCOL_ERROR),
    "7 a reason that is not UTF-8": (
        raw(0x88, struct.pack("!H", 1000) + b"\xce\xba\xe1\xbd\xb9\xed\xa0\x80"),
        BAD_UTF8,
    ),
    **{
        f"7 close code {code}": (raw(0x88, struct.pack("!H", code)), PROTOCOL_ERROR)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    },
    "9 a message over the limit": (raw(0x81, length=b"\xff" + struct.pack("!Q", 65_537)), TOO_BIG),
    "9 a length of 2^63": (raw(0x81, length=b"\xff" + struct.pack("!Q", 1 << 63)), TOO_BIG),
    "9 fragments over the limit": (raw(0x01, bytes(40_000)) + raw(0x80, bytes(40_000)), TOO_BIG),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_frame_ends_the_connection_with_its_code(name: str) -> None:
    data, code = REFUSED[name]

    async def main() -> None:
        for step in (len(data), 1):
            async with at_the_door() as peer:
                for at in range(0, min(len(data), 300), step):
                    await peer.send_bytes(data[at : at + step])
                    await asyncio.sleep(0)
                if step == 1 and len(data) > 300:
                    await peer.send_bytes(data[300:])
                assert await peer.read_to_close() == code

    run(main)


def test_messages_of_every_length_arrive_whole() -> None:
    """Group 1: each form of the length, at both of its ends."""

    async def main() -> None:
        async with at_the_door() as peer:
            for n in (0, 1, 125, 126, 127, 128, 65_534, 65_535, 65_536):
                text = f'{{"type":"ping","id":"{n}"}}'.ljust(n)
                await peer.send_bytes(frame(text))
                await peer.read_until(b'"%d"' % n)
                await peer.send_bytes(frame(bytes(n), Opcode.BINARY))
            await is_answered(peer)
            errors = [event for event in events_in(peer.data) if event["type"] == "error"]
            assert {event["code"] for event in errors} == {"binary_not_expected"} and len(errors) == 9

    run(main)


def test_pings_are_answered_with_their_payload_in_order() -> None:
    """Group 2."""

    async def main() -> None:
        payloads = [
            b"",
            b"hello",
            b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff",
            bytes(range(125)),
            *(b"%d" % n for n in range(10)),
        ]
        async with at_the_door() as peer:
            await peer.send_bytes(b"".join(frame(each, Opcode.PING) for each in payloads))
            await peer.send_bytes(frame(b"unasked", Opcode.PONG))
            await is_answered(peer)
            pongs = [each.payload for each in frames_in(peer.data) if each.opcode == Opcode.PONG]
            assert pongs == payloads

    run(main)


def test_a_message_in_fragments_is_one_message_with_pings_in_between() -> None:
    """Group 5."""

    async def main() -> None:
        said = b'{"type":"ping","id":"in three"}'
        async with at_the_door() as peer:
            parts = [
                frame(said[:9], Opcode.TEXT, fin=False),
                frame(b"1", Opcode.PING),
                frame(b"", Opcode.CONT, fin=False),
                frame(said[9:20], Opcode.CONT, fin=False),
                frame(b"2", Opcode.PING),
                frame(said[20:], Opcode.CONT),
            ]
            for data in (b"".join(parts), *(bytes((byte,)) for byte in b"".join(parts))):
                await peer.send_bytes(data)
            await is_answered(peer)
            told = frames_in(peer.data)
            assert [each.payload for each in told if each.opcode == Opcode.PONG] == [b"1", b"2"] * 2
            assert sum(event.get("id") == "in three" for event in events_in(peer.data)) == 2

    run(main)


NOT_UTF8 = {
    "a lone continuation": b"\x80",
    "a lone lead": b"\xc3",
    "overlong": b"\xc0\xaf",
    "overlong in three": b"\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "never a byte of UTF-8": b"\xfe\xff",
    "cut inside a character": "κόσμε".encode()[:-1],
}


@pytest.mark.parametrize("name", NOT_UTF8)
def test_a_text_that_is_not_utf_8_is_an_error_event_and_the_connection_goes_on(name: str) -> None:
    """Group 6, see the module text."""

    async def main() -> None:
        bad = b"x" + NOT_UTF8[name]
        async with at_the_door() as peer:
            await peer.send_bytes(frame(bad))
            await peer.send_bytes(frame(bad[:1], Opcode.TEXT, fin=False) + frame(bad[1:], Opcode.CONT))
            await is_answered(peer)
            assert [event["code"] for event in events_in(peer.data) if event["type"] == "error"] == ["bad_utf8"] * 2

    run(main)


def test_characters_that_are_cut_by_fragments_are_read_whole() -> None:
    """Group 6: the cut is no error, wherever it is."""

    async def main() -> None:
        said = '{"type":"ping","id":"κόσμε 😀"}'.encode()
        async with at_the_door() as peer:
            fragments = [
                frame(bytes((byte,)), Opcode.CONT if at else Opcode.TEXT, fin=False) for at, byte in enumerate(said)
            ]
            await peer.send_bytes(b"".join(fragments) + frame(b"", Opcode.CONT))
            await peer.read_until("κόσμε 😀".encode())
            assert not [event for event in events_in(peer.data) if event["type"] == "error"]

    run(main)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
def test_a_valid_close_is_answered_with_its_code_and_nothing_after_it_is_read(code: int) -> None:
    """Group 7."""

    async def main() -> None:
        async with at_the_door() as peer:
            close = frame(struct.pack("!H", code) + b"x" * 123, Opcode.CLOSE)
            await peer.send_bytes(close + frame(PING) + frame(b"late", Opcode.PING) + close)
            data = await peer.read_to_end()
            told = frames_in(data)
            assert told[-1].opcode == Opcode.CLOSE and int.from_bytes(told[-1].payload[:2], "big") == code
            assert sum(each.opcode == Opcode.CLOSE for each in told) == 1
            assert b"still here" not in data and all(each.payload != b"late" for each in told)

    run(main)


def test_a_close_without_a_code_is_answered() -> None:
    async def main() -> None:
        async with at_the_door() as peer:
            await peer.send_bytes(frame(b"", Opcode.CLOSE))
            told = frames_in(await peer.read_to_end())
            assert told[-1].opcode == Opcode.CLOSE

    run(main)


def test_a_message_in_very_many_fragments_is_refused() -> None:
    """Group 9: empty fragments never reach the limit of bytes."""

    async def main() -> None:
        async with at_the_door() as peer:
            await peer.send_bytes(frame(b"x", Opcode.TEXT, fin=False) + frame(b"", Opcode.CONT, fin=False) * 5_000)
            assert await peer.read_to_close() == TOO_BIG

    run(main)
