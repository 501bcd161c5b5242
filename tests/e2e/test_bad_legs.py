"""Legs in the wrong order, unexpected legs, and legs that vanish: the other leg is told and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
from neighbour import neighbour
from raw_peer import raw_peer
from rig import correlation, decoded, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from telephony_tts.runtime import metrics

pytestmark = pytest.mark.timed

MEDIA = "/media/twilio"
GREEDY = "/v1/stream?codec=pcm&rate=24000&pace=burst"
LONG = "This is a long story, and it will not be heard to its end. " * 20


def test_two_bots_for_one_call() -> None:
    async def main() -> None:
        async with (
            serving() as rig, neighbour(rig), rig.bot(call="CA1") as bot, calling(rig.url(MEDIA), "CA1") as peer
        ):  # fmt: skip
            await peer.start()
            await bot.say("Nobody will notice.", "a")
            for audio in ("none", "base64"):
                async with raw_peer(rig.port, f"/v1/stream?call=CA1&audio={audio}") as second:
                    assert await second.read_to_close() == 4409
                    assert b'"call_taken"' in second.data and b'"fatal":true' in second.data
            await bot.event("done", turn="a")
            assert correlation(decoded(peer.played), rendering(["Nobody will notice."])) >= 0.99

    run(main)


def test_two_bots_at_the_same_instant() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def one() -> str:
                async with raw_peer(rig.port, "/v1/stream?call=CA1") as peer:
                    await peer.read()
                    await asyncio.sleep(0.2)
                    return "ready" if b'"ready"' in peer.data else "taken" if b'"call_taken"' in peer.data else "?"

            got = await asyncio.gather(*(one() for _ in range(12)))
            assert sorted(got) == ["ready"] + ["taken"] * 11
            await rig.empty()

    run(main)


def test_a_second_media_leg_for_a_call() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(call="CA1") as bot, calling(rig.url(MEDIA), "CA1") as first:
            await first.start()
            await bot.event("call")
            async with calling(rig.url(MEDIA), "CA1") as second:
                await second.start()
                assert (await second.gone())[0] == 4409
            await bot.say("Still here.", "a")
            await bot.event("done", turn="a")
            assert len(first.played) == 33

    run(main)


def test_media_before_start_a_second_start_and_other_noise_are_dropped() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), rig.bot(call="CA1") as bot, calling(rig.url(MEDIA), "CA1") as peer:
            await peer.speak([b"\xff" * 160] * 3)
            await peer.socket.send(b"\x00\x01")
            await peer.socket.send("not JSON")
            await peer.start()
            await bot.event("call")
            await peer.start(again="yes")
            await peer.send("media", media={"payload": "***"})
            await peer.send("dtmf", dtmf={"digit": "55"})
            await peer.send("what")
            await bot.say("Undisturbed.", "a")
            await bot.event("done", turn="a")
            assert len([e for e in bot.events if e.get("type") == "call"]) == 1
            assert correlation(decoded(peer.played), rendering(["Undisturbed."])) >= 0.99

    run(main)


def test_a_media_leg_without_a_valid_start() -> None:
    async def main() -> None:
        async with serving(media_start_s=0.3) as rig:
            async with calling(rig.url(MEDIA), "CA1") as silent:
                assert (await silent.gone())[0] == 4400
            async with calling(rig.url(MEDIA), "CA1") as opus:
                media_format = {"encoding": "audio/opus"}
                await opus.send("start", start={"callSid": "CA1", "streamSid": "MZ1", "mediaFormat": media_format})
                assert (await opus.gone())[0] == 4400
            async with calling(rig.url(MEDIA), "CA1"):
                pass  # it hangs up before it names its call
            await until(lambda: rig.server.registry.n_arriving == 0, "a leg that has gone is still waited for", 0.25)

    run(main, plain_loop=True)


def test_a_call_that_no_bot_joins() -> None:
    async def main() -> None:
        before = metrics.value("telephony_tts_refused_total", reason="unclaimed")
        async with serving(call_claim_s=0.3) as rig, neighbour(rig):
            name = "CA" + "1" * 126  # too long for the close frame
            async with calling(rig.url(MEDIA), name) as peer:
                await peer.start()
                code, reason = await peer.gone()
                assert code == 4404 and reason and reason.startswith("no bot leg")
        assert metrics.value("telephony_tts_refused_total", reason="unclaimed") == before + 1

    run(main)


def test_a_bot_whose_call_never_comes() -> None:
    async def main() -> None:
        async with serving(call_claim_s=0.3) as rig, neighbour(rig), rig.bot(call="CA" + "1" * 126) as bot:
            await bot.say("Hello?", "a")
            await bot.send({"type": "mark", "turn": "a", "name": "said"})
            mark = await bot.event("mark")
            assert (mark["name"], mark["state"]) == ("said", "cleared")
            ended = await bot.event("error")
            assert (ended["turn"], ended["code"], ended["fatal"]) == ("a", "no_media", False)
            assert (ended["heard_text"], ended["unheard_text"]) == ("", "Hello?")
            error = await bot.event("error")
            assert error["code"] == "no_media" and error["fatal"] and "turn" not in error
            assert (await bot.gone())[0] == 4404

    run(main)


@pytest.mark.parametrize("first", ["bot", "media"])
def test_the_waiting_timeout_ends_once_both_legs_have_come(first: str) -> None:
    async def main() -> None:
        async with serving(call_claim_s=0.3) as rig, AsyncExitStack() as legs:
            if first == "media":
                peer = await legs.enter_async_context(calling(rig.url(MEDIA), "CA1"))
                await peer.start()
                await until(lambda: len(rig.server.registry), "the call")
            bot = await legs.enter_async_context(rig.bot(call="CA1"))
            if first == "bot":
                peer = await legs.enter_async_context(calling(rig.url(MEDIA), "CA1"))
                await peer.start()
            await bot.event("call")
            await asyncio.sleep(0.4)
            await bot.say("Hi.", "a")
            assert (await bot.event("done", turn="a"))["audio_ms"] == 180

    run(main)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"codec": "opus"}, "codec=\"opus\""),
        ({"rate": 11025}, "rate="),
        ({"rate": 16000}, "rate=16000: expected 8000"),
        ({"rate": 16000, "codec": "alaw"}, "codec=pcm"),
        ({"lead_ms": -1}, "lead_ms="),
        ({"audio": "mp3"}, "audio="),
        ({"ptime_ms": 25}, "ptime_ms="),
        ({"call": "a%20b"}, "call="),
        ({"inbound": "yes"}, "inbound="),
        ({"speed": 3}, 'speed="3": expected a number from 0.5 to 2.0'),
    ],
)
def test_invalid_options_get_an_error_and_a_close(options: dict[str, Any], named: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            async with connect(rig.url(f"/v1/stream?{query}"), proxy=None) as socket:
                error = json.loads(await socket.recv())
                assert (error["type"], error["code"], error["fatal"]) == ("error", "bad_option", True)
                assert named in error["message"]
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 4400

    run(main)


@pytest.mark.parametrize("plain_loop", [True, False])
def test_a_reset_of_a_lone_bot_in_the_middle_of_speech(plain_loop: bool) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            async with raw_peer(rig.port) as peer:
                await peer.send(LONG)
                await peer.read_until(b'"media"')
                peer.reset()
            await until(lambda: len(rig.server.registry) == 1, "the call outlives its bot", 1.0)
            assert rig.engine.n_live <= 1

    run(main, plain_loop=plain_loop)


def test_resets_in_the_middle_of_a_burst_log_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: asyncio warned about writes between the reset and the end of the connection."""

    async def main() -> None:
        async with serving() as rig:
            for n in range(60):
                async with raw_peer(rig.port, "/v1/stream?pace=burst&audio=binary") as peer:
                    await peer.send(LONG)
                    for _ in range(n % 20):
                        await peer.read(2000)
                    peer.reset()
                await rig.empty()

    run(main, plain_loop=True)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_reset_of_the_media_leg_in_the_middle_of_speech() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), rig.bot(call="CA1") as bot:
            async with raw_peer(rig.port, MEDIA) as peer:
                await peer.send({"event": "start", "start": {"callSid": "CA1", "streamSid": "MZ1"}})
                await bot.say(LONG[:200], "a")
                await peer.read_until(b'"media"')
                peer.reset()
            cleared = await bot.event("cleared", turn="a", within_s=1)
            assert cleared["reason"] == "hangup"
            assert (await bot.event("hangup"))["reason"] == "closed"
            assert (await bot.gone())[0] == 1000

    run(main)


