"""Failing engines, failing dialled bots and bugs of our own: each ends one turn or one call, never two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from neighbour import neighbour
from rig import Bot, Tones, run, serving, speech_settings, until
from twilio_peer import calling
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request
from websockets.server import ServerProtocol

from telephony_tts.engines.api import Chunk, Utterance

pytestmark = pytest.mark.alone

MEDIA = "/media/twilio"
GREEDY = "/v1/stream?codec=pcm&rate=24000&pace=burst"
LONG = "This is a long story, and it will not be heard to its end. " * 20


async def _still_speaks(bot: Bot) -> None:
    await bot.say("Fine.", "still")
    await bot.event("done", turn="still")


class FaultyEngine(Tones):
    """An engine with a bug: it raises, returns garbage, or hangs, when the text tells it to."""

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        if "boom" in utterance.text:
            raise ZeroDivisionError("a bug in an engine")
        if "drop" in utterance.text:
            raise asyncio.CancelledError
        async for chunk in super().synthesize(utterance):
            if "rubbish" in utterance.text:
                yield Chunk(chunk.pcm, -7)
            yield chunk


@pytest.mark.parametrize("word", ["boom", "drop", "rubbish"])
def test_an_engine_that_breaks_on_the_second_sentence(word: str) -> None:
    async def main() -> None:
        async with serving(FaultyEngine()) as rig, neighbour(rig), rig.bot(audio="binary", lead_ms=0) as bot:
            text = f"The first one is good. The second goes {word}. The third is not reached."
            await bot.say(text, "a")
            error = await bot.event("error", turn="a")
            assert error["code"] in ("engine_failed", "bad_audio") and not error["fatal"]
            assert error["heard_text"] + error["unheard_text"] == text
            assert "ZeroDivision" not in error["message"]
            assert bot.terminals("a") == ["error"]
            await _still_speaks(bot)

    run(main)


def test_an_engine_that_hangs_delays_only_its_own_turn() -> None:
    async def main() -> None:
        async with serving(Tones(hangs=True)) as rig, rig.bot(audio="none") as bot:
            await bot.say("Hello?", "a")
            await until(lambda: rig.engine.n_live == 1, "the engine was not asked")
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="a")
            assert (cleared["heard_text"], cleared["unheard_text"]) == ("", "Hello?")
            await rig.empty_engine()
            await bot.say("Hello again?", "b")

    run(main, plain_loop=True)


def test_an_engine_that_hangs_for_too_long_loses_the_turn() -> None:
    async def main() -> None:
        async with serving(Tones(hangs=True), speech=speech_settings(engine_timeout_ms=200)) as rig, rig.bot() as bot:
            for turn in ("a", "b"):
                await bot.say("Hello?", turn)
                error = await bot.event("error", turn=turn, within_s=2)
                assert (error["code"], error["fatal"], error["unheard_text"]) == ("engine_failed", False, "Hello?")
                await rig.empty_engine()

    run(main, plain_loop=True)


def test_a_bot_that_refuses_the_connection() -> None:
    async def main() -> None:
        async with serving() as other:
            free_port = other.port
        settings = {"bot_url": f"ws://127.0.0.1:{free_port}/", "bot_connect_timeout_s": 0.5}
        async with serving(**settings) as rig, neighbour(rig), calling(rig.url(MEDIA), "CA1") as peer:
            await peer.start()
            assert await peer.gone() == (1011, "the bot cannot be reached")

    run(main)


def test_a_bot_that_connected_itself_stays_when_the_configured_bot_is_unreachable() -> None:
    async def main() -> None:
        async with serving() as other:
            free_port = other.port
        settings = {"bot_url": f"ws://127.0.0.1:{free_port}/", "bot_connect_timeout_s": 0.3}
        async with serving(**settings) as rig, calling(rig.url(MEDIA), "CA1") as peer:
            await peer.start()
            async with rig.bot(call="CA1") as bot:
                await asyncio.sleep(0.5)
                await bot.say("Still here.", "a")
                assert (await bot.event("done", turn="a"))["audio_ms"] == 660

    run(main)


def test_a_bot_that_never_answers_the_handshake() -> None:
    async def main() -> None:
        connections: list[asyncio.StreamWriter] = []
        async with await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0) as silent:
            port = silent.sockets[0].getsockname()[1]
            settings = {"bot_url": f"ws://127.0.0.1:{port}/", "bot_connect_timeout_s": 0.4}
            async with serving(**settings) as rig, neighbour(rig):
                async with calling(rig.url(MEDIA), "CA1") as peer:
                    await peer.start()
                    assert (await peer.gone())[0] == 1011
                # A caller who hangs up meanwhile ends the dialling.
                async with calling(rig.url(MEDIA), "CA2") as peer:
                    await peer.start()
                    await until(lambda: len(connections) == 2, "the second dial")
                    await peer.hang_up()
                    assert (await peer.gone())[0] == 1000
            for writer in connections:
                writer.close()

    run(main)


def test_a_bot_that_answers_401() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as other:
            settings = {"bot_url": other.url("/v1/stream"), "bot_token": "wrong", "bot_connect_timeout_s": 5.0}
            async with serving(**settings) as rig, neighbour(rig), calling(rig.url(MEDIA), "CA1") as peer:
                begun_s = time.monotonic()
                await peer.start()
                assert (await peer.gone())[0] == 1011
                assert time.monotonic() - begun_s < 2, "a refusal is no reason to dial again"

    run(main)


def test_a_dialled_bot_that_reads_nothing_is_dropped() -> None:
    """Inbound audio is sent to it. What it does not read must not pile up."""

    async def main() -> None:
        release = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            protocol = ServerProtocol()
            protocol.receive_data(head)
            request = protocol.events_received()[0]
            assert isinstance(request, Request)
            protocol.send_response(protocol.accept(request))
            writer.writelines(protocol.data_to_send())
            writer.transport.pause_reading()
            await release.wait()
            writer.close()

        async with await asyncio.start_server(deaf, "127.0.0.1", 0, limit=1024) as listener:
            port = listener.sockets[0].getsockname()[1]
            settings = {"bot_url": f"ws://127.0.0.1:{port}/", "bot_inbound": "base64", "slow_reader_s": 0.3}
            async with serving(**settings) as rig, calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await until(lambda: any(c.bot for c in rig.server.registry.calls()), "the dial")
                loud = '{"event":"media","media":{"track":"inbound","payload":"' + "A" * 60_000 + '"}}'
                for _ in range(12):  # less than what is too much at once: it is the time that counts
                    await peer.socket.send(loud)
                assert (await peer.gone())[0] == 1000
                await rig.empty()
            release.set()

    run(main)


def test_a_bot_that_connects_while_another_is_dialled_is_kept() -> None:
    async def main() -> None:
        codes: list[int | None] = []

        async def slow(socket: ServerConnection, request: Request) -> None:
            await asyncio.sleep(0.3)

        async def on_call(socket: ServerConnection) -> None:
            await socket.wait_closed()
            codes.append(socket.close_code)

        async with serve(on_call, "127.0.0.1", 0, process_request=slow) as listener:
            port = listener.sockets[0].getsockname()[1]
            async with serving(bot_url=f"ws://127.0.0.1:{port}/") as rig, calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await until(lambda: len(rig.server.registry), "the call")
                async with rig.bot(call="CA1") as bot:
                    await until(lambda: codes, "the dialled bot is sent away")
                    assert codes == [4409]
                    await bot.say("Still here.", "a")
                    await bot.event("done", turn="a")

    run(main)


def test_a_bug_in_handling_one_message_ends_that_call_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from telephony_tts.session.session import Session

    healthy = Session.receive

    def receive(self: Session, message: Any, now_ns: int) -> None:
        if getattr(message, "id", None) == "boom":
            raise ZeroDivisionError("a bug of ours")
        healthy(self, message, now_ns)

    monkeypatch.setattr(Session, "receive", receive)

    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            async with rig.bot() as bot:
                await bot.say(LONG, "a")
                await bot.event("started")
                await bot.send({"type": "ping", "id": "boom"})
                error = await bot.event("error")
                assert error["code"] == "internal" and error["fatal"]
                assert (await bot.gone())[0] == 1011
            # The same on a timer, where there is no socket to raise at.
            async with rig.bot(call="CA1") as bot, calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.event("call")
                await bot.say(LONG, "b")
                await peer.hears(3)
                call = rig.server.registry.find("CA1")
                assert call is not None
                monkeypatch.setattr(call.session, "poll", lambda now_ns: 1 // 0)
                assert (await bot.gone())[0] == 1011 and (await peer.gone())[0] == 1011

    run(main)
    crashes = [record for record in caplog.records if record.message == "call_crashed"]
    assert len(crashes) == 2 and all(record.exc_info for record in crashes)
