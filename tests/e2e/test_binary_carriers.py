"""Calls through Vonage, Genesys and jambonz: what the caller hears, what the bot is told, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from typing import Any

import numpy as np
import pytest
from binary_carriers import ID, PCMU, GenesysPeer, JambonzPeer, PlayingPeer, VonagePeer, platform
from rig import Bot, Rig, correlation, decoded, rendering, run, serving, until
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.timed

SENTENCE = "Your parcel is here."
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen."
LEGS = [("/media/vonage", VonagePeer), ("/media/genesys", GenesysPeer), ("/media/jambonz", JambonzPeer)]
CALLER = bytes(range(256)) * 10
"""What the caller says: 160 ms of samples of 2 bytes."""


def assert_prefix_was_heard(cleared: dict[str, Any], heard_ms: float, slack_ms: float = 150) -> None:
    """The text that counts as heard is of the audio that the caller heard."""
    assert cleared["heard_text"] + cleared["unheard_text"] == LONG
    assert cleared["heard_text"] and cleared["unheard_text"]
    assert abs(cleared["heard_ms"] - heard_ms) < slack_ms, (cleared["heard_ms"], heard_ms)


# --------------------------------------------------------------------------- Vonage


@pytest.mark.parametrize("rate_hz", [8000, 16000, 24000])
def test_a_call_through_vonage(rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, platform(VonagePeer, rig.url("/media/vonage")) as peer:
            async with rig.bot(call="c1") as bot:
                await bot.send({"type": "config", "inbound": "binary"})
                await peer.connected(rate_hz, call="c1", plan="gold")
                call = await bot.event("call")
                assert (call["codec"], call["rate_hz"]) == ("pcm", rate_hz)
                assert call["parameters"] == {"call": "c1", "plan": "gold"}
                await bot.send({"type": "text", "text": SENTENCE, "turn": "a"})
                await bot.send({"type": "mark", "name": "told", "turn": "a"})
                await bot.send({"type": "end", "turn": "a"})
                await peer.tell(CALLER, {"event": "websocket:dtmf", "digit": "5", "duration": 260})
                assert (await bot.event("dtmf"))["digit"] == "5"
                assert b"".join(bot.frames) == CALLER
                assert (await bot.event("mark"))["state"] == "played"
                await bot.event("done")
                await bot.say("Goodbye.", "b")
                await bot.send({"type": "close"})
                await bot.event("done", turn="b")
                assert await peer.gone() == (1000, "closed")
            expected = [rendering([text], rate_hz) for text in (SENTENCE, "Goodbye.")]
            assert {len(message) for message in peer.audio} == {rate_hz // 50 * 2}, "exactly 20 ms a message"
            heard = decoded([bytes(peer.heard)], "pcm")
            assert correlation(heard, expected[0]) > 0.99
            n_goodbye = len(expected[1])
            tail = heard[-(-(-n_goodbye * 50 // rate_hz) * rate_hz // 50) :]
            assert correlation(tail, expected[1]) > 0.99, "the end was heard before the hang-up"

    run(main)


def test_a_clear_empties_vonage_and_its_marks_tell_what_was_heard() -> None:
    async def main() -> None:
        async with serving() as rig, platform(VonagePeer, rig.url("/media/vonage", call="c1")) as peer:
            await peer.connected(16000)
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(16000 * 2)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared")
                await peer.gets(action="clear")
                n_heard = len(peer.heard)
                assert cleared["basis"] == "marks"
                assert_prefix_was_heard(cleared, n_heard / 32)
                n_audio = len(peer.audio)
                await asyncio.sleep(0.2)
                assert len(peer.heard) - n_heard <= 2 * 640 and len(peer.audio) == n_audio
                await bot.say(SENTENCE, "b")
                await bot.event("done", turn="b")
                heard = decoded([bytes(peer.heard[-len(b"".join(peer.audio[n_audio:])) :])], "pcm")
                assert correlation(heard, rendering([SENTENCE], 16000)) > 0.99

    run(main)


def test_vonage_hangs_up_by_closing() -> None:
    async def main() -> None:
        async with serving() as rig, platform(VonagePeer, rig.url("/media/vonage")) as peer:
            await peer.connected(uuid="c1")
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(3200)
                await peer.socket.close()
                assert (await bot.event("cleared"))["reason"] == "hangup"
                await bot.event("hangup")
                assert (await bot.gone())[0] == 1000

    run(main)


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwt(secret: str, issued_s: float, name: str = "1") -> str:
    claims = {"iss": "Vonage", "iat": int(issued_s), "jti": name, "application_id": "a"}
    signed = f'{base64url(b"""{"alg":"HS256","typ":"JWT"}""")}.{base64url(json.dumps(claims).encode())}'
    return f"{signed}.{base64url(hmac.digest(secret.encode(), signed.encode(), 'sha256'))}"


def test_vonage_must_sign_if_its_secret_is_configured() -> None:
    async def main() -> None:
        async with serving(vonage_signature_secret="secret", tokens=("opensesame",)) as rig:
            now_s = time.time()
            for token in ("opensesame", jwt("another", now_s), jwt("secret", now_s - 600), ""):
                await assert_refused(rig, "/media/vonage", 401, Authorization=f"Bearer {token}")
            await assert_refused(rig, "/media/vonage?token=opensesame", 401)
            url = rig.url("/media/vonage", call="c1")
            async with platform(VonagePeer, url, Authorization=f"Bearer {jwt('secret', now_s)}") as peer:
                await peer.connected()
                await until(lambda: len(rig.server.registry), "the call")
                replayed = jwt("secret", now_s - 1)  # another token of the same name
                await assert_refused(rig, "/media/vonage?call=c2", 401, Authorization=f"Bearer {replayed}")
            async with platform(
                VonagePeer, rig.url("/media/vonage", call="c2"), Authorization=f"Bearer {jwt('secret', now_s, '2')}"
            ) as peer:
                await peer.connected()
                await until(lambda: rig.server.registry.find("c2") is not None, "the next call")

    run(main)


def test_a_handshake_that_vonage_was_told_to_repeat_is_no_replay() -> None:
    async def main() -> None:
        async with serving(vonage_signature_secret="secret") as rig:
            bearer = f"Bearer {jwt('secret', time.time())}"
            rig.server.ready = False
            await assert_refused(rig, "/media/vonage?call=c1", 503, Authorization=bearer)
            rig.server.ready = True
            async with platform(VonagePeer, rig.url("/media/vonage", call="c1"), Authorization=bearer) as peer:
                await peer.connected()
                await until(lambda: len(rig.server.registry), "the call")

    run(main)


# -------------------------------------------------------------------------- Genesys


def test_a_call_through_genesys() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            async with rig.bot(call="c1") as bot:
                await bot.send({"type": "config", "inbound": "base64"})
                await peer.open("c1", inputVariables={"queue": "billing"})
                opened = await peer.gets(type="opened")
                assert (opened["seq"], opened["clientseq"]) == (1, 1)
                call = await bot.event("call")
                assert (call["codec"], call["rate_hz"], call["parameters"]["queue"]) == ("ulaw", 8000, "billing")
                await peer.speak(CALLER[:1600])
                await peer.tell(peer.message("ping", rtt="PT0.02S"), peer.message("dtmf", digit="#"))
                assert (await bot.event("dtmf"))["digit"] == "#"
                await peer.speak(CALLER[:1600])
                pong = await peer.gets(type="pong")
                assert pong["clientseq"] == 2 and pong["parameters"] == {}
                await until(lambda: len(inbound(bot)) == 2, "the caller's audio")
                assert inbound(bot) == [("0", CALLER[:1600]), ("200", CALLER[:1600])]
                await bot.send({"type": "text", "text": SENTENCE, "turn": "a"})
                await bot.send({"type": "mark", "name": "told", "turn": "a"})
                await bot.send({"type": "end", "turn": "a"})
                assert (await bot.event("mark"))["state"] == "played"
                await bot.event("done", turn="a")
                await bot.say("Goodbye.", "b")
                await bot.send({"type": "close"})
                await bot.event("done", turn="b")
                assert await peer.gone() == (1000, "stopped")
            assert [said["type"] for said in peer.received] == ["opened", "pong", "disconnect", "closed"]
            assert peer.of(type="disconnect")[0]["parameters"] == {"reason": "completed"}
            turns = [rendering([text]) for text in (SENTENCE, "Goodbye.")]
            heard = decoded([bytes(peer.heard)])
            n_first = -(-len(turns[0]) // 160) * 160
            assert correlation(heard, turns[0]) > 0.99
            assert correlation(heard[n_first:], turns[1]) > 0.99, "the end was heard before the disconnect"
            assert_packets(peer.audio, [-(-len(turn) // 160) * 160 for turn in turns], 1600)

    run(main)


def inbound(bot: Bot) -> list[tuple[str, bytes]]:
    media = [event["media"] for event in bot.events if event.get("event") == "media"]
    return [(each["timestamp"], base64.b64decode(each["payload"])) for each in media]


def assert_packets(packets: list[bytes], turns: list[int], full: int) -> None:
    """Each turn comes in full packets, and one with the rest."""
    expected = [full] * (turns[0] // full) + [turns[0] % full] + [full] * (turns[1] // full) + [turns[1] % full]
    assert [len(packet) for packet in packets] == [length for length in expected if length]


def test_a_call_through_genesys_with_linear_samples() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys", call="c1")) as peer:
            async with rig.bot(call="c1") as bot:
                await peer.open("another", media=[{**PCMU, "format": "L16"}])
                await bot.say(SENTENCE, "a")
                await bot.event("done")
            assert correlation(decoded(peer.audio, "pcm"), rendering([SENTENCE])) > 0.99
            assert {len(packet) for packet in peer.audio[:-1]} == {3200}

    run(main)


def test_a_barge_in_empties_genesys_and_the_clock_tells_what_was_heard() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            peer.late_s = 0.4
            await peer.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(8000)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared")
                await peer.gets(type="event")
                assert cleared["basis"] == "clock"
                # Without `playback_started` the clock would be 400 ms ahead.
                assert_prefix_was_heard(cleared, len(peer.heard) / 8)
                n_audio = len(peer.audio)
                await asyncio.sleep(0.3)
                assert len(peer.audio) == n_audio, "nothing follows the clear, not even the rest of a packet"
                await bot.say(SENTENCE, "b")
                await bot.event("done", turn="b")
                assert correlation(decoded(peer.audio[n_audio:]), rendering([SENTENCE])) > 0.99

    run(main)


def test_a_packet_that_is_not_full_is_dropped_by_a_clear() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            await peer.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.event("call")
                await bot.say("Hm.", "a")
                await bot.event("started")
                await bot.send({"type": "clear"})
                await bot.event("cleared")
                await asyncio.sleep(0.2)
                assert not peer.audio, "the rest would be sent after 100 ms"
                await bot.say("Hm.", "b")
                await bot.event("done", turn="b")
                assert correlation(decoded(peer.audio), rendering(["Hm."])) > 0.99

    run(main)


def test_genesys_hangs_up_with_a_close() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            await peer.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(800)
                await peer.tell(peer.message("close", reason="end"))
                assert (await bot.event("hangup"))["reason"] == "end"
                assert await peer.gone() == (1000, "stopped")
                assert peer.received[-1]["type"] == "closed"

    run(main)


def test_a_gap_in_the_sequence_ends_the_call() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            await peer.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(800)
                peer.seq += 1
                await peer.tell(peer.message("ping"))
                assert (await bot.event("cleared"))["reason"] == "hangup"
                assert (await bot.event("hangup"))["reason"] == "protocol_error"
                assert (await peer.gets(type="disconnect"))["parameters"]["reason"] == "error"
                assert await peer.gone() == (1000, "stopped")
                assert [said["type"] for said in peer.received[-2:]] == ["disconnect", "closed"]
                assert not peer.of(type="pong")

    run(main)


class SilentGenesys(GenesysPeer):
    """Does not answer a disconnect."""

    def on_text(self, message: dict[str, Any]) -> None:
        if message["type"] != "disconnect":
            super().on_text(message)


def test_a_genesys_that_does_not_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.doors.genesys.leg._CLOSE_S", 0.3)

    async def main() -> None:
        async with serving() as rig, platform(SilentGenesys, rig.url("/media/genesys")) as peer:
            await peer.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.event("call")
                await bot.send({"type": "close"})
                assert (await peer.gone())[0] == 1000
        async with serving() as rig, platform(SilentGenesys, rig.url("/media/genesys")) as peer:
            await peer.open("c1", media=[])
            assert (await peer.gone())[0] == 1002
            assert "PCMU or L16" in (await peer.gets(type="disconnect"))["parameters"]["info"]

    run(main)


def test_a_probe_of_genesys_starts_no_call() -> None:
    async def main() -> None:
        async with serving() as rig, platform(GenesysPeer, rig.url("/media/genesys")) as peer:
            await peer.open("00000000-0000-0000-0000-000000000000")
            await peer.gets(type="opened")
            await peer.tell(peer.message("close", reason="end"))
            await peer.gets(type="closed")
            assert (await peer.gone())[0] == 1000
            assert len(rig.server.registry) == 0

    run(main)


def test_a_second_leg_of_a_call_is_told_why_it_is_refused() -> None:
    async def main() -> None:
        url = "/media/genesys"
        async with serving() as rig, platform(GenesysPeer, rig.url(url)) as first:
            await first.open("c1")
            async with rig.bot(call="c1") as bot:
                await bot.event("call")
                async with platform(GenesysPeer, rig.url(url)) as second:
                    await second.open("c1")
                    told = (await second.gets(type="disconnect"))["parameters"]
                    assert told == {"reason": "error", "info": "the call already has a media leg"}
                    await second.gone()
                    assert second.received[-1]["type"] == "closed"
                await bot.say(SENTENCE, "a")
                await bot.event("done")

    run(main)


KEY, SECRET = "SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh", b"for tests only, not a secret"


def genesys_headers(rig: Rig, target: str, nonce: str, secret: bytes = SECRET) -> dict[str, str]:
    values = {
        "@request-target": target, "@authority": f"127.0.0.1:{rig.port}", "audiohook-organization-id": "o",
        "audiohook-session-id": ID, "audiohook-correlation-id": "x", "x-api-key": KEY,
    }  # fmt: skip
    listed = "(" + " ".join(f'"{name}"' for name in values) + ")"
    listed += f';keyid="{KEY}";nonce="{nonce}";alg="hmac-sha256";created={int(time.time())}'
    lines = [f'"{name}": {value}' for name, value in values.items()]
    base = "\n".join([*lines, f'"@signature-params": {listed}']).encode()
    signature = base64.b64encode(hmac.digest(secret, base, "sha256")).decode()
    plain = {name: value for name, value in values.items() if not name.startswith("@")}
    return plain | {"Signature-Input": f"sig1={listed}", "Signature": f"sig1=:{signature}:"}


def test_genesys_must_sign_if_its_secret_is_configured_and_only_once() -> None:
    async def main() -> None:
        secret = base64.b64encode(SECRET).decode()
        async with serving(genesys_api_key=KEY, genesys_client_secret=secret, tokens=("opensesame",)) as rig:
            target = "/media/genesys?call=c1"
            good = genesys_headers(rig, target, "n" * 22)
            await assert_refused(rig, target, 401)
            await assert_refused(rig, target, 401, Authorization="Bearer opensesame")
            await assert_refused(rig, target, 401, **genesys_headers(rig, target, "m" * 22, b"another"))
            await assert_refused(rig, "/media/genesys?call=c2", 401, **good)
            async with platform(GenesysPeer, rig.url(target), **good) as peer:
                await peer.open("another")
                await until(lambda: rig.server.registry.find("c1"), "the call")
            await assert_refused(rig, target, 401, **good)

    run(main)


def test_without_a_secret_the_api_key_is_a_token() -> None:
    async def main() -> None:
        async with serving(tokens=("opensesame",)) as rig:
            await assert_refused(rig, "/media/genesys", 401, X_API_KEY="wrong")
            async with platform(GenesysPeer, rig.url("/media/genesys"), X_API_KEY="opensesame") as peer:
                await peer.open("c1")
                await peer.gets(type="opened")

    run(main)


# -------------------------------------------------------------------------- jambonz


@pytest.mark.parametrize(("caller_hz", "playback_hz"), [(8000, None), (16000, 16000), (8000, 24000)])
def test_a_call_through_jambonz(caller_hz: int, playback_hz: int | None) -> None:
    async def main() -> None:
        query = {} if playback_hz is None else {"rate": playback_hz}
        rate_hz = playback_hz or caller_hz
        async with (
            serving() as rig,
            platform(JambonzPeer, rig.url("/media/jambonz", **query), subprotocol="audio.jambonz.org") as peer,
        ):
            assert peer.socket.subprotocol == "audio.jambonz.org"
            async with rig.bot(call="c1") as bot:
                await bot.send({"type": "config", "inbound": "binary"})
                await peer.begin(playback_hz, sampleRate=caller_hz, bot="sales")
                call = await bot.event("call")
                assert (call["codec"], call["rate_hz"], call["parameters"]["bot"]) == ("pcm", rate_hz, "sales")
                await bot.send({"type": "text", "text": SENTENCE, "turn": "a"})
                await bot.send({"type": "mark", "name": "told", "turn": "a"})
                await bot.send({"type": "end", "turn": "a"})
                assert (await bot.event("mark"))["state"] == "played"
                await bot.event("done")
                wave = np.sin(2 * np.pi * 440 * np.arange(caller_hz) / caller_hz)
                tone = np.rint(8000 * wave).astype("<i2").tobytes()
                for at in range(0, len(tone), caller_hz // 25):
                    await peer.tell(tone[at : at + caller_hz // 25])
                await peer.tell({"event": "dtmf", "dtmf": "2", "duration": "1600"})
                assert (await bot.event("dtmf"))["digit"] == "2"
                assert_same_tone(b"".join(bot.frames), tone, rate_hz, caller_hz)
                await bot.say("Goodbye.", "b")
                await bot.send({"type": "close"})
                await bot.event("done", turn="b")
                assert (await peer.gone())[0] == 1000
            assert peer.received[-1] == {"type": "disconnect"}
            heard = decoded([bytes(peer.heard)], "pcm")
            assert correlation(heard, rendering([SENTENCE], rate_hz)) > 0.99
            goodbye = rendering(["Goodbye."], rate_hz)
            begin = int(np.abs(np.correlate(heard.astype(float), goodbye.astype(float), "valid")).argmax())
            assert correlation(heard[begin:], goodbye) > 0.99, "the end was heard before the hang-up"

    run(main)


def assert_same_tone(got: bytes, sent: bytes, got_hz: int, sent_hz: int) -> None:
    """The bot gets the caller's audio at the rate that it was told in `call`."""
    if got_hz == sent_hz:
        assert got == sent
        return
    pcm = np.frombuffer(got, "<i2").astype(float)
    assert len(pcm) == len(sent) // 2 * got_hz // sent_hz
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    assert abs(int(spectrum.argmax()) * got_hz / len(pcm) - 440) < 2


