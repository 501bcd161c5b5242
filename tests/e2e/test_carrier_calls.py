"""Telephone calls on the media legs of Telnyx, Plivo, SignalWire and Exotel, each with a simulated carrier."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from carrier_peers import CarrierPeer, ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from dtmf_reader import heard_keys
from neighbour import neighbour
from rig import Bot, Rig, correlation, decoded, rendering, run, serving, speech_settings, until
from twilio_peer import dialling
from websockets.exceptions import InvalidStatus

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.doors.plivo.codec import signature_v3

pytestmark = pytest.mark.timed

PEERS: dict[str, type[CarrierPeer]] = {
    "telnyx": TelnyxPeer, "plivo": PlivoPeer, "signalwire": SignalWirePeer, "exotel": ExotelPeer,
}  # fmt: skip
FORMATS: list[tuple[str, str, dict[str, Any]]] = [
    ("telnyx", "", {}),
    ("telnyx", "", {"codec": "alaw"}),
    ("telnyx", "", {"codec": "pcm", "rate_hz": 16000}),
    ("telnyx", "codec=l16&rate=16000", {"codec": "alaw", "spoken": ("pcm", 16000)}),
    ("plivo", "", {}),
    ("plivo", "", {"codec": "pcm", "rate_hz": 16000}),
    ("signalwire", "", {}),
    ("signalwire", "", {"codec": "pcm", "rate_hz": 24000}),
    ("exotel", "", {"codec": "pcm"}),
    ("exotel", "sample-rate=16000", {"codec": "pcm", "rate_hz": 16000}),
    ("exotel", "", {"codec": "ulaw"}),
]
every_format = pytest.mark.parametrize(("carrier", "query", "how"), FORMATS)
every_carrier = pytest.mark.parametrize("carrier", PEERS)


def usual(carrier: str) -> dict[str, Any]:
    return {"codec": "pcm"} if carrier == "exotel" else {}


@asynccontextmanager
async def call(
    carrier: str, query: str = "", how: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[Rig, Bot, CarrierPeer]]:
    """A bot and a carrier that has started."""
    how = usual(carrier) if how is None else how
    async with serving() as rig, rig.bot(call="CA1", **options) as bot:
        path = f"/media/{carrier}" + (f"?{query}" if query else "")
        async with dialling(PEERS[carrier], rig.url(path), "CA1", **how) as peer:
            await peer.start(bot="sales")
            yield rig, bot, peer


def heard_tones(peer: CarrierPeer, texts: list[str], n_before: int = 0) -> float:
    pcm = decoded(peer.played[n_before:], peer.spoken_codec)
    return correlation(pcm, rendering(texts, peer.spoken_hz))


def n_audible(pcm: Pcm, rate_hz: int) -> int:
    """How many pieces of 20 ms are not silent. The engine's spaces are."""
    n = rate_hz // 50
    return sum(np.abs(pcm[at : at + n]).max() > 300 for at in range(0, len(pcm), n))


def assert_heard_once(peer: CarrierPeer, texts: list[str]) -> None:
    """All of the texts was heard, and none of it twice. Two frames each may begin or end in silence."""
    wanted = sum(n_audible(rendering([text], peer.spoken_hz), peer.spoken_hz) for text in texts)
    heard = n_audible(decoded(peer.played, peer.spoken_codec), peer.spoken_hz)
    assert abs(heard - wanted) <= 2 * len(texts), (heard, wanted)


@every_format
def test_a_whole_call(carrier: str, query: str, how: dict[str, Any]) -> None:
    """Greeting with a mark, a key, barge-in, another turn, and a hang-up after the last word."""

    async def main() -> None:
        async with call(carrier, query, how) as (_, bot, peer):
            started = await bot.event("call")
            spoken = {"codec": peer.spoken_codec, "rate_hz": peer.spoken_hz}
            assert (spoken | {"call": "CA1", "stream": "MZCA1"}).items() <= started.items()
            assert started["parameters"]["bot"] == "sales"

            await bot.send({"type": "text", "turn": "hello", "text": "Welcome to us. "})
            await bot.send({"type": "mark", "turn": "hello", "name": "welcomed"})
            await bot.send({"type": "text", "turn": "hello", "text": "Press one.", "last": True})
            await bot.event("started", turn="hello")
            await peer.press("1")
            await bot.event("dtmf", digit="1")
            mark = await bot.event("mark")
            assert mark == {"type": "mark", "name": "welcomed", "state": "played", "turn": "hello"}
            done = await bot.event("done", turn="hello")
            assert len(peer.played) >= done["audio_ms"] // 20, "done means played, not sent"
            assert heard_tones(peer, ["Welcome to us.", "Press one."]) >= 0.99

            n_before = len(peer.played)
            await bot.say("aaaa aaaa aaaa aaaa aaaa aaaa.", "long")
            await peer.hears(n_before + 25)
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="long")
            n_heard = len(peer.played) - n_before
            assert cleared["heard_text"] + cleared["unheard_text"] == "aaaa aaaa aaaa aaaa aaaa aaaa."
            assert cleared["basis"] == "marks"
            assert abs(cleared["heard_ms"] - 20 * n_heard) <= 60
            await until(lambda: peer.n_clears == 1, "the clear")
            n_before = len(peer.played)

            await bot.say("uuuu uuuu.", "next")
            await bot.event("done", turn="next")
            assert heard_tones(peer, ["uuuu uuuu."], n_before) >= 0.99, "no stale audio after the clear"

            n_before = len(peer.played)
            await bot.say("Good bye.", "last")
            await bot.send({"type": "close"})
            await bot.event("done", turn="last")
            assert (await peer.gone())[0] == 1000 and (await bot.gone())[0] == 1000
            assert heard_tones(peer, ["Good bye."], n_before) >= 0.99

    run(main)