def test_a_reset_of_the_bot_leg_in_the_middle_of_speech() -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig), calling(rig.url(MEDIA), "CA1") as peer:
            async with raw_peer(rig.port, "/v1/stream?call=CA1") as bot:
                await peer.start()
                await bot.send(LONG)
                await peer.hears(5)
                bot.reset()
            assert (await peer.gone())[0] == 1000
            assert peer.n_clears == 1

    run(main)


def test_a_media_leg_needs_a_token_too() -> None:
    async def main() -> None:
        async with serving(tokens=("sesame",)) as rig:
            bearer = {"Authorization": "Bearer sesame"}
            for parameters in ({}, {"token": "sesam"}):
                async with calling(rig.url(MEDIA), "CA1") as tokenless:
                    await tokenless.start(**parameters)
                    assert (await tokenless.gone())[0] == 4401
            async with rig.bot(call="CA2", headers=bearer) as bot, calling(rig.url(MEDIA), "CA2") as peer:
                await peer.start(token="sesame", bot="sales")
                call = await bot.event("call")
                assert call["parameters"] == {"bot": "sales"}, "the token is not passed on to the bot"
                await bot.say("Hello.", "a")
                await bot.event("done", turn="a")
            signed = rig.url(MEDIA + "?token=sesame")
            async with rig.bot(call="CA3", headers=bearer) as bot, calling(signed, "CA3") as peer:
                await peer.start()
                assert (await bot.event("call"))["call"] == "CA3"

    run(main)
