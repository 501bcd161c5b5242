"""Wrong messages: each gets a clear answer, and the neighbouring call gets every frame on time, bit for bit."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from neighbour import neighbour
from raw_peer import frame, raw_peer
from rig import Bot, Tones, run, serving, until
from websockets.frames import Opcode

pytestmark = pytest.mark.timed

MEDIA = "/media/twilio"
GREEDY = "/v1/stream?codec=pcm&rate=24000&pace=burst"
LONG = "This is a long story, and it will not be heard to its end. " * 20


async def _still_speaks(bot: Bot) -> None:
    await bot.say("Fine.", "still")
    await bot.event("done", turn="still")


def test_messages_that_cannot_be_read_are_answered_and_the_call_goes_on() -> None:
    cases: list[tuple[str | bytes, str]] = [
        ('{"type":"say","text":"no end', "bad_json"),
        ('{"type":"say","text":NaN}', "bad_json"),
        ("{" * 50_000, "bad_json"),
        ('{"type":"shout","text":"Hello."}', "unknown_type"),
        ('{"text":"Hello."}', "unknown_type"),
        ('{"type":"say"}', "bad_field"),
        ('{"type":"clear","heard_ms":-1}', "bad_field"),
        ('{"type":"mark","name":"\\ud800"}', "bad_field"),
        (b"\x00\x01\x02", "binary_not_expected"),
        (json.dumps({"type": "say", "text": "a" * 60_000}), "text_too_long"),
        ("word " * 12_000, "text_too_long"),
    ]

    async def main() -> None:
        async with serving() as rig, neighbour(rig), rig.bot(audio="none") as bot:
            for message, code in cases:
                await bot.socket.send(message)
                error = await bot.event("error")
                assert (error["code"], error["fatal"]) == (code, False), message[:40]
                assert len(error["message"]) < 400
                # A turn refused at its first message is over with that; the other mistakes belong to no turn.
                assert ("turn" in error) == (code == "text_too_long")
            await _still_speaks(bot)

    run(main)


def test_a_hundred_thousand_characters_in_a_turn() -> None:
    async def main() -> None:
        roomy = {"max_message_bytes": 1 << 20}
        async with serving(**roomy) as rig, neighbour(rig), rig.bot(audio="none") as bot:
            await bot.say("long " * 20_000, "a")
            assert (await bot.event("error"))["code"] == "text_too_long"
            # The same in pieces: what fits is kept and spoken, the rest is refused by name.
            for _ in range(100):
                await bot.send({"type": "text", "turn": "b", "text": "x" * 999 + " "})
            error = await bot.event("error", about="b")
            assert error["code"] in ("text_too_long", "rate_limited")
            await bot.send({"type": "clear", "turn": "b"})
            cleared = await bot.event("cleared", turn="b")
            assert len(cleared["heard_text"] + cleared["unheard_text"]) <= 4000

    run(main)


def test_lone_surrogates_are_replaced_with_a_warning() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), rig.bot(audio="none") as bot:
            await bot.send('{"type":"say","turn":"a","text":"Good \\ud800 morning."}')
            await bot.event("started", turn="a")
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="a")
            assert cleared["heard_text"] + cleared["unheard_text"] == "Good \ufffd morning."

    run(main)


def test_text_that_is_not_utf8_is_an_error_and_the_call_goes_on() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), raw_peer(rig.port, "/v1/stream?audio=none") as peer:
            await peer.send(b"\xff\xfe broken")
            await peer.read_until(b'"bad_utf8"')
            await peer.send("\ud800 and a surrogate as bytes")
            await peer.send({"type": "ping", "id": "alive"})
            await peer.read_until(b'"alive"')
            assert peer.data.count(b'"bad_utf8"') == 2

    run(main)


def test_fragments_are_joined_across_control_frames() -> None:
    async def main() -> None:
        engine = Tones()
        async with serving(engine) as rig, neighbour(rig), raw_peer(rig.port, "/v1/stream?audio=none") as peer:
            message = '{"type":"say","turn":"a","text":"Good morning – Grüß Gott."}'.encode()
            for n in range(len(message)):
                await peer.send(message[n : n + 1], Opcode.TEXT if n == 0 else Opcode.CONT, fin=n == len(message) - 1)
                if n == 20:
                    await peer.send(b"between", Opcode.PING)
            await peer.read_until(b'"started"')
            assert any(text.startswith("Good morning") and "Grüß Gott" in text for text in engine.spoken)
            assert b"between" in peer.data
            await peer.send(b"", Opcode.TEXT, fin=False)
            await peer.send(b"", Opcode.CONT)  # an empty message is an empty turn
            await peer.read_until(b'"audio_ms":0')

    run(main)


@pytest.mark.parametrize("between", [b"", frame(b"", Opcode.PING)], ids=["alone", "with pings between"])
@pytest.mark.parametrize("path", ["/v1/stream?audio=none", MEDIA])
def test_fragments_without_end_close_with_1009(path: str, between: bytes) -> None:
    """Pinned: three million empty fragments, without one byte of a message, became three million entries of a list."""

    async def main() -> None:
        async with serving() as rig, neighbour(rig), raw_peer(rig.port, path) as peer:
            connection = next(c for c in rig.server._connections if c.request and c.request.path == path)
            held = 0
            await peer.send("{", fin=False)
            many = (frame(b"", Opcode.CONT, fin=False) + between) * 500
            with suppress(ConnectionError):  # cut off, if it goes on after the close
                for _ in range(200):
                    await peer.send_bytes(many)
                    held = max(held, len(connection._fragments))
                    await asyncio.sleep(0)
            assert await peer.read_to_close() == 1009
            assert b"more than 4096 fragments in a message" in peer.data
            assert 0 < held < 4096, "the bytes held are bounded"
            await until(lambda: connection.left.done(), "the leg is over")

    run(main)


@pytest.mark.parametrize("n", [4096, 4097])
def test_as_many_fragments_as_the_limit_are_a_message_and_one_more_is_refused(n: int) -> None:
    async def main() -> None:
        async with serving() as rig, raw_peer(rig.port, "/v1/stream?audio=none") as peer:
            message = json.dumps({"type": "ping", "id": "whole"}).ljust(n).encode()
            assert len(message) == n
            opcodes = [Opcode.TEXT] + [Opcode.CONT] * (n - 1)
            pieces = [frame(message[at : at + 1], opcode, fin=at == n - 1) for at, opcode in enumerate(opcodes)]
            for _ in range(2):  # the count begins anew with each message
                await peer.send_bytes(b"".join(pieces))
            if n == 4096:
                await peer.read_until(b'"whole"')
                while peer.data.count(b'"whole"') < 2:
                    assert await peer.read()
            else:
                assert await peer.read_to_close() == 1009
                assert b'"whole"' not in peer.data

    run(main)


@pytest.mark.parametrize("path", ["/v1/stream", MEDIA])
def test_ten_megabytes_in_one_message_close_with_1009(path: str) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), raw_peer(rig.port, path) as peer:
            try:
                await peer.send("x" * 10_000_000)
            except ConnectionError:
                pass  # refused before it was all sent: as good
            else:
                assert await peer.read_to_close() in (1009, None)

    run(main)


def test_a_message_just_over_the_limit_closes_with_1009() -> None:
    async def main() -> None:
        async with serving() as rig, raw_peer(rig.port) as peer:
            await peer.send("x" * 65_537)
            assert await peer.read_to_close() == 1009
            await rig.empty()

    run(main, plain_loop=True)


def test_a_failed_connection_ends_its_call_even_if_the_peer_stays() -> None:
    """The server fails the connection (1002, an unmasked frame) and the peer keeps its socket open."""

    async def main() -> None:
        async with serving() as rig, raw_peer(rig.port) as peer:
            await peer.send(LONG)
            await peer.read_until(b'"started"')
            await peer.send_bytes(b"\x81\x02hi")
            await until(lambda: not len(rig.server.registry), "the call outlives its failed socket", 1.0)
            while peer.close_code is None:
                await peer.read()
            assert peer.close_code == 1002

    run(main, plain_loop=True)
