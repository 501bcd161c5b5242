"""Calls through Bandwidth: it plays what comes, it has no marks, and the clock tells what the caller has heard."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from dtmf_reader import heard_keys
from rig import Bot, Rig, correlation, decoded, rendering, run, serving, until
from twilio_peer import TwilioPeer, dialling
from websockets.exceptions import ConnectionClosed

pytestmark = pytest.mark.timed

CALL = "c-15ac29a2-6e9d4d93-4a1c-4c1a-8f5e-a1b2c3d4e5f6"
LONG = "aaaa aaaa aaaa aaaa aaaa aaaa."


class BandwidthPeer(TwilioPeer):
    """The platform's side, in the shapes of Bandwidth's `StartStream` page. It has no marks."""

    async def send(self, event: str, **fields: Any) -> None:
        with suppress(ConnectionClosed):
            await self.socket.send(json.dumps({**fields, "eventType": event}))

    def metadata(self) -> dict[str, Any]:
        tracks = [{"name": "inbound", "mediaFormat": {"encoding": "PCMU", "sampleRate": 8000}}]
        return {
            "accountId": "9", "callId": self.call, "streamId": self.stream, "streamName": "bot", "tracks": tracks,
        }  # fmt: skip

    async def start(self, **parameters: str) -> None:
        await self.send("start", metadata=self.metadata(), streamParams=parameters)

    async def say(self, frames: list[bytes], track: str = "inbound") -> None:
        for frame in frames:
            self._sequence += 1
            payload = base64.b64encode(frame).decode()
            await self.send("media", track=track, payload=payload, sequenceNumber=str(self._sequence))

    async def hang_up(self) -> None:
        await self.send("stop", metadata=self.metadata())

    def read(self, message: dict[str, Any]) -> tuple[str, str]:
        if message == {"eventType": "clear"}:
            return "clear", ""
        payload: str = message["media"]["payload"]
        media = {"contentType": "audio/pcmu", "payload": payload}
        assert message == {"eventType": "playAudio", "media": media}, "nothing else is documented"
        return "media", payload


@asynccontextmanager
async def call(**options: Any) -> AsyncIterator[tuple[Rig, Bot, BandwidthPeer]]:
    """A bot and Bandwidth, which has started."""
    async with (
        serving() as rig, rig.bot(call=CALL, **options) as bot,
        dialling(BandwidthPeer, rig.url("/media/bandwidth"), CALL) as peer,
    ):
        await peer.start(bot="sales")
        yield rig, bot, peer


def heard(peer: BandwidthPeer, texts: list[str], n_before: int = 0) -> float:
    return correlation(decoded(peer.played[n_before:]), rendering(texts))


def test_a_whole_call() -> None:
    """Greeting with a mark, barge-in, another turn, and a hang-up after the last word."""

    async def main() -> None:
        async with call() as (_, bot, peer):
            started = await bot.event("call")
            assert (started["call"], started["codec"], started["rate_hz"]) == (CALL, "ulaw", 8000)
            assert started["parameters"] == {"bot": "sales"}
            await bot.send({"type": "text", "turn": "hello", "text": "Welcome to us. "})
            await bot.send({"type": "mark", "turn": "hello", "name": "welcomed"})
            await bot.send({"type": "text", "turn": "hello", "text": "Press one.", "last": True})
            assert (await bot.event("mark"))["state"] == "played"
            done = await bot.event("done", turn="hello")
            assert abs(len(peer.played) - done["audio_ms"] // 20) <= 3, "the clock says played, not sent"
            assert heard(peer, ["Welcome to us.", "Press one."]) >= 0.99

            n_before = len(peer.played)
            await bot.say(LONG, "long")
            await peer.hears(n_before + 25)
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="long")
            n_heard = len(peer.played) - n_before
            assert cleared["basis"] == "clock"
            assert cleared["heard_text"] + cleared["unheard_text"] == LONG
            assert abs(cleared["heard_ms"] - 20 * n_heard) <= 100
            await until(lambda: peer.n_clears == 1, "the clear")
            n_before = len(peer.played)

            await bot.say("uuuu uuuu.", "next")
            await bot.event("done", turn="next")
            assert heard(peer, ["uuuu uuuu."], n_before) >= 0.99, "no speech of the turn before the clear"
            n_before = len(peer.played)
            await bot.say("Good bye.", "last")
            await bot.send({"type": "close"})
            await bot.event("done", turn="last")
            assert (await peer.gone())[0] == 1000 and (await bot.gone())[0] == 1000
            assert heard(peer, ["Good bye."], n_before) >= 0.99

    run(main)


def test_the_callers_audio_reaches_the_bot_and_the_bots_own_does_not() -> None:
    async def main() -> None:
        async with call(inbound="base64") as (_, bot, peer):
            await bot.event("call")
            voice = [bytes([n]) * 160 for n in range(1, 11)]
            await peer.say([b"\x55" * 160], track="outbound")
            await peer.say(voice)
            await until(lambda: sum(e.get("event") == "media" for e in bot.events) == 10, "the caller's audio")
            got = [base64.b64decode(e["media"]["payload"]) for e in bot.events if e.get("event") == "media"]
            assert got == voice

    run(main)


def test_the_carrier_hangs_up_in_the_middle_of_speech() -> None:
    async def main() -> None:
        async with call() as (rig, bot, peer):
            await bot.say("This is going to be interrupted by a hang-up.", "a")
            await peer.hears(16)
            await peer.hang_up()
            assert (await bot.event("cleared", turn="a"))["reason"] == "hangup"
            await bot.event("hangup")
            await rig.empty()

    run(main)


def test_a_bots_tones_are_in_the_audio() -> None:
    async def main() -> None:
        async with call() as (_, bot, peer):
            await bot.event("call")
            await bot.send({"type": "dtmf", "digits": "12#"})
            await bot.event("done", turn="t1")
            await until(lambda: len(heard_keys(decoded(peer.played), 8000)) == 3, "three keys")
            assert "".join(key.digit for key in heard_keys(decoded(peer.played), 8000)) == "12#"
            await bot.send({"type": "config", "dtmf": "message"})
            await bot.send({"type": "dtmf", "digits": "12#"})
            assert (await bot.event("warning"))["code"] == "dtmf_not_supported"

    run(main)


def test_noise_before_and_after_start_is_dropped() -> None:
    async def main() -> None:
        async with (
            serving() as rig, rig.bot(call=CALL) as bot,
            dialling(BandwidthPeer, rig.url("/media/bandwidth"), CALL) as peer,
        ):
            await peer.say([b"\0" * 160])
            await peer.socket.send(b"\x00\x01")
            await peer.socket.send("not JSON")
            await peer.start()
            await bot.event("call")
            await peer.start(again="yes")
            await peer.send("media", track="inbound", payload="***")
            await peer.send("mark", mark={"name": "never sent"})
            await bot.say("Undisturbed.", "a")
            await bot.event("done", turn="a")
            assert len([e for e in bot.events if e.get("type") == "call"]) == 1
            assert heard(peer, ["Undisturbed."]) >= 0.99

    run(main)


def test_a_leg_needs_a_token_in_the_handshake_or_in_start() -> None:
    async def main() -> None:
        path = "/media/bandwidth"
        # `destinationUsername` and `destinationPassword` of <StartStream>
        basic = base64.b64encode(b"bandwidth:sesame").decode()
        ways: list[tuple[str, dict[str, str], dict[str, str]]] = [
            (path, {"Authorization": f"Basic {basic}"}, {}),
            (path + "?token=sesame", {}, {}),
            (path, {}, {"token": "sesame"}),
        ]
        async with serving(tokens=("sesame",)) as rig:
            for wrong in ({}, {"token": "sesam"}):
                async with dialling(BandwidthPeer, rig.url(path), CALL) as peer:
                    await peer.start(**wrong)
                    assert (await peer.gone())[0] == 4401
            for n, (address, headers, parameters) in enumerate(ways):
                async with (
                    rig.bot(call=f"c-{n}", headers={"Authorization": "Bearer sesame"}) as bot,
                    dialling(BandwidthPeer, rig.url(address), f"c-{n}", headers=headers) as peer,
                ):
                    await peer.start(bot="sales", **parameters)
                    assert (await bot.event("call"))["parameters"] == {"bot": "sales"}

    run(main)