def test_a_clear_empties_jambonz_and_its_later_marks_are_not_believed() -> None:
    async def main() -> None:
        async with serving() as rig, platform(JambonzPeer, rig.url("/media/jambonz")) as peer:
            await peer.begin()
            async with rig.bot(call="c1") as bot:
                await bot.say("One. " + LONG, "a")
                await peer.hears(640)
                await bot.send({"type": "clear"})  # the mark behind the first sentence is at jambonz
                cleared = await bot.event("cleared")
                await peer.gets(type="killAudio")
                assert peer.of(type="clearMarks") and cleared["basis"] == "marks"
                n_heard, n_audio = len(peer.heard), len(peer.audio)
                await asyncio.sleep(0.2)
                assert len(peer.heard) - n_heard <= 2 * 320 and len(peer.audio) == n_audio
                # jambonz would report the marks of this turn late or never.
                begun_s = time.monotonic()
                await bot.say(SENTENCE, "b")
                done = await bot.event("done", turn="b")
                assert time.monotonic() - begun_s < done["audio_ms"] / 1000 + 0.5
                await bot.say(LONG, "c")
                n_heard = len(peer.heard)
                await peer.hears(n_heard + 16000)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared", turn="c")
                assert cleared["basis"] == "clock"
                assert_prefix_was_heard(cleared, (len(peer.heard) - n_heard) / 16, slack_ms=250)

    run(main)


