"""Deepgram's clients, unchanged but for the address: its SDK, pipecat's services and livekit's plugins.

Each has two turns, an interruption in the middle of one, and a turn after it that must have its own audio and no other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from environment import drive
from rig import Rig, Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

FIRST = "This is the first sentence. And a second one that is longer than the first, so it can be interrupted."
OTHER = "Now the other turn."

Events = list[dict[str, Any]]


async def driven(rig: Rig, script: str, *arguments: str, path: str = "") -> Events:
    return await asyncio.to_thread(drive, script, f"http://127.0.0.1:{rig.port}{path}", *arguments)


def parts(events: Events) -> list[tuple[str, bytes]]:
    """The messages in order, each with the audio that came before it."""
    found, audio = [], b""
    for event in events:
        if event["event"] == "audio":
            audio += event["audio"]
        elif event["event"] != "sent":
            found.append((event["event"], audio))
            audio = b""
    return found


def audio_of(events: Events, **which: Any) -> bytes:
    return b"".join(
        event["audio"]
        for event in events
        if event["event"] == "audio" and all(event[name] == value for name, value in which.items())
    )


def assert_speaks(audio: bytes, text: str, codec: str = "pcm") -> None:
    """All of the audio is that of the text, up to the last frame."""
    heard, wanted = decoded([audio], codec), rendering([text])
    assert 0 <= len(heard) - len(wanted) < 160
    assert correlation(heard, wanted) > 0.99


def assert_begins(audio: bytes, text: str) -> None:
    """The audio is some of the text's, from its beginning."""
    heard, wanted = decoded([audio], "pcm"), rendering([text])
    assert 800 < len(heard) < len(wanted)
    assert correlation(heard, wanted) > 0.98  # the sentence after the first begins with a fade of its own


@pytest.mark.parametrize(("kind", "encoding", "codec"), [("sync", "linear16", "pcm"), ("async", "mulaw", "ulaw")])
def test_the_sdk_on_v1(kind: str, encoding: str, codec: str) -> None:
    async def main() -> None:
        async with serving(Tones(speed=10)) as rig:
            events = await driven(
                rig, "deepgram_v1.py", "--client", kind, "--encoding", encoding,
                "speak:Hello there, ", "speak:my ", "speak:friend. ", "flush", "wait:Flushed",
                f"speak:{FIRST}", "flush", "hear:300", "clear", "wait:Cleared",
                f"speak:{OTHER}", "flush", "wait:Flushed", "close",
            )  # fmt: skip
            found = parts(events)
            assert [name for name, _ in found] == ["Metadata", "Flushed", "Cleared", "Flushed", "closed"]
            assert_speaks(found[1][1], "Hello there, my friend.", codec)
            assert len(found[2][1]) < len(rendering([FIRST])), "all of the interrupted turn was sent"
            assert_speaks(found[3][1], OTHER, codec)
            assert events[-1]["code"] == 1000

    run(main)


def test_the_sdk_on_v2() -> None:
    async def main() -> None:
        async with serving() as rig:
            events = await driven(
                rig, "deepgram_v2.py",
                "speak:Hello there, ", "speak:my friend.", "flush", "wait:SpeechMetadata",
                "interrupt:500", "wait:SpeechInterrupted",
                "configure:1.1", "wait:ConfigureSuccess", "configure:9", "wait:ConfigureFailure", "configure:1",
                f"speak:{FIRST}", "flush", "hear:2000", "interrupt:2000", "wait:SpeechInterrupted",
                "interrupt:1000", "wait:Warning",
                f"speak:{OTHER}", "flush", "wait:SpeechMetadata", "close",
            )  # fmt: skip
            told = [event for event in events if event["event"] == "SpeechInterrupted"]
            assert [event["audio_played_ms"] for event in told] == [500, 2000]
            assert (told[0]["text_spoken"], told[0]["text_remaining"]) == ("Hello", " there, my friend.")
            assert told[1]["text_spoken"] == "This is the first"  # 25 characters of 60 ms in 1500 ms
            assert told[1]["text_spoken"] + told[1]["text_remaining"] == FIRST
            names = [name for name, _ in parts(events)]
            last = names[len(names) - names[::-1].index("SpeechInterrupted") :]
            assert last == [
                "Warning", "SpeechStarted", "Flushed", "SpeechMetadata", "SessionMetadata", "closed"
            ]  # fmt: skip
            assert_speaks(parts(events)[-4][1], OTHER)
            for event in events:
                if event["event"] not in ("audio", "sent", "closed"):
                    assert event["parsed_as"] == f"SpeakV2{event['event']}"

    run(main)


