"""A caller interrupts our speech on a real socket: how soon the speech is cleared, and that no frame of it follows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import soxr
from rig import Bot, run, serving, speech_settings, until
from test_media_dialects import leg
from twilio_peer import calling

from telephony_tts.audio.encoder import CODECS
from telephony_tts.engines.hibari.model import HibariModel
from telephony_tts.session.settings import BargeInSettings

pytestmark = pytest.mark.alone

TEXT = "Your parcel left the depot on Tuesday and it should arrive before noon, if nothing comes between. " * 3
MOST_S = 1.5
"""The longest time from the caller's first sound to `cleared`, with allowance for a busy machine."""
FRAME_MS = 20


@lru_cache
def voice(rate_hz: int) -> np.ndarray[Any, Any]:
    """A caller's sentence at our speech level, from its first sound on."""
    speech = HibariModel().speak("Hold on please, I would like to ask you something else before that.")
    wave = soxr.resample(speech.pcm.astype(np.float32) * 1.8, speech.sample_rate_hz, rate_hz, "HQ")
    wave = wave[int(np.argmax(np.abs(wave) > 0.02 * np.abs(wave).max())) :]
    return np.rint(wave).clip(-32768, 32767).astype(np.int16)


def frames_of(pcm: np.ndarray[Any, Any], codec: str, rate_hz: int) -> list[bytes]:
    n = rate_hz * FRAME_MS // 1000
    return [CODECS[codec].encode(pcm[at : at + n]) for at in range(0, len(pcm) - n + 1, n)]


async def cleared_within(bot: Bot, speak: Callable[[], Any]) -> None:
    """The caller speaks, and the bot receives the events of the interruption in time."""
    begun_s = time.monotonic()
    speaking = asyncio.create_task(speak())
    try:
        begun = await bot.event("caller", state="speaking")
        cleared = await bot.event("cleared", turn="a")
        assert time.monotonic() - begun_s < MOST_S
        assert cleared["reason"] == "barge_in"
        assert cleared["heard_text"] and cleared["heard_text"] + cleared["unheard_text"] == TEXT
        ended = await bot.event("caller", state="silent")
        assert ended["interrupted"] and ended["spoken_ms"] > 1000
        assert ("at_ms" in begun) == ("at_ms" in ended)
    finally:
        await speaking


def test_barge_in_on_a_twilio_leg_enabled_in_the_bots_address() -> None:
    async def main() -> None:
        async with (
            serving() as rig,
            rig.bot(call="CA1", barge_in="on", min_speech_ms=160) as bot,
            calling(rig.url("/media/twilio"), "CA1") as peer,
        ):
            assert bot.ready["barge_in"] == "on"
            voice(8000)  # its synthesis is not the caller's time
            await peer.start()
            await bot.say(TEXT, "a")
            await peer.hears(50)
            silence = [b"\xff" * 160] * 50
            await cleared_within(bot, lambda: peer.speak([*frames_of(voice(8000), "ulaw", 8000), *silence]))
            assert peer.n_clears == 1
            events = [message["event"] for message in peer.received]
            assert "media" not in events[events.index("clear") :]
            assert not [event for event in bot.events if event.get("event") == "media"], "it did not ask for the audio"
            await bot.say("Yes?", "b")
            await bot.event("done", turn="b")

    run(main)


def test_barge_in_on_our_own_media_leg_enabled_in_the_settings() -> None:
    async def main() -> None:
        speech = speech_settings(barge_in=BargeInSettings(enabled=True))
        start = {"type": "start", "call": "c1", "codec": "pcm", "rate_hz": 16000, "lead_ms": 40}
        async with serving(speech=speech) as rig, leg(rig, "/media/native") as peer, rig.bot(call="c1") as bot:
            assert bot.ready["barge_in"] == "on"
            voice(16000)
            await peer.tell(start)
            await bot.say(TEXT, "a")
            await until(lambda: len(peer.frames) > 50, "speech")

            async def speak() -> None:
                begun_s = time.monotonic()
                silence = [bytes(640)] * 50
                for n, frame in enumerate([*frames_of(voice(16000), "pcm", 16000), *silence]):
                    await asyncio.sleep(max(0, begun_s + n * FRAME_MS / 1000 - time.monotonic()))
                    await peer.tell(frame)

            await cleared_within(bot, speak)
            at = peer.order.index('{"type":"clear"}')
            assert not any(isinstance(each, bytes) for each in peer.order[at:])

    run(main)


def test_no_barge_in_on_a_call_that_turned_it_off() -> None:
    async def main() -> None:
        speech = speech_settings(barge_in=BargeInSettings(enabled=True))
        async with (
            serving(speech=speech) as rig,
            rig.bot(call="CA1", barge_in="off") as bot,
            calling(rig.url("/media/twilio"), "CA1") as peer,
        ):
            assert bot.ready["barge_in"] == "off"
            await peer.start()
            await bot.say("Your parcel left the depot on Tuesday.", "a")
            await peer.hears(10)
            await peer.speak(frames_of(voice(8000), "ulaw", 8000))
            await bot.event("done", turn="a")
            assert not [event for event in bot.events if event.get("type") == "caller"]

    run(main)