def test_a_clear_that_catches_no_mark_leaves_the_marks_in_use() -> None:
    async def main() -> None:
        async with serving() as rig, platform(JambonzPeer, rig.url("/media/jambonz")) as peer:
            await peer.begin()
            async with rig.bot(call="c1") as bot:
                for turn in ("a", "b"):
                    n_heard = len(peer.heard)
                    await bot.say(LONG, turn)
                    await peer.hears(n_heard + 16000)
                    await bot.send({"type": "clear"})
                    cleared = await bot.event("cleared", turn=turn)
                    assert cleared["basis"] == "marks"
                    assert_prefix_was_heard(cleared, (len(peer.heard) - n_heard) / 16, slack_ms=250)
                assert not peer.of(type="clearMarks")

    run(main)


def test_marks_that_jambonz_loses_are_left_to_the_clock() -> None:
    async def main() -> None:
        async with serving() as rig, platform(JambonzPeer, rig.url("/media/jambonz")) as peer:
            peer.resamples = True
            await peer.begin()
            async with rig.bot(call="c1") as bot:
                for turn, slack_s in (("a", 1.6), ("b", 0.4)):
                    begun_s = time.monotonic()
                    await bot.send({"type": "text", "text": SENTENCE, "turn": turn})
                    await bot.send({"type": "mark", "name": turn, "turn": turn})
                    await bot.send({"type": "end", "turn": turn})
                    done = await bot.event("done", turn=turn)
                    assert time.monotonic() - begun_s < done["audio_ms"] / 1000 + slack_s
                states = [(event["name"], event["state"]) for event in bot.events if event.get("type") == "mark"]
                assert states == [("a", "played"), ("b", "played")]

    run(main)


