"""A telephone call on a Twilio media leg, in both topologies: the bot dials us, or we dial the bot."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from rig import Bot, Rig, correlation, decoded, rendering, run, serving, speech_settings, tones_in, until
from twilio_peer import TwilioPeer, calling
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus

from telephony_tts.doors.twilio.codec import signature

pytestmark = pytest.mark.timed

MEDIA = "/media/twilio"


@asynccontextmanager
async def bot_first(**options: Any) -> AsyncIterator[tuple[Rig, Bot, TwilioPeer]]:
    async with serving() as rig, rig.bot(call="CA1", **options) as bot, calling(rig.url(MEDIA), "CA1") as peer:
        await peer.start(bot="sales")
        yield rig, bot, peer


@asynccontextmanager
async def media_first(**options: Any) -> AsyncIterator[tuple[Rig, Bot, TwilioPeer]]:
    async with serving() as rig, calling(rig.url(MEDIA), "CA1") as peer:
        await peer.start(bot="sales")
        await until(lambda: len(rig.server.registry), "the call")
        await peer.press("0")
        await asyncio.sleep(0.05)
        async with rig.bot(call="CA1", **options) as bot:
            yield rig, bot, peer


@asynccontextmanager
async def dialled(**options: Any) -> AsyncIterator[tuple[Rig, Bot, TwilioPeer]]:
    """The server dials the bot. Roles and messages are the same."""
    arrived: asyncio.Future[tuple[Bot, str, str]] = asyncio.get_running_loop().create_future()

    async def on_call(socket: ServerConnection) -> None:
        assert socket.request is not None
        bot = Bot(socket)  # type: ignore[arg-type]  # both sides of a WebSocket read and write alike
        arrived.set_result((bot, socket.request.path, socket.request.headers["Authorization"]))
        await bot._reader

    async with serve(on_call, "127.0.0.1", 0, compression=None) as listener:
        port = listener.sockets[0].getsockname()[1]
        settings = {
            "bot_url": f"ws://127.0.0.1:{port}/bot?tenant=7", "bot_token": "opensesame",
            "bot_inbound": options.get("inbound", "none"),
        }
        async with serving(**settings) as rig, calling(rig.url(MEDIA), "CA1") as peer:
            await peer.start(bot="sales")
            bot, path, authorization = await asyncio.wait_for(arrived, 5)
            assert path == "/bot?tenant=7&call=CA1" and authorization == "Bearer opensesame"
            bot.ready = await bot.event("ready")
            yield rig, bot, peer
            await bot.aclose()


Topology = Callable[..., AbstractAsyncContextManager[tuple[Rig, Bot, TwilioPeer]]]
both = pytest.mark.parametrize("topology", [bot_first, media_first, dialled])


@both
def test_a_whole_call(topology: Topology) -> None:
    """Greeting with a mark, a key pressed in the middle of speech, barge-in, another turn, hang-up."""

    async def main() -> None:
        async with topology() as (_, bot, peer):
            assert {"call": "CA1", "codec": "ulaw", "rate_hz": 8000}.items() <= bot.ready.items()
            call = await bot.event("call")
            assert call["stream"] == "MZCA1" and call["parameters"] == {"bot": "sales"}
            if topology is media_first:
                await bot.event("dtmf", digit="0")  # pressed before the bot was there

            await bot.send({"type": "text", "turn": "hello", "text": "Welcome to us. "})
            await bot.send({"type": "mark", "turn": "hello", "name": "welcomed"})
            await bot.send({"type": "text", "turn": "hello", "text": "Press one.", "last": True})
            await bot.event("started", turn="hello")
            await peer.press("1")
            await bot.event("dtmf", digit="1")
            mark = await bot.event("mark")
            assert mark == {"type": "mark", "name": "welcomed", "state": "played", "turn": "hello"}
            done = await bot.event("done", turn="hello")
            assert len(peer.played) == done["audio_ms"] // 20, "done means played, not sent"
            assert correlation(decoded(peer.played), rendering(["Welcome to us.", "Press one."])) >= 0.99

            n_before = len(peer.played)
            await bot.say("aaaa aaaa aaaa aaaa aaaa aaaa.", "long")
            await peer.hears(n_before + 25)
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="long")
            n_heard = len(peer.played) - n_before
            await bot.say("uuuu uuuu.", "next")
            await bot.event("done", turn="next")
            assert peer.n_clears == 1
            after = peer.received[[m["event"] for m in peer.received].index("clear") :]
            frames = [base64.b64decode(m["media"]["payload"]) for m in after if m["event"] == "media"]
            assert "a" not in tones_in(frames, "au") and "u" in tones_in(frames, "au"), "stale audio after the clear"
            assert cleared["heard_text"] + cleared["unheard_text"] == "aaaa aaaa aaaa aaaa aaaa aaaa."
            assert cleared["basis"] == "marks"
            assert abs(cleared["heard_ms"] - 20 * n_heard) <= 60

            await peer.hang_up()
            await bot.event("hangup", reason="hangup")
            assert (await bot.gone())[0] == 1000 and (await peer.gone())[0] == 1000

    run(main)


@both
def test_either_side_may_hang_up_in_the_middle_of_speech(topology: Topology) -> None:
    async def main() -> None:
        async with topology() as (rig, bot, peer):
            await bot.say("This is going to be interrupted by a hang-up.", "a")
            await peer.hears(16)  # 320 ms; "This" takes 240
            await peer.hang_up()
            cleared = await bot.event("cleared", turn="a")
            assert cleared["reason"] == "hangup" and cleared["heard_text"] in ("This", "This is")
            await bot.event("hangup", reason="hangup")
            assert (await bot.gone())[0] == 1000 and (await peer.gone())[0] == 1000
            await rig.empty()

    run(main)


@both
def test_the_callers_stream_ends_when_the_bot_leaves(topology: Topology) -> None:
    async def main() -> None:
        async with topology() as (rig, bot, peer):
            await bot.say("This is going to be interrupted by the bot.", "a")
            await peer.hears(5)
            await bot.socket.close()
            assert (await peer.gone())[0] == 1000
            assert peer.n_clears == 1, "what Twilio still has in its buffer must not be played on"
            await rig.empty()

    run(main)


@both
def test_close_finishes_the_speech_and_then_ends_the_call(topology: Topology) -> None:
    async def main() -> None:
        async with topology() as (_, bot, peer):
            await bot.say("Thank you. Good bye.", "a")
            await bot.send({"type": "close"})
            await bot.event("done", turn="a")
            assert (await peer.gone())[0] == 1000
            assert correlation(decoded(peer.played), rendering(["Thank you.", "Good bye."])) >= 0.99

    run(main)


@both
@pytest.mark.parametrize("form", ["base64", "binary"])
def test_the_callers_audio_reaches_a_bot_that_asks(topology: Topology, form: str) -> None:
    async def main() -> None:
        voice = [os.urandom(160) for _ in range(15)]
        async with topology(inbound=form) as (_, bot, peer):
            await bot.event("call")
            await peer.speak(voice)
            if form == "binary":
                assert await bot.frames_to(15) == voice
            else:
                await bot.event("media", media={
                    "track": "inbound", "timestamp": "280", "payload": base64.b64encode(voice[14]).decode(),
                })  # fmt: skip
                media = [e["media"] for e in bot.events if e.get("event") == "media"]
                assert [base64.b64decode(m["payload"]) for m in media] == voice
                assert [m["timestamp"] for m in media] == [str(20 * n) for n in range(15)]
            await bot.send({"type": "config", "inbound": "none"})
            await bot.send({"type": "ping"})
            await bot.event("pong")
            n_entries = len(bot.log)
            await peer.speak(voice[:3])
            await peer.press("9")
            await bot.event("dtmf")
            assert len(bot.log) == n_entries + 1

    run(main)


def test_a_joining_bot_gets_an_error_for_options_of_the_media_leg() -> None:
    async def main() -> None:
        speech = speech_settings(codec="alaw")
        async with serving(speech=speech) as rig, rig.bot(call="CA1", codec="pcm", rate=16000) as bot:
            assert bot.ready["codec"] == "ulaw" and bot.ready["rate_hz"] == 8000
            warnings = [await bot.event("warning"), await bot.event("warning")]
            assert {w["code"] for w in warnings} == {"option_ignored"}
            async with calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.say("All is well.", "a")
                await bot.event("done", turn="a")
                assert correlation(decoded(peer.played), rendering(["All is well."])) >= 0.99

    run(main)


def test_text_sent_before_the_media_leg_is_spoken_once_it_joins() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(call="CA1") as bot:
            await bot.say("Hello caller.", "a")
            await bot.send({"type": "status"})
            assert (await bot.event("status"))["media"] == "waiting"
            async with calling(rig.url(MEDIA), "CA1") as peer:
                await peer.start()
                await bot.event("done", turn="a")
                assert correlation(decoded(peer.played), rendering(["Hello caller."])) >= 0.99

    run(main)


def test_an_id_is_free_again_as_soon_as_its_call_is_over() -> None:
    """TwiML may open one stream after the other for one call: the second is a call of its own."""

    async def main() -> None:
        async with serving() as rig:
            for n in range(3):
                async with calling(rig.url(MEDIA), "CA1") as peer:
                    await peer.start(round=str(n))
                    async with rig.bot(call="CA1") as bot:
                        assert (await bot.event("call"))["parameters"] == {"round": str(n)}
                        await peer.hang_up()
                        await bot.event("hangup")

    run(main)


def test_both_legs_at_the_same_instant_make_one_call() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def caller(n: int) -> None:
                async with calling(rig.url(MEDIA), f"CA{n}") as peer:
                    await peer.start()
                    await peer.gone()
                    assert len(peer.played) >= 15

            async def bot_of(n: int) -> None:
                async with rig.bot(call=f"CA{n}") as bot:
                    await bot.say("Hallo.", "a")
                    await bot.event("done", turn="a")
                    await bot.send({"type": "close"})
                    await bot.gone()

            await asyncio.gather(*(work for n in range(20) for work in (caller(n), bot_of(n))))

    run(main)


TOKEN = "12345"


@pytest.mark.parametrize("public_url", [None, "wss://tts.example.com", "wss://tts.example.com/"])
def test_only_a_signed_media_leg_is_accepted(public_url: str | None) -> None:
    async def main() -> None:
        async with serving(twilio_auth_token=TOKEN, public_url=public_url) as rig:
            base = "wss://tts.example.com" if public_url else f"wss://127.0.0.1:{rig.port}"
            good = signature(TOKEN, base + MEDIA)
            async with calling(rig.url(MEDIA), "CA1", headers={"X-Twilio-Signature": good}) as peer:
                await peer.start()
                await until(lambda: len(rig.server.registry), "the call")
            wrong = signature("another", base + MEDIA)
            elsewhere = signature(TOKEN, "wss://evil.example.com" + MEDIA)
            for headers in ({"X-Twilio-Signature": wrong}, {"X-Twilio-Signature": elsewhere}, {}):
                with pytest.raises(InvalidStatus) as refused:
                    async with calling(rig.url(MEDIA), "CA1", headers=headers):
                        pass
                assert refused.value.response.status_code == 401

    run(main)
