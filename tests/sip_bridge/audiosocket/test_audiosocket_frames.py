"""AudioSocket's frames from any split of the stream, and the reports about frames that cannot be used."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.audiosocket.frames import (
    DIGITS,
    HANGUP_FRAME,
    KIND_OF_RATE,
    RATE_HZ,
    AudioFrame,
    AudioSocketFrame,
    AudioSocketReader,
    BadFrame,
    DigitFrame,
    ErrorFrame,
    HangupFrame,
    UuidFrame,
    audio_header,
)

CALL = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


def frame(kind: int, payload: bytes = b"") -> bytes:
    return bytes((kind,)) + len(payload).to_bytes(2, "big") + payload


NAMED = frame(0x01, CALL.bytes)


def read(*pieces: bytes) -> list[AudioSocketFrame]:
    """The frames that a reader returns for the pieces."""
    reader = AudioSocketReader()
    return [item for piece in pieces for item in reader.feed(piece)]


def after_uuid(data: bytes) -> list[AudioSocketFrame]:
    first, *rest = read(NAMED + data)
    assert first == UuidFrame(CALL)
    return rest


# ------------------------------------------------------------------ good frames


def test_a_call_as_asterisk_sends_it() -> None:
    pcm = bytes(range(160)) * 2
    observed = [bytes.fromhex("010010"), CALL.bytes, bytes.fromhex("100140"), pcm, bytes.fromhex("03000131"), bytes(3)]
    assert read(b"".join(observed)) == [UuidFrame(CALL), AudioFrame(8000, pcm), DigitFrame("1"), HangupFrame()]


@pytest.mark.parametrize(
    ("kind", "rate_hz"),
    [(0x10, 8000), (0x11, 12000), (0x12, 16000), (0x13, 24000), (0x14, 32000), (0x15, 44100), (0x16, 48000),
     (0x17, 96000), (0x18, 192000)],
)  # fmt: skip
def test_each_kind_of_audio_has_its_rate(kind: int, rate_hz: int) -> None:
    assert after_uuid(frame(kind, b"\1\2" * 30)) == [AudioFrame(rate_hz, b"\1\2" * 30)]
    assert audio_header(rate_hz, 640) == bytes((kind, 2, 128))


def test_audio_frames_of_any_size_are_read_whole() -> None:
    for n_bytes in (480, 2, 320, 65_534):
        assert after_uuid(frame(0x10, b"\5\6" * (n_bytes // 2))) == [AudioFrame(8000, b"\5\6" * (n_bytes // 2))]


def test_digits_are_upper_case_and_errors_tell_their_code() -> None:
    assert after_uuid(b"".join(frame(3, bytes((ord(d),))) for d in "0*#Ad")) == [DigitFrame(d) for d in "0*#AD"]
    assert after_uuid(frame(0xFF, b"\4") + frame(0xFF)) == [ErrorFrame(4), ErrorFrame(-1)]


def test_written_frames_can_be_read() -> None:
    for rate_hz in KIND_OF_RATE:
        pcm = b"\7\0" * (rate_hz // 50)
        assert after_uuid(audio_header(rate_hz, len(pcm)) + pcm) == [AudioFrame(rate_hz, pcm)]
    assert after_uuid(HANGUP_FRAME) == [HangupFrame()]


# -------------------------------------------------------------------- bad frames


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (frame(0x10), "empty_audio"),
        (frame(0x12, b"abc"), "odd_audio"),
        (NAMED, "second_uuid"),
        (frame(0x02, b"xyz"), "unknown_kind"),
        (frame(0x19, bytes(320)), "unknown_kind"),
        (frame(0x0F), "unknown_kind"),
        (frame(0x03, b"12"), "bad_digit"),
        (frame(0x03), "bad_digit"),
        (frame(0x03, b"x"), "bad_digit"),
        (frame(0x03, b"\xff"), "bad_digit"),
    ],
)
def test_a_bad_frame_is_reported_and_skipped_and_the_next_is_read(data: bytes, kind: str) -> None:
    bad, *rest = after_uuid(data + frame(0x10, b"okok"))
    assert isinstance(bad, BadFrame) and bad.kind == kind and bad.why
    assert rest == [AudioFrame(8000, b"okok")]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("160301020001"),
        b"\x10\x01\x40" + bytes(320),
        frame(0x01, b"short"),
        frame(0x01, CALL.bytes + b"x"),
        frame(0x03, b"1"),
    ],
    ids=["http", "tls", "audio first", "short uuid", "long uuid", "digit first"],
)
def test_a_stream_without_a_uuid_is_recognised_at_the_third_byte(data: bytes) -> None:
    assert read(data[:2]) == []
    (bad,) = read(data[:3])
    assert isinstance(bad, BadFrame) and bad.kind == "not_audiosocket"
    assert "01 0010" in bad.why and f"{data[0]:02x} {data[1:3].hex()}" in bad.why


def test_a_bad_frame_is_reported_once_and_its_payload_is_dropped() -> None:
    reader = AudioSocketReader()
    reader.feed(NAMED)
    (bad,) = reader.feed(b"\x77\xff\xff")
    assert isinstance(bad, BadFrame)
    for _ in range(65_535 // 15):
        assert reader.feed(frame(0x10, b"not an audio")) == []
        assert len(reader._held) == 0
    assert reader.feed(frame(0x03, b"7")) == [DigitFrame("7")]


# ---------------------------------------------------------------------- properties

payloads = st.one_of(
    st.builds(lambda kind, pcm: frame(kind, pcm), st.sampled_from(sorted(RATE_HZ)), st.binary(max_size=700)),
    st.builds(lambda digit: frame(3, digit.encode()), st.sampled_from(DIGITS)),
    st.builds(frame, st.integers(0, 255), st.binary(max_size=40)),
)


@given(st.lists(payloads, max_size=12), st.lists(st.integers(0, 4000), max_size=30))
def test_any_split_of_the_stream_gives_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    data = NAMED + b"".join(frames)
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    whole = read(data)
    assert read(*pieces) == whole == read(*[data[i : i + 1] for i in range(len(data))])
    assert len(whole) == len(frames) + 1, "one item for each frame"


@given(st.binary(max_size=3000))
def test_no_garbage_raises_or_is_kept_beyond_one_frame(data: bytes) -> None:
    for start in (b"", NAMED):
        reader = AudioSocketReader()
        reader.feed(start)
        for item in reader.feed(data):
            assert isinstance(item, AudioSocketFrame)
        assert len(reader._held) <= 3 + 65_535
