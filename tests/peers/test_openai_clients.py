"""OpenAI's clients, unchanged but for the base URL: its SDK, pipecat's service and livekit's plugin."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import numpy as np
import pytest
import soundfile
from environment import drive
from rig import Rig, Tones, correlation, rendering, run, serving, until
from rig import decoded as decoded_frames
from twilio_peer import TwilioPeer, calling

from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.transport.settings import ServerSettings

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

TEXT = "Hello there, my friend."
FIRST = "This is the first sentence. And a second one that is longer than the first, so it can be interrupted."
OTHER = "Now the other turn."
LAG = {"mp3": 1105, "aac": 1024}
TYPES = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip

Events = list[dict[str, Any]]


async def driven(rig: Rig, script: str, *arguments: str, path: str = "") -> Events:
    return await asyncio.to_thread(drive, script, f"http://127.0.0.1:{rig.port}{path}", *arguments)


def audio_of(events: Events, **which: Any) -> bytes:
    return b"".join(
        event["audio"]
        for event in events
        if event["event"] == "audio" and all(event[name] == value for name, value in which.items())
    )


def only(events: Events, name: str) -> dict[str, Any]:
    [found] = [event for event in events if event["event"] == name]
    return found


def assert_speaks(pcm: np.ndarray, text: str, at_least: float = 0.99) -> None:
    """The samples, at 24 kHz, are those of the text, up to its end."""
    wanted = rendering([text], 24_000)
    assert correlation(pcm, wanted) > at_least
    assert -480 <= len(pcm) - len(wanted) < 24_000 // 5


def without_lag(pcm: np.ndarray, text: str) -> np.ndarray:
    """The samples from where they are most like the text's: decoders differ in how much of a codec's delay they cut."""
    wanted = rendering([text], 24_000)[:12_000].astype(float)
    return pcm[int(np.argmax(np.correlate(pcm[:15_000].astype(float), wanted, "valid"))) :]


def decoded(format: str, content: bytes) -> np.ndarray:
    if format == "pcm":
        return np.frombuffer(content, "<i2")
    if format in ("aac", "flac"):
        av = pytest.importorskip("av")
        with av.open(io.BytesIO(content)) as file:
            pcm = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
        return (pcm if pcm.dtype == np.int16 else pcm * 32_768)[LAG.get(format, 0) :]
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        return file.read(2_000_000, dtype="int16")[LAG.get(format, 0) :]


def requests_of(events: Events) -> list[Events]:
    """The events of each request that was spoken."""
    found: list[Events] = []
    for event in events:
        if event["event"] == "headers":
            found.append([])
        if found:
            found[-1].append(event)
    return found


def test_the_sdk_gets_every_format() -> None:
    async def main() -> None:
        async with serving() as rig:
            steps = [
                step
                for stream in ("audio", "sse")
                for format in TYPES
                for step in (f"set:stream={stream}", f"set:format={format}", f"speak:{TEXT}")
            ]
            spoken = requests_of(await driven(rig, "openai_speech.py", *steps))
            assert len(spoken) == 2 * len(TYPES)
            for format, events in zip([*TYPES, *TYPES], spoken, strict=True):
                assert_speaks(decoded(format, audio_of(events)), TEXT)
                only(events, "done")
            told = [only(events, "headers")["content_type"] for events in spoken]
            assert told[: len(TYPES)] == list(TYPES.values())
            assert all(each.startswith("text/event-stream") for each in told[len(TYPES) :])
            assert {only(events, "usage")["type"] for events in spoken[len(TYPES) :]} == {"speech.audio.done"}

    run(main)


def test_the_sdk_with_the_vendors_voices_and_the_lists() -> None:
    async def main() -> None:
        async with serving(Tones(voice_names=("tone", "other")), voice_names={"nova": "other"}) as rig:
            steps = [step for name in ("alloy", "nova", "other") for step in (f"set:voice={name}", f"speak:{TEXT}")]
            events = await driven(rig, "openai_speech.py", "--speed", "1.0", "--instructions", "Hm.", *steps, "models")
            for spoken in requests_of(events):
                assert_speaks(decoded("pcm", audio_of(spoken)), TEXT)
            assert {"fake", "tts-1"} <= set(only(events, "models")["ids"])

    run(main)


def test_the_sdk_raises_its_own_errors() -> None:
    async def main() -> None:
        async with serving(server=ServerSettings(host="127.0.0.1", port=0, tokens=("secret",))) as rig:
            speak = f"speak:{TEXT}"
            wrong = ["set:voice=ghost", speak, "set:voice=alloy", "set:format=wma", speak, "set:format=pcm"]
            events = await driven(
                rig, "openai_speech.py", *wrong, "set:speed=9", speak, "set:speed=1", "speak: ", speak
            )
            failed = [e for e in events if e["event"] == "failed"]
            assert [(e["error"], e["status"], e["body"]["code"]) for e in failed] == [
                ("NotFoundError", 404, "unknown_voice"),
                ("BadRequestError", 400, "bad_request"),
                ("BadRequestError", 400, "bad_request"),
                ("BadRequestError", 400, "bad_request"),
            ]
            assert all(e["body"]["message"] for e in failed)
            assert_speaks(decoded("pcm", audio_of(events)), TEXT)
            failure = only(await driven(rig, "openai_speech.py", "--key", "wrong", speak), "failed")
            assert (failure["error"], failure["status"]) == ("AuthenticationError", 401)

    run(main)


def test_the_sdk_sees_a_broken_engine_and_a_busy_server() -> None:
    async def main() -> None:
        async with serving(FakeEngine(fail_after_chunks=0)) as rig:
            failed = only(await driven(rig, "openai_speech.py", f"speak:{TEXT}"), "failed")
            assert (failed["error"], failed["status"]) == ("InternalServerError", 500)
            rig.server.ready = False
            failed = only(await driven(rig, "openai_speech.py", f"speak:{TEXT}"), "failed")
            assert (failed["error"], failed["status"], failed["body"]["code"]) == ("InternalServerError", 503, "busy")

    run(main)


def test_an_sdk_that_stops_early_frees_the_engine() -> None:
    async def main() -> None:
        engine = FakeEngine(speed=2.0)
        async with serving(engine) as rig:
            driving = asyncio.create_task(
                driven(rig, "openai_speech.py", "--stop", "300", f"speak:{FIRST * 5}", "pause:2", f"speak:{OTHER}")
            )
            await until(lambda: engine.n_live == 1, "the engine works")
            await until(lambda: engine.n_live == 0 and not len(rig.server.registry), "the engine is free", 4)
            assert not driving.done(), "it was the client's end that freed the engine"
            events = await driving
            # The second request drops its connection too.
            assert [e["event"] for e in events if e["event"] != "audio"] == ["headers", "stopped"] * 2

    run(main)


@pytest.mark.parametrize("encoding", ["", "wav"])
def test_livekit(encoding: str) -> None:
    """Its defaults are sse and mp3."""

    async def main() -> None:
        async with serving() as rig:
            how = ("--encoding", encoding) if encoding else ()
            events = await driven(
                rig, "livekit_turns.py", "--service", "openai", "--rate", "24000", *how,
                f"push:{TEXT}", "end", "wait:finished", f"push:{OTHER}", "end", "wait:finished", "close",
            )  # fmt: skip
            assert "error" not in [event["event"] for event in events]
            for stream, text in ((1, TEXT), (2, OTHER)):
                heard = np.frombuffer(audio_of(events, stream=stream), "<i2")
                assert_speaks(without_lag(heard, text), text, 0.97)

    run(main)


def test_livekit_with_opus() -> None:
    """Its decoder reads Ogg with the least delay, and so loses the first packet of 20 ms, however the stream is cut in
    pages. Other decoders have all of it (test_the_sdk_gets_every_format)."""

    async def main() -> None:
        async with serving() as rig:
            events = await driven(
                rig, "livekit_turns.py", "--service", "openai", "--rate", "24000", "--encoding", "opus",
                f"push:{TEXT}", "end", "wait:finished", "close",
            )  # fmt: skip
            assert "error" not in [event["event"] for event in events]
            heard, wanted = np.frombuffer(audio_of(events, stream=1), "<i2"), rendering([TEXT], 24_000)[480:]
            assert correlation(heard, wanted) > 0.97 and abs(len(heard) - len(wanted)) < 480

    run(main)


def test_livekit_interrupts() -> None:
    async def main() -> None:
        engine = Tones(speed=3.0)
        async with serving(engine) as rig:
            events = await driven(
                rig, "livekit_turns.py", "--service", "openai", "--rate", "24000", "--encoding", "pcm",
                f"push:{FIRST}", "end", "hear:500", "interrupt", f"push:{OTHER}", "end", "wait:finished", "close",
            )  # fmt: skip
            assert len(audio_of(events, stream=1)) < 2 * len(rendering([FIRST], 24_000))
            assert_speaks(np.frombuffer(audio_of(events, stream=2), "<i2"), OTHER)
            assert "error" not in [event["event"] for event in events]

    run(main)


def test_pipecat() -> None:
    async def main() -> None:
        async with serving(Tones(speed=4.0)) as rig:
            events = await driven(
                rig, "pipecat_turns.py", "--service", "openai",
                f"turn:{TEXT}", "wait:silent", f"turn:{FIRST}", "hear:700", "interrupt", f"turn:{OTHER}",
                "wait:silent", "wait:silent",
            )  # fmt: skip
            assert "error" not in [event["event"] for event in events]
            assert_speaks(np.frombuffer(audio_of(events, turn=1), "<i2"), TEXT)
            last = max(event["turn"] for event in events if event["event"] == "audio")
            assert_speaks(np.frombuffer(audio_of(events, turn=last), "<i2"), OTHER)

    run(main)


# ------------------------------------------------------------------- in a carrier's call


def assert_caller_hears_last(phone: TwilioPeer, texts: list[str]) -> None:
    """The last that the caller hears is these sentences, each from its first sample to its last, without a gap."""
    n_frames = [-(-len(rendering([text])) // 160) for text in texts]
    played = phone.played[-sum(n_frames) :]
    for text, n in zip(texts, n_frames, strict=True):
        assert correlation(decoded_frames(played[:n]), rendering([text])) > 0.98, text
        played = played[n:]


@pytest.mark.parametrize(
    "joining", [{"path": "/calls/CA1"}, {"query": "call=CA1"}], ids=["in the path", "in the query"]
)
@pytest.mark.parametrize("stream", ["audio", "sse"])
def test_the_sdk_joins_a_carriers_call(joining: dict[str, str], stream: str) -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            how = ("--query", joining["query"]) if "query" in joining else ()
            steps = (f"speak:{TEXT}", f"speak:{OTHER}", "models")
            events = await driven(
                rig, "openai_speech.py", *how, "--stream", stream, *steps, path=joining.get("path", "")
            )
            spoken = [audio_of(each) for each in requests_of(events)]
            assert spoken == [bytes(2 * len(rendering([text], 24_000))) for text in (TEXT, OTHER)]
            assert "tts-1" in only(events, "models")["ids"]
            await until(lambda: not rig.server.registry.calls()[0].session.turns, "the end of the speech")
            assert_caller_hears_last(phone, [TEXT, OTHER])

    run(main)


def test_the_sdk_interrupts_in_a_carriers_call() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            events = await driven(
                rig, "openai_speech.py", "--stop", "500", f"speak:{FIRST}", "set:stop=0", f"speak:{OTHER}",
                path="/calls/CA1",
            )  # fmt: skip
            assert [e["event"] for e in events if e["event"] != "audio"] == ["headers", "stopped", "headers", "done"]
            assert phone.n_clears == 1
            await until(lambda: not rig.server.registry.calls()[0].session.turns, "the end of the speech")
            assert_caller_hears_last(phone, [OTHER])
            assert len(phone.played) * 160 < len(rendering([FIRST])), "the caller heard little of the first turn"

    run(main)


def test_the_sdk_is_told_that_the_call_has_a_bot() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with rig.bot(call="CA1"):
                failed = only(await driven(rig, "openai_speech.py", f"speak:{TEXT}", path="/calls/CA1"), "failed")
                assert (failed["error"], failed["status"], failed["body"]["code"]) == (
                    "ConflictError", 409, "call_taken",
                )  # fmt: skip

    run(main)


def test_pipecat_joins_a_carriers_call() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            steps = [f"turn:{FIRST}", "hear:600", "interrupt", "wait:silent"]
            for turn in (TEXT, f"{OTHER} {TEXT}"):
                steps += [f"turn:{turn}", "wait:silent"]
            events = await driven(rig, "pipecat_turns.py", "--service", "openai", *steps, path="/calls/CA1")
            assert "error" not in [event["event"] for event in events]
            assert phone.n_clears == 1
            assert only(events, "context")["said"][-2:] == [TEXT, f"{OTHER} {TEXT}"]
            await until(lambda: not rig.server.registry.calls()[0].session.turns, "the end of the speech")
            assert_caller_hears_last(phone, [TEXT, OTHER, TEXT])

    run(main)


@pytest.mark.parametrize("encoding", ["", "pcm", "opus"])
def test_livekit_joins_a_carriers_call(encoding: str) -> None:
    """Without any audio it would repeat each sentence."""

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            how = ("--encoding", encoding) if encoding else ()
            events = await driven(
                rig, "livekit_turns.py", "--service", "openai", "--rate", "24000", "--retries", "2", *how,
                f"push:{FIRST}", "end", "hear:500", "interrupt",
                f"push:{TEXT} {OTHER}", "end", "wait:finished", "close",
                path="/calls/CA1",
            )  # fmt: skip
            assert "error" not in [event["event"] for event in events]
            assert phone.n_clears == 1
            assert rig.engine.spoken[-2:] == [TEXT, OTHER]  # type: ignore[attr-defined]
            await until(lambda: not rig.server.registry.calls()[0].session.turns, "the end of the speech")
            assert_caller_hears_last(phone, [TEXT, OTHER])

    run(main)