def test_jambonz_never_gets_more_marks_than_it_keeps() -> None:
    async def main() -> None:
        async with serving() as rig, platform(JambonzPeer, rig.url("/media/jambonz")) as peer:
            await peer.begin()
            async with rig.bot(call="c1") as bot:
                await bot.send({"type": "text", "text": SENTENCE, "turn": "a"})
                for n in range(60):
                    await bot.send({"type": "mark", "name": f"m{n}", "turn": "a"})
                await bot.send({"type": "end", "turn": "a"})
                await bot.event("done")
                states = [(event["name"], event["state"]) for event in bot.events if event.get("type") == "mark"]
                assert sorted(states) == sorted((f"m{n}", "played") for n in range(60))
                assert peer.n_refused_marks == 0 and 20 < len(peer.of(type="mark")) <= 30

    run(main)


def test_jambonz_hangs_up_by_closing() -> None:
    async def main() -> None:
        async with serving() as rig, platform(JambonzPeer, rig.url("/media/jambonz")) as peer:
            await peer.begin()
            async with rig.bot(call="c1") as bot:
                await bot.say(LONG, "a")
                await peer.hears(3200)
                await peer.socket.close()
                assert (await bot.event("cleared"))["reason"] == "hangup"
                await bot.event("hangup")

    run(main)


