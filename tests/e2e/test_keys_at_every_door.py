"""Named keys: their limits hold at every door, their calls are counted and told in the audit log."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from carrier_peers import ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from http_peer import ask, ask_json
from log_lines import lines
from rig import Rig, Tones, run, serving, speech_settings, until
from twilio_peer import TwilioPeer, calling, dialling
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.app.config import doors
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.runtime import metrics
from telephony_tts.transport.door import Doors

pytestmark = pytest.mark.slow


class TwoVoices(Tones):
    """Tones with the voices `low` and `high` too. `by` has what was spoken with which."""

    def __init__(self, **how: Any) -> None:
        super().__init__(voice_names=("tone", "low", "high"), **how)
        self.by: list[tuple[str | None, str]] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.by.append((utterance.voice, utterance.text))
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                yield chunk


def key(name: str, **limits: Any) -> Key:
    return Key(name, digest_of(f"{name}-token".encode()), **limits)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-token"}


@asynccontextmanager
async def keyed(*keys: Key, engine: Tones | None = None, **how: Any) -> AsyncIterator[tuple[Rig, KeyRing]]:
    """A server with these named keys and the token `plain-token`."""
    ring = KeyRing(("plain-token",), keys)
    engine = engine or Tones()
    speech = speech_settings(pace="burst")
    async with serving(engine, catalog=Catalog([engine]), speech=speech, keys=ring, **how) as rig:
        yield rig, ring


async def first_message(url: str, headers: dict[str, str]) -> dict[str, Any]:
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        told: dict[str, Any] = json.loads(await socket.recv())
        return told


# ------------------------------------------------------------------- who gets in


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/stream", {}),
        ("/v1/speak", {}),
        ("/v2/speak?model=flux-alexis-en&encoding=linear16&sample_rate=24000", {}),
        ("/tts/websocket", {}),
        ("/api-ws/v1/inference", {}),
        ("/jambonz/tts", {}),
        ("/media/native", {}),
        ("/media/asterisk", {}),
    ],
)
def test_every_socket_asks_for_a_key_and_takes_a_named_one(path: str, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with keyed(key("acme"), media_start_s=0.3) as (rig, ring):
            for wrong in ({}, {"Authorization": "Bearer wrong"}):
                with pytest.raises(InvalidStatus) as raised:
                    async with connect(rig.url(path), additional_headers=wrong, proxy=None):
                        pass
                assert raised.value.response.status_code == 401
            async with connect(rig.url(path), additional_headers=bearer("acme"), proxy=None):
                pass
            ring.replace(())
            with pytest.raises(InvalidStatus):
                async with connect(rig.url(path), additional_headers=bearer("acme"), proxy=None):
                    pass

    run(main)


def test_a_key_that_is_removed_during_its_call_goes_on_with_the_call() -> None:
    async def main() -> None:
        async with keyed(key("acme", chars_per_day=30)) as (rig, ring):
            async with rig.bot(headers=bearer("acme")) as bot:
                await bot.say("Hello there.", "a")
                await bot.event("done", turn="a")
                ring.replace((key("other"),))
                await bot.say("Still here.", "b")
                await bot.event("done", turn="b")
                await bot.say("Beyond the limit.", "c")
                assert (await bot.event("error", turn="c"))["code"] == "key_limit", "its limits hold on"
            with pytest.raises(InvalidStatus):
                async with rig.bot(headers=bearer("acme")):
                    pass

    run(main)


# ------------------------------------------------------------------------ calls


def test_a_key_has_no_more_calls_than_its_limit_whichever_door_they_come_by() -> None:
    async def main() -> None:
        async with keyed(key("acme", calls=2), key("other", calls=1)) as (rig, _):
            refused = metrics.value("telephony_tts_refused_total", reason="key_limit")
            acme = bearer("acme")
            async with rig.bot(headers=acme), connect(rig.url("/v1/speak"), additional_headers=acme, proxy=None):
                await until(lambda: rig.server.registry.calls_by_key().get("acme") == 2, "two calls")
                for path in ("/v1/stream", "/v1/speak", "/tts/websocket", "/media/native"):
                    with pytest.raises(InvalidStatus) as raised:
                        async with connect(rig.url(path), additional_headers=acme, proxy=None):
                            pass
                    assert raised.value.response.status_code == 429, path
                    assert "acme" in raised.value.response.body.decode(), path
                    assert int(raised.value.response.headers["Retry-After"]) >= 1
                answer = await ask_json(rig.port, "/tts/stream", {"text": "Hello."}, **acme)
                assert answer.status == 429 and answer.code == "key_limit"
                async with rig.bot(headers=bearer("other")), rig.bot(headers=bearer("plain")):
                    pass
                assert metrics.value("telephony_tts_refused_total", reason="key_limit") == refused + 5
            await rig.empty()
            async with rig.bot(headers=acme), rig.bot(headers=acme):
                pass

    run(main)


def test_bots_that_come_at_the_same_moment_do_not_pass_the_limit() -> None:
    async def main() -> None:
        async with keyed(key("acme", calls=2)) as (rig, _):
            stay = asyncio.Event()

            async def bot() -> str:
                try:
                    async with connect(rig.url(), additional_headers=bearer("acme"), proxy=None) as socket:
                        told = json.loads(await socket.recv())
                        await asyncio.wait_for(stay.wait(), 10)
                        return str(told["type"]) if told["type"] == "ready" else str(told["code"])
                except InvalidStatus as refused:
                    return str(refused.response.status_code)

            bots = [asyncio.ensure_future(bot()) for _ in range(8)]
            await asyncio.sleep(0.5)
            assert rig.server.registry.calls_by_key() == {"acme": 2}
            stay.set()
            told = await asyncio.gather(*bots)
            assert sorted(told).count("ready") == 2 and set(told) <= {"ready", "key_limit", "429"}

    run(main)


def test_a_bot_that_joins_a_call_brings_its_key_and_its_limit() -> None:
    """The media leg of a shared PBX has another key, or a carrier's signature."""

    async def main() -> None:
        async with keyed(key("pbx"), key("acme", calls=1), key("other")) as (rig, _):
            start = {"type": "start", "call": "one", "codec": "ulaw", "rate_hz": 8000}
            async with (
                connect(rig.url("/media/native"), additional_headers=bearer("pbx"), proxy=None) as media,
                connect(rig.url("/media/native"), additional_headers=bearer("pbx"), proxy=None) as second,
            ):
                await media.send(json.dumps(start))
                await second.send(json.dumps({**start, "call": "two"}))
                await until(lambda: rig.server.registry.calls_by_key() == {"pbx": 2}, "the calls of the PBX")
                async with rig.bot(call="one", headers=bearer("acme")):
                    assert rig.server.registry.calls_by_key() == {"pbx": 1, "acme": 1}
                    told = await first_message(rig.url(call="two"), bearer("acme"))
                    assert (told["code"], told["fatal"]) == ("key_limit", True)
                    assert rig.server.registry.calls_by_key() == {"pbx": 1, "acme": 1}
                    async with rig.bot(call="two", headers=bearer("other")):
                        pass

    run(main)


