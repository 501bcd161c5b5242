"""ElevenLabs' and Cartesia's clients in a carrier's call: the caller hears each turn, and the client gets silence.

Deepgram's clients are in test_deepgram_clients.py, OpenAI's in test_openai_clients.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from environment import bots_python, drive
from rig import Rig, correlation, decoded, rendering, run, serving, until
from twilio_peer import TwilioPeer, calling

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

FIRST = "This is the first sentence. And a second one that is longer than the first, so it can be interrupted."
OTHER = "Now the other turn."
TURNS = ["One of three.", "Two of three.", "Three of three."]
Events = list[dict[str, Any]]
each_service = pytest.mark.parametrize("service", ["elevenlabs", "cartesia"])


@pytest.fixture(autouse=True)
def installed() -> None:
    """Otherwise the installation would count as a client's time."""
    bots_python()


@asynccontextmanager
async def on_the_telephone() -> AsyncIterator[tuple[Rig, TwilioPeer]]:
    async with serving(tokens=("secret",)) as rig:
        headers = {"Authorization": "Bearer secret"}
        async with calling(rig.url("/media/twilio"), "CA1", headers=headers) as phone:
            await phone.start()
            await until(lambda: len(rig.server.registry), "the call")
            yield rig, phone


async def driven(rig: Rig, script: str, *arguments: str) -> Events:
    address = f"http://127.0.0.1:{rig.port}/calls/CA1"
    return await asyncio.to_thread(drive, script, address, *arguments, timeout_s=40)


def of(events: Events, kind: str, **fields: Any) -> Events:
    return [each for each in events if each["event"] == kind and fields.items() <= each.items()]


def silence_ms(events: Events, bytes_per_ms: int = 16, **fields: Any) -> float:
    """How long the audio is, all of which must be silence."""
    heard = b"".join(each["audio"] for each in of(events, "audio", **fields))
    assert not np.frombuffer(heard[: len(heard) // 2 * 2], "<i2").any()
    return len(heard) / bytes_per_ms


def assert_caller_hears_last(phone: TwilioPeer, text: str) -> None:
    wanted = rendering([text])
    assert correlation(decoded(phone.played)[-(-(-len(wanted) // 160) * 160) :], wanted) > 0.98


@each_service
def test_pipecat(service: str) -> None:
    async def main() -> None:
        async with on_the_telephone() as (rig, phone):
            steps = [f"turn:{FIRST}", "hear:600", "interrupt", "wait:silent"]
            for turn in TURNS:
                steps += [f"turn:{turn}", "wait:stopped", "wait:silent"]
            events = await driven(rig, "pipecat_turns.py", "--service", service, *steps)
            assert not of(events, "error") and phone.n_clears == 1
            assert rig.engine.spoken[-3:] == TURNS  # type: ignore[attr-defined]
            assert_caller_hears_last(phone, TURNS[-1])
            assert abs(silence_ms(events, turn=4) - len(TURNS[-1]) * 60) < 100
            # The words come with the silence, so the bot knows what was said although the audio is elsewhere.
            said = events[-1]["said"]
            assert said[-3:] == TURNS and FIRST.startswith(said[0]) and 0 < len(said[0]) < len(FIRST) / 2

    run(main, within_s=120)


def test_livekit_with_cartesia() -> None:
    """At an interruption it closes its socket, and opens another for the next turn."""

    async def main() -> None:
        async with on_the_telephone() as (rig, phone):
            events = await driven(
                rig, "livekit_turns.py", "--service", "cartesia", "--retries", "2",
                f"push:{FIRST}", "end", "hear:600", "interrupt", f"push:{OTHER}", "end", "wait:finished", "close",
            )  # fmt: skip
            assert not of(events, "error")
            assert rig.engine.spoken.count(OTHER) == 1  # type: ignore[attr-defined]
            assert_caller_hears_last(phone, OTHER)
            assert abs(silence_ms(events, stream=2) - len(OTHER) * 60) < 100
            assert len(phone.played) * 160 < len(rendering([FIRST, OTHER])), "the rest of the first turn was spoken"

    run(main, within_s=120)


@pytest.mark.parametrize("encoding", ["pcm_8000", ""])
def test_livekit_with_elevenlabs(encoding: str) -> None:
    """It sends nothing at an interruption of a turn whose text it has sent. So that turn is spoken to its end, and the
    next one waits for longer than the plugin does for a turn without audio, which it then asks for again."""

    async def main() -> None:
        async with on_the_telephone() as (rig, phone):
            events = await driven(
                rig, "livekit_turns.py", "--service", "elevenlabs", "--retries", "2", "--timeout", "3",
                "--within", "20", "--encoding", encoding,
                f"push:{FIRST}", "end", "hear:600", "interrupt", f"push:{OTHER}", "end", "wait:finished", "close",
            )  # fmt: skip
            assert not of(events, "error")
            assert rig.engine.spoken.count(OTHER) == 1  # type: ignore[attr-defined]
            assert_caller_hears_last(phone, OTHER)
            heard = np.frombuffer(b"".join(each["audio"] for each in of(events, "audio", stream=2)), "<i2")
            assert len(heard) > 0 and np.abs(heard.astype(int)).max() <= 1

    run(main, within_s=120)


def test_the_sdk_of_elevenlabs() -> None:
    async def main() -> None:
        async with on_the_telephone() as (rig, phone):
            for n in range(2):
                events = await driven(rig, "elevenlabs_stream.py", "Now the ", "other turn. ")
                assert events[-1]["event"] == "done"
                assert abs(silence_ms(events) - len(OTHER) * 60) < 100
                assert len(of(events, "audio")) > 3, "as the caller hears it"
                assert_caller_hears_last(phone, OTHER)
                assert len(phone.played) == (n + 1) * -(-len(rendering([OTHER])) // 160)

    run(main, within_s=120)


@pytest.mark.parametrize("encoding", ["pcm_s16le", "pcm_f32le"])
def test_the_sdk_of_cartesia(encoding: str) -> None:
    async def main() -> None:
        async with on_the_telephone() as (rig, phone):
            events = await driven(
                rig, "cartesia_contexts.py", "--encoding", encoding,
                f"push:one:{FIRST}", "hear:500", "cancel:one", f"push:two:{OTHER}", "end:two", "wait:done",
            )  # fmt: skip
            assert not of(events, "error") and not of(events, "done", context="one")
            assert phone.n_clears == 1
            assert_caller_hears_last(phone, OTHER)
            n = 2 if encoding == "pcm_s16le" else 4
            assert abs(silence_ms(events, 8 * n, context="two") - len(OTHER) * 60) < 100
            times = [each["word_timestamps"] for each in of(events, "timestamps", context="two")]
            assert [word for each in times for word in each["words"]] == OTHER.split()

    run(main, within_s=120)