def test_jambonz_may_use_basic_authentication() -> None:
    async def main() -> None:
        async with serving(tokens=("opensesame",)) as rig:
            wrong, right = (base64.b64encode(each).decode() for each in (b"jambonz:wrong", b"jambonz:opensesame"))
            await assert_refused(rig, "/media/jambonz", 401, Authorization=f"Basic {wrong}")
            async with platform(JambonzPeer, rig.url("/media/jambonz"), Authorization=f"Basic {right}") as peer:
                await peer.begin()
                await until(lambda: len(rig.server.registry), "the call")

    run(main)


# ----------------------------------------------------------------------- all of them


async def assert_refused(rig: Rig, target: str, status: int, **headers: str) -> None:
    path, _, query = target.partition("?")
    url = rig.url(path) + (f"?{query}" if query else "")
    with pytest.raises(InvalidStatus) as refused:
        async with platform(VonagePeer, url, **headers):
            pass
    assert refused.value.response.status_code == status


@pytest.mark.parametrize("path", [path for path, _ in LEGS])
def test_a_leg_without_the_token_or_with_a_bad_option_is_refused(path: str) -> None:
    async def main() -> None:
        async with serving(tokens=("opensesame",)) as rig:
            await assert_refused(rig, path, 401)
            await assert_refused(rig, f"{path}?token=wrong", 401)
            await assert_refused(rig, f"{path}?token=opensesame&rate=44100", 400)
            await assert_refused(rig, f"{path}?token=opensesame&call=a%20b", 400)

    run(main)