def test_a_call_in_which_a_key_has_spoken_is_closed_to_bots_of_other_keys() -> None:
    async def main() -> None:
        async with (
            keyed(key("pbx"), key("acme"), key("other")) as (rig, _),
            connect(rig.url("/media/native"), additional_headers=bearer("pbx"), proxy=None) as media,
        ):
            await media.send(json.dumps({"type": "start", "call": "c", "codec": "ulaw", "rate_hz": 8000}))
            await until(lambda: rig.server.registry.find("c") is not None, "the call")
            async with connect(rig.url("/calls/c/v1/speak"), additional_headers=bearer("acme"), proxy=None):
                await until(lambda: rig.server.registry.calls_by_key() == {"acme": 1}, "the bot has joined")
            call = rig.server.registry.find("c")
            assert call is not None
            await until(lambda: call.bot is None, "the bot has left, and may come back")
            told = await first_message(rig.url(call="c"), bearer("other"))
            assert (told["code"], told["fatal"]) == ("call_taken", True)
            async with connect(rig.url("/calls/c/v1/speak"), additional_headers=bearer("other"), proxy=None) as bot:
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(bot.recv(), 5)
                assert bot.close_code == 4409
            answer = await ask_json(rig.port, "/calls/c/tts/stream", {"text": "Hello."}, **bearer("other"))
            assert answer.status == 409 and answer.code == "call_taken"
            assert rig.server.registry.calls_by_key() == {"acme": 1}
            async with rig.bot(call="c", headers=bearer("acme")):
                pass

    run(main)


