"""Bodies of HTTP answers, cut anywhere: plain samples, WAV files without true sizes, and events."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from telephony_tts.engines.others.audio_body import MAX_HEADER_BYTES, BadAudio, EventBody, SampleBody
from telephony_tts.runtime.errors import EngineError, ReplicaLost

RATE_HZ = 24_000
SOUND = bytes(range(256)) * 9 + b"\x07"


def head(rate_hz: int = RATE_HZ, n_bytes: int = 0, *, tag: int = 1, n_channels: int = 1, n_bits: int = 16) -> bytes:
    body = struct.pack("<HHIIHH", tag, n_channels, rate_hz, rate_hz * 2, 2, n_bits)
    note = struct.pack("<4sI", b"LIST", 5) + b"hello\0"
    riff = struct.pack("<4sI", b"RIFF", n_bytes) + b"WAVE"
    return riff + struct.pack("<4sI", b"fmt ", 16) + body + note + struct.pack("<4sI", b"data", n_bytes)


def read(body: SampleBody | EventBody, content: bytes, n_step: int) -> bytes:
    found = b"".join(body.feed(content[at : at + n_step]) for at in range(0, len(content), n_step))
    body.end()
    return found


@pytest.mark.parametrize("n_step", [1, 2, 3, 7, 44, 70, 100_000])
@pytest.mark.parametrize("before", [b"", head(), head(n_bytes=0xFFFFFFFF), head(n_bytes=12), head(tag=0xFFFE)])
def test_samples_are_what_stands_behind_the_header(before: bytes, n_step: int) -> None:
    assert read(SampleBody(RATE_HZ, "s"), before + SOUND, n_step) == SOUND


@pytest.mark.parametrize("start", [b"R", b"RI", b"RIF", b"RIFX", b"\0\0RIFF"])
def test_samples_may_begin_like_a_header(start: bytes) -> None:
    assert read(SampleBody(RATE_HZ, "s"), start + b"\0" + SOUND, 1) == start + b"\0" + SOUND


@pytest.mark.parametrize("n_bytes", [1, 3, 12, 40, len(head()) - 1])
def test_half_a_header_is_an_error(n_bytes: int) -> None:
    with pytest.raises(BadAudio, match=f"ended inside the header of a WAV file, after {n_bytes} bytes"):
        read(SampleBody(RATE_HZ, "s"), head()[:n_bytes], 5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (head(44_100), "sends 44100 Hz, and engines.others.theirs.rate_hz is 24000; set it to 44100"),
        (head(n_channels=2), "16 bits, 2 channels; expected 16-bit PCM, mono"),
        (head(tag=3, n_bits=32), "format 3, 32 bits"),
        (b"RIFF\0\0\0\0WAVE" + struct.pack("<4sI", b"data", 0) + SOUND, "audio comes before its format"),
        (b"RIFF\0\0\0\0WAVE" + struct.pack("<4sI", b"junk", 2**31) + bytes(MAX_HEADER_BYTES), "without audio"),
    ],
)
def test_a_header_that_cannot_be_used_says_why(content: bytes, words: str) -> None:
    with pytest.raises(BadAudio, match=words):
        read(SampleBody(RATE_HZ, "engines.others.theirs"), content, 1_000)


# ----------------------------------------------------------------------- events


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def delta(sound: bytes) -> bytes:
    return event({"type": "speech.audio.delta", "audio": base64.b64encode(sound).decode()})


def chunk(sound: bytes, rate_hz: int = RATE_HZ) -> bytes:
    audio = {"data": base64.b64encode(sound).decode(), "format": "pcm", "sample_rate": rate_hz}
    return event({"object": "audio.speech.chunk", "audio": audio})


DONE = event({"type": "speech.audio.done", "usage": {"total_tokens": 3}})
SGLANG_DONE = event({"object": "audio.speech.chunk", "audio": None}) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("n_step", [1, 5, 100_000])
@pytest.mark.parametrize(
    "content",
    [
        delta(SOUND[:101]) + delta(SOUND[101:]) + DONE,
        b": a comment\r\nevent: speech.audio.delta\r\n" + delta(SOUND).replace(b"\n", b"\r\n") + DONE,
        chunk(SOUND[:500]) + chunk(SOUND[500:]) + SGLANG_DONE,
        delta(SOUND) + DONE + delta(b"never heard"),
    ],
)
def test_events_of_both_dialects(content: bytes, n_step: int) -> None:
    body = EventBody(RATE_HZ, "s")
    assert read(body, content, n_step) == SOUND
    assert body.is_done


def test_events_without_the_last_one_are_a_broken_stream() -> None:
    with pytest.raises(ReplicaLost, match="ended before the last one"):
        read(EventBody(RATE_HZ, "s"), delta(SOUND), 50)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (event({"type": "speech.audio.error", "error": {"message": "out of memory", "code": "x"}}), "out of memory"),
        (event({"error": "the queue is full"}), "the queue is full"),
        (b"data: {half\n", "not JSON"),
        (b"data: " + b"[" * 100_000 + b"\n", "not JSON"),
        (event([1]), "no object"),
        (event({"audio": "%%%"}), "not base64"),
        (event({"audio": 7}), "not base64"),
        (chunk(SOUND, 48_000), r"sends 48000 Hz, and s\.rate_hz is 24000"),
    ],
)
def test_an_event_that_is_an_error_or_cannot_be_read(content: bytes, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        read(EventBody(RATE_HZ, "s"), delta(SOUND) + content + DONE, 40)


def test_an_event_without_an_end_is_bounded() -> None:
    body = EventBody(RATE_HZ, "s")
    with pytest.raises(BadAudio, match="more than 8000000 bytes"):
        for _ in range(9):
            body.feed(b"x" * 1_000_000)