async def begin(peer: PlayingPeer) -> None:
    if isinstance(peer, VonagePeer):
        await peer.connected(call="c1")
    elif isinstance(peer, GenesysPeer):
        await peer.open("c1")
    elif isinstance(peer, JambonzPeer):
        await peer.begin()


@pytest.mark.parametrize(("path", "kind"), LEGS)
def test_nonsense_before_and_after_the_start_does_no_harm(path: str, kind: type[PlayingPeer]) -> None:
    async def main() -> None:
        async with serving() as rig, platform(kind, rig.url(path)) as peer:
            nonsense = (b"\x00\x01", b"\x00", "hello", "[]", '{"event":"?"}', "", b"")
            await peer.tell(*nonsense)
            await begin(peer)
            async with rig.bot(call="c1") as bot:
                await bot.event("call")
                await peer.tell(*nonsense)
                await bot.say(SENTENCE, "a")
                await bot.event("done")
            codec = "ulaw" if kind is GenesysPeer else "pcm"
            assert correlation(decoded([bytes(peer.heard)], codec), rendering([SENTENCE])) > 0.99

    run(main)


@pytest.mark.parametrize(("path", "kind"), LEGS)
def test_a_leg_that_never_starts_is_closed(path: str, kind: type[PlayingPeer]) -> None:
    async def main() -> None:
        async with serving(media_start_s=0.3) as rig, platform(kind, rig.url(path)) as peer:
            await peer.tell(b"\x00\x01" * 160)
            assert (await peer.gone())[0] == 4400

    run(main)