# ------------------------------------------------------------------- characters


def test_the_characters_of_a_day_are_those_of_all_doors_together() -> None:
    async def main() -> None:
        async with keyed(key("acme", chars_per_day=40), key("other")) as (rig, _):
            acme = bearer("acme")
            async with rig.bot(headers=acme) as bot:
                await bot.say("Ten chars.", "a")
                await bot.event("done", turn="a")
            answer = await ask_json(rig.port, "/tts/stream", {"text": "Ten chars."}, **acme)
            assert answer.status == 200
            async with connect(rig.url("/v1/speak"), additional_headers=acme, proxy=None) as deepgram:
                await deepgram.send(json.dumps({"type": "Speak", "text": "Ten chars."}))
                await deepgram.send(json.dumps({"type": "Flush"}))
                while not isinstance(await deepgram.recv(), bytes):
                    pass
            answer = await ask_json(rig.port, "/tts/stream", {"text": "Eleven char"}, **acme)
            assert answer.status == 429 and answer.code == "key_limit" and "has used 30" in answer.body.decode()
            async with rig.bot(headers=acme) as bot:
                await bot.send({"type": "text", "text": "Ten chars. ", "turn": "b"})
                assert (await bot.event("error", turn="b"))["code"] == "key_limit"
                await bot.send({"type": "text", "text": "Ten char", "turn": "c"})
                await bot.send({"type": "text", "text": "s and more", "turn": "c"})
                error = await bot.event("error", about="c")
                assert error["code"] == "key_limit" and error["retryable"] is False
                await bot.send({"type": "end", "turn": "c"})
                assert (await bot.event("done", turn="c"))["chars"] == 8, "what came before is spoken"
            async with rig.bot(headers=bearer("other")) as bot:
                await bot.say("Not their limit.", "a")
                await bot.event("done", turn="a")

    run(main)


# ----------------------------------------------------------------------- voices


def test_a_key_speaks_with_its_voices_alone() -> None:
    async def main() -> None:
        engine = TwoVoices()
        async with keyed(key("acme", voices=("high",)), key("all"), engine=engine) as (rig, _):
            acme = bearer("acme")
            async with rig.bot(headers=acme) as bot:
                assert bot.ready["voice"] == "high", "its first voice is its default"
                await bot.say("One.", "a")
                await bot.event("done", turn="a")
                await bot.send({"type": "config", "voice": "low"})
                assert (await bot.event("error"))["code"] == "unknown_voice"
                await bot.say("<speak><voice name='low'>Two.</voice></speak>", "b")
                await bot.event("done", turn="b")
            answer = await ask_json(rig.port, "/tts/stream", {"text": "Three.", "voice": "low"}, **acme)
            assert answer.status == 404 and answer.code == "unknown_voice"
            answer = await ask_json(rig.port, "/tts/stream", {"text": "Four."}, **acme)
            assert answer.status == 200
            answer = await ask_json(rig.port, "/v1/audio/speech", {"input": "Five.", "voice": "low"}, **acme)
            assert answer.status == 404
            answer = await ask_json(rig.port, "/v1/text-to-speech/low", {"text": "Six."}, **acme)
            assert answer.status == 404
            listed = (await ask(rig.port, "GET", "/v1/voices", **acme)).json()["voices"]
            assert [voice["name"] for voice in listed] == ["high"]
            names = {voice["id"] for voice in (await ask(rig.port, "GET", "/v1/audio/voices", **acme)).json()["voices"]}
            assert "high" in names and "low" not in names
            with pytest.raises(InvalidStatus) as raised:
                async with connect(rig.url("/v1/speak", model="low"), additional_headers=acme, proxy=None):
                    pass
            told = raised.value.response.body.decode()
            assert raised.value.response.status_code == 400 and "fake/high" in told and "fake/low" not in told
            assert {voice for voice, _ in engine.by} == {"high"}
            async with rig.bot(headers=bearer("all"), voice="low") as bot:
                await bot.say("Seven.", "a")
                await bot.event("done", turn="a")
            assert engine.by[-1] == ("low", "Seven.")

    run(main)