@every_carrier
def test_the_carrier_hangs_up_in_the_middle_of_speech(carrier: str) -> None:
    async def main() -> None:
        async with call(carrier) as (rig, bot, peer):
            await bot.say("This is going to be interrupted by a hang-up.", "a")
            await peer.hears(16)  # 320 ms; "This" takes 240
            await peer.hang_up()
            cleared = await bot.event("cleared", turn="a")
            assert cleared["reason"] == "hangup" and cleared["heard_text"] in ("This", "This is")
            await bot.event("hangup")
            assert (await bot.gone())[0] == 1000
            await rig.empty()

    run(main)


@every_carrier
def test_turns_in_a_row_and_exact_marks(carrier: str) -> None:
    """Each mark comes when the caller has heard its place: the peer's own playout says when that was."""

    async def main() -> None:
        async with call(carrier) as (_, bot, peer):
            await bot.event("call")
            texts = ["One one one.", "Two two two two.", "Three three."]
            for n, text in enumerate(texts):
                await bot.say(text, f"t{n}")
                await bot.send({"type": "mark", "turn": f"t{n}", "name": f"m{n}"})
            at_frames = []
            for n in range(3):
                assert (await bot.event("mark"))["name"] == f"m{n}"
                at_frames.append(len(peer.played))
            await bot.event("done", turn="t2")
            spoken_ms = [e["audio_ms"] for e in bot.events if e["type"] == "done"]
            # Exotel's last message of a turn is filled up with silence, and a mark inside a message comes behind it.
            slack = 12 if carrier == "exotel" else 3
            ends = np.cumsum(spoken_ms) // 20
            for n in range(3):
                late = at_frames[n] - ends[n]
                assert -3 <= late <= slack * (n + 1), (at_frames, ends)
            assert_heard_once(peer, texts)
            sentences = [e for e in bot.events if e["type"] == "sentence"]
            assert [e["text"] for e in sentences] == texts

    run(main)


@every_carrier
def test_a_turn_that_stays_after_a_clear_is_heard_whole(carrier: str) -> None:
    async def main() -> None:
        async with call(carrier) as (_, bot, peer):
            await bot.event("call")
            await bot.say("oooo oooo oooo oooo oooo.", "stays")
            await bot.say("eeee eeee.", "goes")
            await peer.hears(20)
            await bot.send({"type": "clear", "turn": "goes"})
            await bot.event("cleared", turn="goes")
            done = await bot.event("done", turn="stays", within_s=4)
            assert done["audio_ms"] == 1500
            assert_heard_once(peer, ["oooo oooo oooo oooo oooo."])

    run(main)


