"""Whole texts over HTTP with the packages of other vendors, unchanged but for the base URL: the SDKs of Deepgram,
ElevenLabs and Cartesia, and the plugins of livekit-agents, whose `synthesize()` is a request."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from environment import drive
from rig import Rig, correlation, decoded, delayed_correlation, rendering, run, serving, until
from twilio_peer import calling

from telephony_tts.transport.settings import ServerSettings

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

TEXT, OTHER = "Hello there, my friend.", "Now the other turn."
SERVICES = ("deepgram", "elevenlabs", "cartesia")
Events = list[dict[str, Any]]


async def driven(rig: Rig, script: str, *arguments: str, path: str = "") -> Events:
    return await asyncio.to_thread(drive, script, f"http://127.0.0.1:{rig.port}{path}", *arguments)


def audio_of(events: Events, **which: Any) -> bytes:
    return b"".join(
        event["audio"]
        for event in events
        if event["event"] == "audio" and all(event[name] == value for name, value in which.items())
    )


@pytest.mark.parametrize("service", SERVICES)
def test_the_sdks(service: str) -> None:
    async def main() -> None:
        async with serving(server=ServerSettings(host="127.0.0.1", port=0, tokens=("secret",))) as rig:
            events = await driven(rig, "whole_texts.py", "--service", service, f"speak:{TEXT}")
            assert [event["event"] for event in events if event["event"] != "audio"] == ["done"]
            heard = decoded([audio_of(events)], "pcm")
            assert correlation(heard, rendering([TEXT])) > 0.99 and len(heard) - len(rendering([TEXT])) < 320
            for wrong, status in ((("--voice", "ghost"), 404), (("--key", "no"), 401)):
                (failed,) = await driven(rig, "whole_texts.py", "--service", service, *wrong, f"speak:{TEXT}")
                assert (failed["event"], failed["status"]) == ("failed", status), failed
                assert ("ghost" in failed["text"]) == (status == 404)

    run(main)


@pytest.mark.parametrize("service", SERVICES)
def test_the_sdks_join_a_carriers_call(service: str) -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            events = await driven(rig, "whole_texts.py", "--service", service, f"speak:{TEXT}", path="/calls/CA1")
            assert audio_of(events) == bytes(2 * len(rendering([TEXT])))
            await until(lambda: not rig.server.registry.calls()[0].session.turns, "the end of the speech")
            assert correlation(decoded(phone.played), rendering([TEXT])) > 0.98

    run(main)


@pytest.mark.parametrize("service", SERVICES)
def test_livekit_synthesizes(service: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            how = ("--rate", "24000") if service == "deepgram" else ()
            events = await driven(
                rig, "livekit_turns.py", "--service", service, *how, f"say:{TEXT}", f"say:{OTHER}", "close"
            )
            assert "error" not in [event["event"] for event in events]
            for stream, text in ((1, TEXT), (2, OTHER)):
                (rate_hz,) = {event["rate"] for event in events if event.get("stream") == stream and "rate" in event}
                heard = np.frombuffer(audio_of(events, stream=stream), "<i2").astype(np.int16)
                wanted = rendering([text], rate_hz)
                assert delayed_correlation(heard, wanted) > 0.97  # ElevenLabs' plugin asks for mp3
                assert abs(len(heard) - len(wanted)) < rate_hz // 5

    run(main)
