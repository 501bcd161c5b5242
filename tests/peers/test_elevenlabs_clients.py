"""The clients of ElevenLabs' protocols, each as its package comes: its SDK, pipecat and livekit."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environment import bots_python, drive
from rig import correlation, decoded, delayed_correlation, rendering, run, serving

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

MS_PER_CHAR = 60
FIRST = "This is the first sentence. And a second one, that is longer than it."
SENTENCES = ["This is the first sentence.", "And a second one, that is longer than it."]


@pytest.fixture(autouse=True)
def installed() -> None:
    """Otherwise the installation would count as a client's time."""
    bots_python()


def driven(
    script: str, *arguments: str, scheme: str = "http", environment: Mapping[str, str] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """What the client's user saw, beside a real server that knows the key "secret"."""
    events: list[dict[str, Any]] = []

    async def body() -> None:
        async with serving(tokens=("secret",), **settings) as rig:
            address = f"{scheme}://127.0.0.1:{rig.port}"
            events.extend(await asyncio.to_thread(drive, script, address, *arguments, environment=environment))

    run(body)
    return events


def audio(events: list[dict[str, Any]], **fields: Any) -> bytes:
    return b"".join(
        event["audio"] for event in events if event["event"] == "audio" and fields.items() <= event.items()
    )


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


def begun_words(text: str, heard_ms: float) -> str:
    """The words of `text` that began in the first `heard_ms`."""
    starts = [at for at in range(len(text)) if text[at] != " " and (at == 0 or text[at - 1] == " ")]
    n_words = sum(at * MS_PER_CHAR < heard_ms for at in starts)
    return " ".join(text.split()[:n_words])


# --------------------------------------------------------------------------- SDK


def test_the_sdk_hears_its_text() -> None:
    events = driven("elevenlabs_stream.py", "Hello there, ", "how are ", "you? ", "--voice", "21m00Tcm4TlvDq8ikWAM")
    assert events[-1]["event"] == "done"
    assert correlation(decoded([audio(events)], "pcm"), rendering(["Hello there, how are you?"])) > 0.98


def test_the_sdk_gets_each_piece_of_text_when_it_takes_the_next() -> None:
    """It sends a piece when the bot hands over the next one, and then takes one message at most. The engine gives
    twenty chunks for each piece."""
    pieces = [f"This is the {nth} sentence. " for nth in ("first", "second", "third", "fourth", "fifth", "sixth")]
    steps = [step for piece in pieces for step in (piece, "pause:1.5")]
    events = driven("elevenlabs_stream.py", *steps, "--within", "30")
    assert events[-1]["event"] == "done"
    handed_s = [event["at_s"] for event in named(events, "handed")]
    heard_s = [(event["at_s"], len(event["audio"]) / 16_000) for event in named(events, "audio")]
    begin_s = 0.0
    for n, piece in enumerate(pieces[:-2]):
        end_s = begin_s + len(piece.strip()) * MS_PER_CHAR / 1000
        total_s = 0.0
        for at_s, length_s in heard_s:
            total_s += length_s
            if total_s >= end_s - 0.2:  # the resampler keeps a little of each sentence for the next
                late_s = at_s - handed_s[n + 2]
                assert late_s < 0.2, f"piece {n} came {late_s:.2f} s after the SDK could have it"
                break
        begin_s = end_s


def test_the_sdk_hears_its_text_over_tls(tmp_path: Path) -> None:
    """Without a change of any kind: it insists on wss."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    events = driven(
        "elevenlabs_stream.py", "Hello there. ", scheme="https", tls=tls,
        environment={"SSL_CERT_FILE": str(tmp_path / "cert.pem")},
    )  # fmt: skip
    assert events[-1]["event"] == "done"
    assert correlation(decoded([audio(events)], "pcm"), rendering(["Hello there."])) > 0.98


def test_the_sdk_gets_its_default_format() -> None:
    pytest.importorskip("av")
    events = driven("elevenlabs_stream.py", "Hello there. ", "--output-format", "mp3_44100_128")
    assert events[-1]["event"] == "done"
    heard = audio(events)
    assert heard[0] == 0xFF and heard[1] & 0xE0 == 0xE0  # the beginning of an MP3 frame


def test_the_sdk_is_told_that_its_key_is_wrong() -> None:
    *_, event = driven("elevenlabs_stream.py", "Hello there. ", "--key", "wrong")
    assert (event["event"], event["code"]) == ("failed", 1008)


def test_the_sdk_is_told_that_its_voice_is_unknown() -> None:
    (event,) = driven("elevenlabs_stream.py", "Hello there. ", "--voice", "stranger")
    assert (event["event"], event["status"]) == ("refused", 400) and "voice_not_found" in event["body"]


# ----------------------------------------------------------------------- pipecat


def test_pipecat_speaks_two_turns_and_remembers_each_word() -> None:
    events = driven(
        "pipecat_turns.py", "--service", "elevenlabs", "turn:One two. Three is 4.", "wait:stopped", "wait:silent",
        "turn:Five six.", "wait:stopped", "wait:silent",
    )  # fmt: skip
    assert named(events, "error") == []
    heard = {turn: decoded([audio(events, turn=turn)], "pcm") for turn in (1, 2)}
    assert correlation(heard[1], rendering(["One two.", "Three is four."])) > 0.98
    assert correlation(heard[2], rendering(["Five six."])) > 0.98
    assert [event["text"] for event in named(events, "text")] == ["One", "two.", "Three", "is", "4.", "Five", "six."]
    assert events[-1]["said"] == ["One two. Three is 4.", "Five six."]


def test_pipecat_remembers_what_was_spoken_before_an_interruption_and_the_next_turn_is_whole() -> None:
    events = driven(
        "pipecat_turns.py", "--service", "elevenlabs", "--voice", "None", f"turn:{FIRST}", "hear:700", "interrupt",
        "turn:Fine, and more.", "wait:stopped", "wait:silent", "wait:silent",
    )  # fmt: skip
    (interruption,) = named(events, "sent")
    said = events[-1]["said"]
    # The client's own clock decides about a word that begins just then.
    possible = {begun_words(FIRST, interruption["played_ms"] + moved_ms) for moved_ms in (-150, 0, 150)}
    assert said[0] in possible and said[1] == "Fine, and more."
    assert correlation(decoded([audio(events, turn=2)], "pcm"), rendering(["Fine, and more."])) > 0.98
    behind = events[events.index(interruption) :]
    assert len(audio(behind, turn=1)) <= 3200, "the interrupted turn went on"


def test_pipecat_can_be_interrupted_again_and_again() -> None:
    turns = [step for n in range(4) for step in (f"turn:{FIRST}", "hear:300", "interrupt", "wait:silent")]
    events = driven(
        "pipecat_turns.py", "--service", "elevenlabs", *turns, "turn:Fine, and more.", "wait:stopped", "wait:silent",
        burst_ahead_s=1.0,
    )  # fmt: skip
    assert events[-1]["said"][-1] == "Fine, and more."
    assert correlation(decoded([audio(events, turn=5)], "pcm"), rendering(["Fine, and more."])) > 0.98
    assert len(named(events, "connected")) == 1


# ----------------------------------------------------------------------- livekit


@pytest.mark.parametrize(("encoding", "rate_hz"), [("pcm_24000", 24_000), ("", 22_050)])
def test_livekit_speaks_two_turns_and_one_that_is_interrupted(encoding: str, rate_hz: int) -> None:
    """Its default is MP3."""
    if not encoding:
        pytest.importorskip("av")
    chosen = ["--encoding", encoding] if encoding else []
    events = driven(
        "livekit_turns.py", "--service", "elevenlabs", *chosen, "push:One two. Three is 4.", "end", "wait:finished",
        f"push:{FIRST}", "end", "hear:300", "interrupt", "push:Fine, and more.", "end", "wait:finished", "close",
        burst_ahead_s=0.5,
    )  # fmt: skip
    assert named(events, "error") == []
    for stream, sentences in ((1, ["One two.", "Three is four."]), (3, ["Fine, and more."])):
        (rate,) = {event["rate"] for event in named(events, "audio") if event["stream"] == stream}
        assert rate == rate_hz
        heard = decoded([audio(events, stream=stream)], "pcm")
        assert delayed_correlation(heard, rendering(sentences, rate_hz)) > 0.95
    interrupted = decoded([audio(events, stream=2)], "pcm")
    assert len(interrupted) < 2.5 * rate_hz
    # Its text was complete, so the client said nothing of the interruption.
    (stopped,) = named(events, "interrupted")
    next_audio = next(event for event in events if event["event"] == "audio" and event["stream"] == 3)
    assert next_audio["at_s"] - stopped["at_s"] < 1, "the next turn waited for the interrupted one"
    words = {n: [word for word in named(events, "words") if word["stream"] == n] for n in (1, 3)}
    assert "".join(word["text"] for word in words[1]) == "One two. Three is 4. "
    assert "".join(word["text"] for word in words[3]) == "Fine, and more. "
    for of_stream in words.values():
        times = [at for word in of_stream for at in (word["start_s"], word["end_s"])]
        assert times == sorted(times)
    assert words[1][1]["start_s"] == pytest.approx(4 * MS_PER_CHAR / 1000, abs=0.002)


# -------------------------------------------------------------- as the reference page


def test_contexts_of_a_plain_client() -> None:
    events = driven(
        "elevenlabs_contexts.py", "open:a", "say:a:Hello there. ", "flush:a", "end:a", "wait:final", "alive",
        "alive:a", "end:a", "end:stranger", "open:b", "say:b:Bye. ", "flush:b", "end:b", "wait:final", "close",
    )  # fmt: skip
    assert [event["context"] for event in named(events, "final")] == ["a", "b"]
    assert [event["code"] for event in named(events, "closed")] == [1000]
    for context, text in (("a", "Hello there."), ("b", "Bye.")):
        heard = np.frombuffer(audio(events, context=context), "<i2").astype(np.int16)
        assert correlation(heard, rendering([text])) > 0.98