@every_format
def test_the_callers_audio_reaches_the_bot(carrier: str, query: str, how: dict[str, Any]) -> None:
    async def main() -> None:
        async with call(carrier, query, how, inbound="base64") as (_, bot, peer):
            await bot.event("call")
            n_bytes = peer.rate_hz * (2 if how.get("codec") == "pcm" else 1) // 50
            voice = [os.urandom(n_bytes) for _ in range(10)]
            # Telnyx does not promise an order.
            await peer.say(voice, [0, 2, 1, 3, 4, 5, 8, 7, 6, 9] if carrier == "telnyx" else None)
            await peer.press("9")
            await bot.event("dtmf")
            heard = b"".join(base64.b64decode(e["media"]["payload"]) for e in bot.events if e.get("event") == "media")
            if peer.spoken_codec == how.get("codec", "ulaw"):
                assert heard == b"".join(voice)
            else:
                assert len(heard) == 10 * 640
                wanted = CODECS[how["codec"]].decode(b"".join(voice))
                n = 32  # 2 ms at 16 kHz
                assert correlation(np.frombuffer(heard, "<i2")[n::2], wanted[: 1600 - n // 2]) > 0.7

    run(main)


def test_a_lost_message_of_telnyx_delays_the_callers_audio_by_100_ms_at_most() -> None:
    async def main() -> None:
        async with call("telnyx", inbound="base64") as (_, bot, peer):
            await bot.event("call")
            voice = [bytes([n]) * 160 for n in range(12)]
            await peer.say(voice, [0, 1, *range(3, 12), 2])
            await peer.press("9")
            await bot.event("dtmf")
            heard = b"".join(base64.b64decode(e["media"]["payload"]) for e in bot.events if e.get("event") == "media")
            assert heard == b"".join(voice[:2] + voice[3:]), "in order, and what comes too late is dropped"

    run(main)


# ------------------------------------------------------------------------- tones


@pytest.mark.parametrize("carrier", ["signalwire", "plivo"])
def test_a_bots_tones_reach_the_carrier_behind_its_speech(carrier: str) -> None:
    async def main() -> None:
        async with call(carrier) as (_, bot, peer):
            await bot.event("call")
            await bot.say("Please hold the line.", "a")
            await bot.event("started")
            await bot.send({"type": "dtmf", "digits": "12#w"})
            await bot.event("done", turn="a")
            await until(lambda: peer.tones == ["12#w"], "the tones")
            await bot.event("done", turn="t2")
            assert heard_tones(peer, ["Please hold the line."]) >= 0.99

    run(main)


@pytest.mark.parametrize("carrier", ["telnyx", "exotel"])
def test_a_carrier_without_a_message_for_tones_gets_them_in_the_audio(carrier: str) -> None:
    async def main() -> None:
        async with call(carrier) as (_, bot, peer):
            await bot.event("call")
            await bot.send({"type": "dtmf", "digits": "12#"})
            await bot.event("done", turn="t1")
            keys = heard_keys(decoded(peer.played, peer.spoken_codec), peer.spoken_hz)
            assert "".join(key.digit for key in keys) == "12#" and not any(key.faults() for key in keys)
            await bot.send({"type": "config", "dtmf": "message"})
            await bot.send({"type": "dtmf", "digits": "12#"})
            assert (await bot.event("warning"))["code"] == "dtmf_not_supported"
            await bot.send({"type": "dtmf", "digits": "12x"})
            assert (await bot.event("error"))["code"] == "bad_field"

    run(main)


# --------------------------------------------------------------------- bad input


@every_carrier
def test_noise_before_and_after_start_is_dropped(carrier: str) -> None:
    async def main() -> None:
        async with (
            serving() as rig, neighbour(rig), rig.bot(call="CA1") as bot,
            dialling(PEERS[carrier], rig.url(f"/media/{carrier}"), "CA1", **usual(carrier)) as peer,
        ):
            await peer.say([b"\0" * peer.frame_bytes] * 3)
            await peer.press("1")
            await peer.socket.send(b"\x00\x01")
            await peer.socket.send("not JSON")
            await peer.start()
            await bot.event("call")
            await peer.start(again="yes")
            await peer.send("media", media={"payload": "***"})
            await peer.send("dtmf", dtmf={"digit": "55"})
            await peer.send("what")
            peer._sequence += 1000  # a gap in the numbers of messages
            await peer.report("never sent")
            await bot.say("Undisturbed.", "a")
            await bot.event("done", turn="a")
            assert len([e for e in bot.events if e.get("type") == "call"]) == 1
            assert not [e for e in bot.events if e.get("type") == "dtmf"]
            assert heard_tones(peer, ["Undisturbed."]) >= 0.99

    run(main)


@every_carrier
def test_a_format_that_cannot_be_spoken_ends_the_leg(carrier: str) -> None:
    async def main() -> None:
        async with (
            serving(media_start_s=0.3) as rig, neighbour(rig),
            dialling(PEERS[carrier], rig.url(f"/media/{carrier}"), "CA1") as peer,
        ):
            peer.encoding = "OPUS"
            await peer.start()
            assert (await peer.gone())[0] == 4400

    run(main)


def test_a_wrong_option_of_telnyxs_address_is_a_bad_request() -> None:
    async def main() -> None:
        async with serving() as rig:
            with pytest.raises(InvalidStatus) as refused:
                async with dialling(TelnyxPeer, rig.url("/media/telnyx?codec=opus"), "CA1"):
                    pass
            assert refused.value.response.status_code == 400
            assert b'codec="opus": expected one of pcmu' in (refused.value.response.body or b"")

    run(main)


# ----------------------------------------------------------------- authentication


@every_carrier
def test_a_leg_needs_a_token_in_the_handshake_or_in_start(carrier: str) -> None:
    async def main() -> None:
        path = f"/media/{carrier}"
        basic = base64.b64encode(b"key:sesame").decode()
        ways: list[tuple[str, dict[str, str], dict[str, str]]] = [
            (path, {"Authorization": "Bearer sesame"}, {}),
            (path, {"Authorization": f"Basic {basic}"}, {}),
            (path + "?token=sesame", {}, {}),
            (path, {}, {"token": "sesame"}),
            (path + "?token=sesame", {}, {"token": "sesame"}),
        ]
        bearer = {"Authorization": "Bearer sesame"}
        async with serving(tokens=("sesame",)) as rig:
            for wrong in ({}, {"token": "sesam"}):
                async with dialling(PEERS[carrier], rig.url(path), "CA1", **usual(carrier)) as peer:
                    await peer.start(**wrong)
                    assert (await peer.gone())[0] == 4401
            for n, (address, headers, parameters) in enumerate(ways):
                name = f"CA{n}"
                async with rig.bot(call=name, headers=bearer) as bot:
                    how = usual(carrier)
                    async with dialling(PEERS[carrier], rig.url(address), name, headers=headers, **how) as peer:
                        await peer.start(bot="sales", **parameters)
                        told = (await bot.event("call"))["parameters"]
                        assert told["bot"] == "sales" and "token" not in told, "the token is not passed on"

    run(main)


def test_plivo_signs_each_connection_with_a_nonce_of_its_own() -> None:
    async def main() -> None:
        base = "wss://tts.example.com"

        def signed(nonce: str, url: str = base + "/media/plivo", secret: str = "secret") -> dict[str, str]:
            header = signature_v3(secret, url, nonce)
            return {"X-Plivo-Signature-V3": header, "X-Plivo-Signature-V3-Nonce": nonce}

        async with serving(plivo_auth_token="secret", public_url=base, tokens=("sesame",)) as rig:
            url = rig.url("/media/plivo")
            for n in range(2):
                async with dialling(PlivoPeer, url, f"CA{n}", headers=signed(f"n{n}")) as peer:
                    await peer.start()
                    await until(lambda: len(rig.server.registry) == 1, "the call")
                await rig.empty()
            refused = [
                signed("n0"),  # a replay
                signed("n3", secret="other"),
                signed("n4", base + "/media/exotel"),
                {**signed("n5"), "X-Plivo-Signature-V3-Nonce": "n6"},
                {"X-Plivo-Signature-V3": signed("n7")["X-Plivo-Signature-V3"]},
                {"Authorization": "Bearer sesame"},  # a token does not replace the signature
                {},
            ]
            for headers in refused:
                with pytest.raises(InvalidStatus) as answer:
                    async with dialling(PlivoPeer, url, "CA1", headers=headers):
                        pass
                assert answer.value.response.status_code == 401

    run(main)


def test_a_lead_that_is_shorter_than_two_messages_of_exotel() -> None:
    """The server's own lead is 20 ms, its frames are 10 ms: Exotel still gets whole messages, and no gap."""

    async def main() -> None:
        speech = speech_settings(lead_ms=20, ptime_ms=10)
        async with (
            serving(speech=speech) as rig, rig.bot(call="CA1") as bot,
            dialling(ExotelPeer, rig.url("/media/exotel"), "CA1", codec="pcm") as peer,
        ):
            await peer.start()
            await bot.say("Short leads do not matter here.", "a")
            await bot.event("done", turn="a")
            assert heard_tones(peer, ["Short leads do not matter here."]) >= 0.99

    run(main)


def test_the_end_of_a_sentence_does_not_wait_for_the_bots_next_words() -> None:
    """Exotel's message is not full at the end of the first sentence, and the bot writes the second one much later."""

    async def main() -> None:
        async with call("exotel") as (_, bot, peer):
            await bot.event("call")
            await bot.send({"type": "text", "turn": "a", "text": "Let me look it up. "})
            await bot.send({"type": "mark", "turn": "a", "name": "first"})
            await bot.event("mark", name="first", within_s=2)
            assert_heard_once(peer, ["Let me look it up."])
            assert heard_tones(peer, ["Let me look it up."]) >= 0.99
            await asyncio.sleep(0.3)
            n_before = len(peer.played)
            await bot.send({"type": "text", "turn": "a", "text": "Here it is.", "last": True})
            await bot.event("done", turn="a")
            heard, wanted = decoded(peer.played[n_before:], "pcm"), rendering(["Here it is."])
            # The sentence begins inside a frame, where the first one ended.
            assert max(correlation(heard[late:], wanted) for late in range(160)) >= 0.99

    run(main)