def test_a_call_that_a_bot_joins_speaks_with_the_voices_of_its_key() -> None:
    async def main() -> None:
        engine = TwoVoices()
        async with (
            keyed(key("pbx"), key("acme", voices=("low",)), engine=engine) as (rig, _),
            connect(rig.url("/media/native"), additional_headers=bearer("pbx"), proxy=None) as media,
        ):
            await media.send(json.dumps({"type": "start", "call": "c", "codec": "ulaw", "rate_hz": 8000}))
            async with rig.bot(call="c", headers=bearer("acme")) as bot:
                assert bot.ready["voice"] == "low"
                await bot.say("One.", "a")
                await until(lambda: engine.by == [("low", "One.")], "it speaks")

    run(main)


# ---------------------------------------------------------------- lexicons, audit


def test_a_key_names_only_its_lexicons() -> None:
    from telephony_tts.ops.lexicon_files import compiled, parse
    from telephony_tts.session.lexicons import CallLexicon

    async def main() -> None:
        shelf = {name: compiled(parse(f"SQL: {name}\n", "x"), "x") for name in ("brands", "cities", "always")}
        engine = Tones()
        ring = KeyRing((), (key("acme", lexicons=("brands",)),))
        speech = speech_settings(lexicon=CallLexicon(shelf), pace="burst")
        how = {"keys": ring, "key_lexicons": {"acme": ("always",)}}
        async with serving(engine, speech=speech, **how) as rig:
            async with rig.bot(headers=bearer("acme")) as bot:
                await bot.say("SQL.", "a")
                await bot.event("done", turn="a")
            async with rig.bot(headers=bearer("acme"), lexicon="brands") as bot:
                await bot.say("SQL.", "a")
                await bot.event("done", turn="a")
            assert engine.spoken == ["always.", "brands."]
            told = await first_message(rig.url(lexicon="cities"), bearer("acme"))
            assert told["code"] == "bad_option" and "key acme may use brands" in told["message"]

    run(main)


