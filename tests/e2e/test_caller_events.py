"""What a bot is told of its caller, and the tones that it sends, through the real server."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from dtmf_reader import heard_keys
from media_peer import START, leg
from rig import run, serving, until
from test_voice_barge_in import frames_of, voice

from telephony_tts.audio.g711 import decode_ulaw, encode_ulaw

pytestmark = pytest.mark.timed

QUIET = b"\xff" * 160


def test_a_bot_is_told_of_silence_and_again_at_the_double() -> None:
    async def main() -> None:
        async with (
            serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1", caller_silent_ms=300) as bot
        ):  # fmt: skip
            await peer.tell(START)
            await bot.event("call")
            assert (await bot.event("caller_silent")) == {"type": "caller_silent", "ms": 300}
            assert (await bot.event("caller_silent"))["ms"] == 600
            await peer.tell({"type": "dtmf", "digit": "5"})
            await bot.event("dtmf")
            await bot.send({"type": "config", "caller_silent_ms": 0})
            n_told = len([e for e in bot.events if e["type"] == "caller_silent"])
            await asyncio.sleep(0.5)
            assert len([e for e in bot.events if e["type"] == "caller_silent"]) <= n_told + 1

    run(main)


def test_a_bot_is_told_of_a_beep() -> None:
    async def main() -> None:
        tone = 6000 * np.sin(2 * np.pi * 1000 * np.arange(3200) / 8000)
        beep = encode_ulaw(tone.astype(np.int16))
        frames = [QUIET] * 10 + [beep[at : at + 160] for at in range(0, len(beep), 160)] + [QUIET] * 20
        async with (
            serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1", answering_machine="on") as bot
        ):  # fmt: skip
            await peer.tell(START)
            await bot.event("call")
            for frame in frames:
                await peer.socket.send(frame)
                await asyncio.sleep(0.02)
            event = await bot.event("answering_machine")
            assert event["cause"] == "beep" and abs(event["beep_hz"] - 1000) < 5
            assert abs(event["beep_at_ms"] - 600) <= 32 and abs(event["beep_ms"] - 400) <= 24

    run(main)


@pytest.mark.parametrize("n_frames", [60, 150])
def test_a_greeting_without_a_pause_is_a_hint(n_frames: int) -> None:
    """A voice that goes on for 3 s, and one that says hello and waits."""

    async def main() -> None:
        said = frames_of(np.tile(voice(8000), 3), "ulaw", 8000)[:n_frames]
        async with (
            serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1", answering_machine="on") as bot
        ):  # fmt: skip
            await peer.tell(START)
            await bot.event("call")
            begun_s = time.monotonic()
            for n, frame in enumerate([*said, *[QUIET] * 20]):
                await asyncio.sleep(max(0, begun_s + n * 0.02 - time.monotonic()))
                await peer.socket.send(frame)
            if n_frames == 150:
                hint = await bot.event("answering_machine")
                assert hint["cause"] == "greeting" and 2_500 <= hint["greeting_ms"] <= 2_620
            await bot.send({"type": "ping", "id": "1"})
            await bot.event("pong")
            hints = [event for event in bot.events if event["type"] == "answering_machine"]
            assert len(hints) == (n_frames == 150)

    run(main)


def test_a_bot_without_a_media_leg_hears_its_tones_between_its_sentences() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary", lead_ms=60) as bot:
            await bot.send({"type": "text", "turn": "a", "text": "One moment. "})
            await bot.send({"type": "dtmf", "digits": "1w42#"})
            await bot.send({"type": "text", "turn": "a", "text": "Thank you.", "last": True})
            done = await bot.event("done")
            assert done["turn"] == "a" and done["chars"] == len("One moment. Thank you.")
            pcm = decode_ulaw(b"".join(bot.frames))
            keys = [key for key in heard_keys(pcm) if key.purity > 0.97]
            assert "".join(key.digit for key in keys) == "1w42#".replace("w", "")
            loud = np.flatnonzero(np.abs(pcm) > 300)
            assert loud[0] / 8 < keys[0].at_ms - 100 and loud[-1] / 8 > keys[-1].at_ms + 300, "speech on both sides"

    run(main)


def test_a_clear_names_the_tones_that_were_not_sent() -> None:
    async def main() -> None:
        async with serving() as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            await peer.tell(START | {"dtmf": True})
            await bot.event("call")
            await bot.say("Please wait a moment, I will connect you to our service.", "a")
            await bot.send({"type": "dtmf", "digits": "12#"})
            await until(lambda: len(peer.frames) > 10, "speech")
            await bot.send({"type": "clear"})
            warning = await bot.event("warning", code="dtmf_cleared")
            assert warning["message"].endswith(": 12#")
            assert not [said for said in peer.said if '"dtmf"' in said]

    run(main)