@pytest.mark.parametrize("service", ["deepgram", "flux"])
def test_pipecat(service: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            events = await driven(
                rig, "pipecat_turns.py", "--service", service,
                f"turn:{FIRST}", "hear:700", "interrupt", f"turn:{OTHER}", "wait:stopped", "wait:silent", "wait:silent",
                "turn:And a last one.", "wait:stopped", "wait:silent",
            )  # fmt: skip
            assert [event for event in events if event["event"] == "error"] == []
            assert_speaks(audio_of(events, turn=2), OTHER)
            assert_speaks(audio_of(events, turn=3), "And a last one.")
            assert events[-1]["event"] == "context" and events[-1]["said"][-2:] == [OTHER, "And a last one."]

    run(main)


@pytest.mark.parametrize("service", ["deepgram", "flux"])
def test_pipecat_is_interrupted_while_the_engine_works(service: str) -> None:
    """The interruption comes before the turn was sent, so its end must never come."""

    async def main() -> None:
        async with serving(Tones(speed=1.5)) as rig:
            events = await driven(
                rig, "pipecat_turns.py", "--service", service,
                f"turn:{FIRST}", "hear:700", "interrupt", f"turn:{OTHER}", "wait:stopped", "wait:silent", "wait:silent",
            )  # fmt: skip
            assert [event for event in events if event["event"] == "error"] == []
            assert_begins(audio_of(events, turn=1), FIRST)
            assert_speaks(audio_of(events, turn=2), OTHER)
            assert [event["turn"] for event in events if event["event"] == "stopped"] == [2]

    run(main)


@pytest.mark.parametrize("service", ["deepgram", "flux"])
def test_livekit(service: str) -> None:
    async def main() -> None:
        async with serving(Tones(speed=4)) as rig:
            events = await driven(
                rig, "livekit_turns.py", "--service", service,
                "push:Hello there, my friend.", "end", "wait:finished",
                f"push:{FIRST}", "end", "hear:300", "interrupt",
                f"push:{OTHER}", "end", "wait:finished", "push:And a last one.", "end", "wait:finished", "close",
            )  # fmt: skip
            assert [event for event in events if event["event"] == "error"] == []
            assert_speaks(audio_of(events, stream=1), "Hello there, my friend.")
            assert_begins(audio_of(events, stream=2), FIRST)
            assert_speaks(audio_of(events, stream=3), OTHER)
            assert_speaks(audio_of(events, stream=4), "And a last one.")
            at_s = {event.get("stream"): event["at_s"] for event in events if event["event"] == "finished"}
            sent_s = next(event["at_s"] for event in events if event["event"] == "sent")
            assert at_s[3] - sent_s < 3.0, "the next turn waited for the old socket"

    run(main)


def test_a_wrong_key_and_a_wrong_model_are_told_to_the_user() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            for script in ("deepgram_v1.py", "deepgram_v2.py"):
                (told,) = await driven(rig, script, "--key", "wrong", "close")
                assert (told["event"], told["status"]) == ("refused", 401)
            events = await driven(rig, "pipecat_turns.py", "--service", "deepgram", "--voice", "stranger", "wait:error")
            told = next(event for event in events if event["event"] == "error")
            assert "HTTP 400" in told["error"] and "No such model" in told["error"]

    run(main)


@pytest.mark.parametrize("script", ["deepgram_v1.py", "deepgram_v2.py"])
def test_the_sdk_joins_a_carriers_call(script: str) -> None:
    async def main() -> None:
        last = "Flushed" if script == "deepgram_v1.py" else "SpeechMetadata"
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as peer:
            await peer.start()
            await until(lambda: len(rig.server.registry), "the call")
            steps = (f"speak:{OTHER}", "flush", f"wait:{last}", "close")
            events = await driven(rig, script, "--query", "call=CA1", *steps)
            assert correlation(decoded(peer.played), rendering([OTHER])) > 0.99
            assert set(audio_of(events)) == {0}

    run(main)


@pytest.mark.parametrize("service", ["deepgram", "flux"])
def test_pipecat_joins_a_carriers_call(service: str) -> None:
    """Without any audio it would be mute after three turns. Its context has what it sent, not what was heard."""

    async def main() -> None:
        turns = ["One of five.", "Two of five.", "Three of five.", "Four of five."]
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as peer:
            await peer.start()
            await until(lambda: len(rig.server.registry), "the call")
            steps = [f"turn:{FIRST}", "hear:600", "interrupt", "wait:silent"]
            for turn in turns:
                steps += [f"turn:{turn}", "wait:stopped", "wait:silent"]
            events = await driven(rig, "pipecat_turns.py", "--service", service, *steps, path="/calls/CA1")
            assert [event for event in events if event["event"] == "error"] == []
            assert peer.n_clears == 1
            assert rig.engine.spoken[-4:] == turns  # type: ignore[attr-defined]
            last = rendering(turns[-1:])
            assert correlation(decoded(peer.played)[-(-(-len(last) // 160) * 160) :], last) > 0.99

    run(main)


@pytest.mark.parametrize("service", ["deepgram", "flux"])
def test_livekit_joins_a_carriers_call(service: str) -> None:
    """Without any audio it would repeat each turn."""

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as peer:
            await peer.start()
            await until(lambda: len(rig.server.registry), "the call")
            steps = ("--retries", "2", f"push:{OTHER}", "end", "wait:finished")
            events = await driven(rig, "livekit_turns.py", "--service", service, *steps, path="/calls/CA1")
            assert [event["event"] for event in events if event["event"] != "audio"] == ["finished"]
            assert rig.engine.spoken == [OTHER]  # type: ignore[attr-defined]
            assert correlation(decoded(peer.played), rendering([OTHER])) > 0.99

    run(main)
