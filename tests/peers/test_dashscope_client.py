"""DashScope's SDK, unchanged but for the address: its synthesizer, streaming and whole, and its pool of connections."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import av
import numpy as np
import pytest
from environment import bots_python, drive
from rig import Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

SCRIPT = "dashscope_tasks.py"
LONG = "I will now read you every single item of your long order, one after the other, until you stop me."

ENDED = ["closed", "complete", "open", "returned"]

Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def installed() -> None:
    """Otherwise the installation would count as the client's time."""
    bots_python()


def driven(*arguments: str, engine: Tones | None = None, **settings: Any) -> Events:
    """What the client's user saw, beside a real server that knows the key "secret"."""
    events: Events = []

    async def body() -> None:
        async with serving(engine, tokens=("secret",), **settings) as rig:
            events.extend(await asyncio.to_thread(drive, SCRIPT, f"http://127.0.0.1:{rig.port}", *arguments))

    run(body)
    return events


def audio_of(events: Events, task: int) -> bytes:
    return b"".join(event["audio"] for event in events if event["event"] == "audio" and event["task"] == task)


def names(events: Events, task: int) -> list[str]:
    """What the user's callback was told of a task, without the audio. Sorted, as it runs in a thread of its own."""
    told = [each["event"] for each in events if each.get("task") == task]
    return sorted(name for name in told if name not in ("audio", "event"))


def assert_speaks(audio: bytes, sentences: list[str], rate_hz: int = 8000) -> None:
    heard, wanted = decoded([audio], "pcm"), rendering(sentences, rate_hz)
    assert correlation(heard, wanted) > 0.98
    assert abs(len(heard) - len(wanted)) <= rate_hz // 25, "a frame or two of rest"


def test_text_in_pieces_with_a_flush_between() -> None:
    events = driven("speak:Hello", "speak: there.", "flush", "speak: How are", "speak: you?", "complete")
    assert names(events, 1) == ENDED
    assert_speaks(audio_of(events, 1), ["Hello there.", "How are you?"])
    told = [each["message"]["payload"] for each in events if each["event"] == "event"]
    ends = [each for each in told if each["output"]["type"] == "sentence-end"]
    assert [each["output"]["original_text"] for each in ends] == ["Hello there.", "How are you?"]
    assert ends[-1]["usage"] == {"characters": 25}


def test_chinese() -> None:
    engine = Tones()
    events = driven("speak:你好，", "speak:今天天气很好。", "speak:再见。", "complete", engine=engine)
    assert "".join(engine.spoken) == "你好，今天天气很好。再见。"
    assert_speaks(audio_of(events, 1), engine.spoken)


@pytest.mark.parametrize("pool", ["", "1"])
def test_a_cancel_and_then_another_text(pool: str) -> None:
    """Each has a socket of its own, or both have the same one of the SDK's pool."""
    events = driven(
        f"speak:{LONG}", "hear:500", "cancel", "next", "speak:Something else.", "complete", "next", "speak:And now.",
        "complete", "--pool", pool, engine=Tones(speed=8),
    )  # fmt: skip
    assert names(events, 1) == [*ENDED, "sent"]
    sent, returned = (next(each for each in events if each["event"] == name) for name in ("sent", "returned"))
    assert returned["at_s"] - sent["at_s"] < 0.5, "the SDK would wait 10 s"
    for task, text in ((2, "Something else."), (3, "And now.")):
        assert_speaks(audio_of(events, task), [text])
        assert names(events, task) == ENDED
    assert 8000 <= len(audio_of(events, 1)) < 2 * len(rendering([LONG]))


@pytest.mark.parametrize(("form", "rate_hz"), [("PCM_24000HZ_MONO_16BIT", 24_000), ("WAV_22050HZ_MONO_16BIT", 22_050)])
def test_whole_texts(form: str, rate_hz: int) -> None:
    events = driven("call:Hello there.", "next", "call:你好。", "--format", form, "--voice", "longxiaochun_v2")
    wholes = [each["audio"] for each in events if each["event"] == "returned"]
    for audio, text in zip(wholes, ("Hello there.", "你好。"), strict=True):
        if form.startswith("WAV"):
            assert audio[:4] == b"RIFF"
        assert_speaks(audio[44:] if form.startswith("WAV") else audio, [text], rate_hz)


def test_the_format_that_the_sdk_takes_by_itself_is_mp3() -> None:
    (event,) = driven("call:Hello there. Bye.", "--format", "DEFAULT")
    with av.open(io.BytesIO(event["audio"])) as file:
        stream = file.streams.audio[0]
        assert (stream.codec_context.name, stream.rate) == ("mp3float", 22_050)
        heard = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(stream)])
    assert abs(len(heard) - len(rendering(["Hello there.", "Bye."], 22_050))) < 22_050 // 5
    assert np.abs(heard).max() > 0.1


def test_the_errors_that_its_user_sees() -> None:
    (raised,) = [each for each in driven("call:Hi.", "--voice", "stranger") if each["event"] == "raised"]
    assert raised["error"] == "RequestFailure" and "stranger" in raised["message"]
    events = driven("speak:Hello there.", "wait:error", engine=Tones(fail_after_chunks=1))
    (error,) = [each for each in events if each["event"] == "error"]
    assert error["message"]["header"]["error_code"] == "InternalError"
    (raised,) = driven("call:Hi.", "--key", "wrong", "--within", "12")
    assert raised["error"] == "TimeoutError", "the SDK says no more of a refused handshake"


@pytest.mark.parametrize("path", ["", "/calls/CA1"])
def test_it_speaks_in_the_call_of_a_carrier(path: str) -> None:
    async def body() -> None:
        async with serving(tokens=("secret",)) as rig:
            headers = {"Authorization": "Bearer secret"}
            async with calling(rig.url("/media/twilio"), "CA1", headers=headers) as peer:
                await peer.start()
                await until(lambda: len(rig.server.registry), "the call")
                query = () if path else ("--query", "call=CA1")
                events = await asyncio.to_thread(
                    drive, SCRIPT, f"http://127.0.0.1:{rig.port}{path}", "speak:Hello ", "speak:caller.", "complete",
                    *query,
                )  # fmt: skip
                assert names(events, 1) == ENDED
                silence = audio_of(events, 1)
                assert not any(silence) and len(silence) == 2 * rendering(["Hello caller."]).size
                assert correlation(decoded(peer.payloads), rendering(["Hello caller."])) > 0.98
                (opened, returned) = (next(e["at_s"] for e in events if e["event"] == n) for n in ("open", "returned"))
                assert returned - opened > 0.6, "it returns when the caller has heard it"

    run(body)