def test_the_audit_log_has_a_line_for_each_call(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with keyed(key("acme")) as (rig, _):
            async with rig.bot(headers=bearer("acme"), call="CA1", audio="binary") as bot:
                await bot.say("Hello there.", "a")
                await bot.event("done", turn="a")
                await bot.say("Good bye.", "b")
                await bot.event("done", turn="b")
            await ask_json(rig.port, "/tts/stream", {"text": "Hello."}, **bearer("plain"))
            await rig.empty()

    with caplog.at_level("INFO"):
        run(main)
    of_bot, of_http = lines(caplog, "call_audit")
    assert (of_bot["call"], of_bot["key"], of_bot["media"]) == ("CA1", "acme", "stream")
    assert (of_bot["turns"], of_bot["characters"], of_bot["code"]) == (2, len("Hello there.Good bye."), 1000)
    assert of_bot["voices"] == [f"fake/{Tones().voices[0].name}"]
    assert "key" not in of_http and of_http["media"] == "http" and of_http["characters"] == 6
    assert "token" not in caplog.text.replace("tokens", ""), "no token is in the log"


def test_elevenlabs_sends_its_key_in_the_first_message() -> None:
    async def main() -> None:
        async with keyed(key("acme", calls=1, chars_per_day=100)) as (rig, ring):
            path = "/v1/text-to-speech/default/stream-input?output_format=ulaw_8000"
            async with connect(rig.url(path), proxy=None) as socket:
                await socket.send(json.dumps({"text": " ", "xi_api_key": "acme-token"}))
                await socket.send(json.dumps({"text": "Hello there. ", "flush": True}))
                while not json.loads(await socket.recv()).get("audio"):
                    pass
                assert rig.server.registry.calls_by_key() == {"acme": 1}
                assert ring.characters.today()["acme"] == len("Hello there. ")
                async with connect(rig.url(path), proxy=None) as second:
                    await second.send(json.dumps({"text": " ", "xi_api_key": "acme-token"}))
                    with pytest.raises(ConnectionClosed):
                        while True:
                            await asyncio.wait_for(second.recv(), 5)
                    assert second.close_code == 4429

    run(main)


def test_a_carrier_brings_its_key_as_a_parameter() -> None:
    async def main() -> None:
        async with keyed(key("acme", calls=1)) as (rig, _):
            sockets = []
            for n in range(2):
                socket = await connect(rig.url("/media/twilio"), proxy=None)
                sockets.append(socket)
                await socket.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
                start = {
                    "streamSid": f"MZ{n}", "callSid": f"CA{n}", "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                    "customParameters": {"token": "acme-token"},
                }  # fmt: skip
                await socket.send(
                    json.dumps({"event": "start", "sequenceNumber": "1", "start": start, "streamSid": f"MZ{n}"})
                )
                if not n:
                    await until(lambda: rig.server.registry.calls_by_key() == {"acme": 1}, "the call has the key")
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(sockets[1].recv(), 5)
            assert sockets[1].close_code == 4429
            for socket in sockets:
                await socket.close()

    run(main)


# ------------------------------------------------------------------- keys that are no PBX

MEDIA = [f"{path}{'?call=c1' if side.reads_options else ''}" for path, side in Doors(doors()).media.items()]


@pytest.mark.parametrize("path", [*MEDIA, "/media/asterisk?dial=ws://pbx.example/media/1&call=c1"])
def test_a_key_without_media_legs_opens_none(path: str) -> None:
    async def main() -> None:
        async with keyed(key("bots", media_legs=False), key("pbx"), media_start_s=0.3) as (rig, _):
            password = base64.b64encode(b"user:bots-token").decode()
            joint = "&" if "?" in path else "?"
            for address, headers in (
                (path, bearer("bots")),
                (path, {"Authorization": f"Basic {password}"}),
                (path, {"X-API-Key": "bots-token"}),
                (f"{path}{joint}token=bots-token", {}),
            ):
                with pytest.raises(InvalidStatus) as refused:
                    async with connect(rig.url(address), additional_headers=headers, proxy=None):
                        pass
                assert refused.value.response.status_code == 403
                assert b"key bots may not be a media leg" in refused.value.response.body
            for name in ("pbx", "plain"):
                async with connect(rig.url(path), additional_headers=bearer(name), proxy=None):
                    pass

    run(main)


PEERS: dict[str, Any] = {
    "twilio": TwilioPeer, "telnyx": TelnyxPeer, "plivo": PlivoPeer, "signalwire": SignalWirePeer, "exotel": ExotelPeer,
}  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("handshake", [None, "plain"], ids=["no token before", "a plain token before"])
def test_nor_does_it_by_the_parameter_of_a_carrier(name: str, handshake: str | None) -> None:
    async def main() -> None:
        async with keyed(key("bots", media_legs=False), key("pbx")) as (rig, _):
            url, headers = rig.url(f"/media/{name}"), bearer(handshake) if handshake else {}
            async with dialling(PEERS[name], url, "CA1", headers=headers) as peer:
                await peer.start(token="bots-token")
                assert await peer.gone() == (4403, "key bots may not be a media leg (media_legs in keys.file)")
            assert not rig.server.registry.calls()
            async with dialling(PEERS[name], url, "CA2", headers=headers) as peer:
                await peer.start(token="pbx-token")
                await until(lambda: rig.server.registry.find("CA2") is not None, "its call")

    run(main)


def test_it_is_a_bot_at_every_other_door() -> None:
    async def main() -> None:
        async with keyed(key("bots", media_legs=False), key("pbx")) as (rig, _):
            bots = bearer("bots")
            async with rig.bot(headers=bots) as bot:
                await bot.say("Hello.", "t")
                await bot.event("done", turn="t")
            for path in ("/v1/speak", "/tts/websocket", "/jambonz/tts"):
                async with connect(rig.url(path), additional_headers=bots, proxy=None):
                    pass
            assert (await ask_json(rig.port, "/tts/stream", {"text": "Hello."}, **bots)).status == 200
            async with calling(rig.url("/media/twilio"), "CA1", headers=bearer("pbx")) as peer:
                await peer.start()
                async with rig.bot(headers=bots, call="CA1", audio="none") as bot:
                    await bot.say("Hello.", "t")
                    await bot.event("done", turn="t")

    run(main)
