"""chan_websocket: messages recorded from Asterisk 22, in both forms, and those that it must get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.asterisk.codec import MAX_CONTROL_BYTES, NO_AUDIO, AsteriskCodec
from telephony_tts.wire.messages import (
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaBuffered,
    MediaClear,
    MediaDtmf,
    MediaFlow,
    MediaMark,
    MediaStart,
)

PLAIN = (
    "MEDIA_START connection_id:tts_media channel:WebSocket/tts_media/0x7f01 channel_id:peer-1795146108.56 "
    "format:ulaw optimal_frame_size:160 ptime:20"
)
JSON_START = {
    "event": "MEDIA_START", "connection_id": "tts_media", "channel": "WebSocket/tts_media/0x7f02",
    "channel_id": "peer-1795146108.57", "format": "slin16", "optimal_frame_size": 640, "ptime": 20,
    "channel_variables": {"MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE": "640", "__FROM": "+49", "n": 5},
}  # fmt: skip


def plain() -> AsteriskCodec:
    codec = AsteriskCodec()
    assert isinstance(codec.decode(PLAIN.encode()), MediaStart)
    return codec


def in_json(**fields: Any) -> AsteriskCodec:
    codec = AsteriskCodec()
    assert isinstance(codec.decode(json.dumps(JSON_START | fields).encode()), MediaStart)
    return codec


def test_a_plain_start() -> None:
    about = {"channel": "WebSocket/tts_media/0x7f01", "channel_id": "peer-1795146108.56", "connection_id": "tts_media"}
    start = AsteriskCodec().decode(PLAIN.encode())
    assert start == MediaStart(
        "peer-1795146108.56", "peer-1795146108.56", "ulaw", 8000, about, ptime_ms=20, lead_ms=1000, bulk_ms=200
    )


def test_a_start_in_json_with_the_variables_of_the_channel() -> None:
    start = AsteriskCodec().decode(json.dumps(JSON_START).encode())
    assert isinstance(start, MediaStart)
    assert (start.call, start.codec, start.rate_hz) == ("peer-1795146108.57", "pcm", 16000)
    assert start.parameters["FROM"] == "+49" and "n" not in start.parameters


def test_the_dialplan_may_name_the_call() -> None:
    start = AsteriskCodec().decode(json.dumps(JSON_START | {"channel_variables": {"_TTS_CALL": "sales-7"}}).encode())
    assert isinstance(start, MediaStart)
    assert (start.call, start.stream) == ("sales-7", "peer-1795146108.57")
    refused = AsteriskCodec().decode(json.dumps(JSON_START | {"channel_variables": {"TTS_CALL": "a b"}}).encode())
    assert isinstance(refused, Invalid) and "TTS_CALL must be" in refused.message


@pytest.mark.parametrize("name", ["opus", "", None, 7, ["ulaw"], "slin12"])
def test_an_unsupported_format_is_refused_with_the_supported_ones(name: Any) -> None:
    refused = AsteriskCodec().decode(json.dumps(JSON_START | {"format": name}).encode())
    assert isinstance(refused, Invalid) and refused.code == "unsupported_codec" and "c(slin16)" in refused.message


@pytest.mark.parametrize("ptime", [25, 0, 1000])
def test_unsupported_frame_lengths_are_refused(ptime: int) -> None:
    refused = AsteriskCodec().decode(json.dumps(JSON_START | {"ptime": ptime}).encode())
    assert isinstance(refused, Invalid) and "ptime must be one of" in refused.message


def test_an_error_does_not_repeat_a_long_number() -> None:
    codec = AsteriskCodec()
    refused = codec.decode(json.dumps(JSON_START | {"ptime": 10**700}).encode())
    assert isinstance(refused, Invalid) and refused.message.endswith("got a number out of range")
    codec.decode(json.dumps(JSON_START).encode())
    refused = codec.decode(json.dumps({"event": "STATUS", "queue_length": 10**700}).encode())
    assert isinstance(refused, Invalid) and refused.message.startswith("a queue of a number out of range frames")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("MEDIA_MARK_PROCESSED 1.2", MediaMark("1.2")),
        ("MEDIA_MARK_PROCESSED", None),
        ("MEDIA_XOFF", MediaFlow(False)),
        ("MEDIA_XON", MediaFlow(True)),
        ("DTMF_END digit:* channel_id:x", MediaDtmf("*")),
        (
            "STATUS channel_id:x queue_length:200 xon_level:800 xoff_level:900 queue_full:false bulk_media:false "
            "media_paused:true",
            MediaBuffered(200, is_paused=True),
        ),
        ("STATUS channel_id:x", None),
        ("QUEUE_DRAINED", None),
        ("MEDIA_BUFFERING_COMPLETED u1", None),
    ],
)  # fmt: skip
def test_plain_lines(line: str, message: Any) -> None:
    assert plain().decode(line.encode()) == message


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"event": "MEDIA_MARK_PROCESSED", "correlation_id": "1.2"}, MediaMark("1.2")),
        ({"event": "STATUS", "queue_length": 126, "media_paused": False}, MediaBuffered(126)),
        ({"event": "STATUS", "queue_length": 0, "media_paused": True}, MediaBuffered(0, is_paused=True)),
        ({"event": "DTMF_END", "digit": "5"}, MediaDtmf("5")),
        ({"event": "MEDIA_XOFF"}, MediaFlow(False)),
        ({"event": "QUEUE_DRAINED"}, None),
    ],
)
def test_json_events(event: dict[str, Any], message: Any) -> None:
    assert in_json().decode(json.dumps(event).encode()) == message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"event":"ERROR","error_text":"Unable to parse JSON command"}', "peer_error"),
        (b'{"event":"DTMF_END","digit":["5"]}', "bad_field"),
        (b"DTMF_END digit:55", "bad_field"),
        (b"HELLO", "unknown_type"),
        (b"", "unknown_type"),
        (b'{"event":["x"]}', "unknown_type"),
        (b"{", "bad_json"),
        (b"\xff\xfe", "bad_utf8"),
        (json.dumps(JSON_START).encode(), "bad_order"),
    ],
)
def test_an_unknown_message_is_reported_and_the_call_goes_on(data: bytes, code: str) -> None:
    codec = in_json()
    refused = codec.decode(data)
    assert isinstance(refused, Invalid) and refused.code == code
    assert codec.decode(b'{"event":"MEDIA_XON"}') == MediaFlow(True)


def test_messages_before_the_start_are_refused() -> None:
    codec = AsteriskCodec()
    early = codec.decode(b"MEDIA_XON")
    assert isinstance(early, Invalid) and early.code == "bad_order"
    assert codec.decode(b"\xff" * 160, is_text=False) is NO_AUDIO, "it may come first"
    with pytest.raises(RuntimeError, match="before its MEDIA_START"):
        codec.encode(MediaMark("1"))


def test_the_callers_audio_is_passed_on_if_it_is_wanted() -> None:
    codec = plain()
    assert codec.decode(b"\x7f" * 160, True, is_text=False) == MediaAudio(b"\x7f" * 160)
    assert codec.decode(b"\x7f" * 160, False, is_text=False) is NO_AUDIO


def test_half_a_sample_is_refused_if_samples_have_two_bytes() -> None:
    for data in (b"\x01", b"\x01" * 641):
        refused = in_json().decode(data, True, is_text=False)
        assert isinstance(refused, Invalid) and refused.code == "bad_field"
        assert plain().decode(data, True, is_text=False) == MediaAudio(data), "a code has one"
    assert in_json().decode(b"\x01" * 640, True, is_text=False) == MediaAudio(b"\x01" * 640)
    assert AsteriskCodec().decode(b"\x01", True, is_text=False) is NO_AUDIO, "nothing is known yet"


@pytest.mark.parametrize(("n_frames", "is_believed"), [(0, True), (1000, True), (1001, False), (999_999_999, False)])
def test_a_queue_is_no_longer_than_asterisks(n_frames: int, is_believed: bool) -> None:
    for told in (f"STATUS queue_length:{n_frames}", json.dumps({"event": "STATUS", "queue_length": n_frames})):
        read = in_json().decode(told.encode())
        assert read == MediaBuffered(n_frames) if is_believed else isinstance(read, Invalid)


def test_the_answer_has_the_form_of_the_start() -> None:
    frame = Frame(b"\xff" * 160)
    assert plain().encode(frame) == in_json().encode(frame) == (b"\xff" * 160, False)
    assert plain().encode(MediaMark("1.2")) == (b"MARK_MEDIA 1.2", True)
    assert plain().encode(MediaClear()) == (b"FLUSH_MEDIA", True)
    assert in_json().encode(MediaMark("1.2")) == (b'{"command":"MARK_MEDIA","correlation_id":"1.2"}', True)
    assert in_json().command("HANGUP") == (b'{"command":"HANGUP"}', True)


@pytest.mark.parametrize("codec", [plain, in_json])
def test_a_command_that_asterisk_would_drop_is_never_sent(codec: Any) -> None:
    name = "x" * 80
    assert len(codec().encode(MediaMark(name))[0]) <= MAX_CONTROL_BYTES
    with pytest.raises(ValueError, match="Asterisk drops"):
        codec().encode(MediaMark("x" * 120))


WORDS = ["MEDIA_START", "STATUS", "DTMF_END", "queue_length:9", ":", "a:b:c", "format:ulaw", "x"]
LINES = st.lists(st.sampled_from(WORDS))


@given(st.binary(max_size=80) | LINES.map(lambda words: " ".join(words).encode()), st.booleans(), st.booleans())
def test_nothing_a_peer_sends_raises(data: bytes, is_text: bool, has_started: bool) -> None:
    message = (plain() if has_started else AsteriskCodec()).decode(data, True, is_text)
    assert message is None or isinstance(message, FromMedia)


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(
    st.sampled_from(["MEDIA_START", "STATUS", "DTMF_END", "MEDIA_MARK_PROCESSED", "ERROR"]) | VALUES,
    st.dictionaries(
        st.sampled_from(["format", "channel_id", "channel", "ptime", "channel_variables", "digit", "queue_length",
                         "media_paused", "correlation_id", "error_text"]),
        VALUES | st.dictionaries(st.text(max_size=5), VALUES, max_size=2),
    ),
)  # fmt: skip
def test_no_field_of_any_kind_raises(event: Any, fields: dict[str, Any]) -> None:
    for codec in (AsteriskCodec(), in_json()):
        message = codec.decode(json.dumps({"event": event, **fields}).encode())
        assert message is None or isinstance(message, FromMedia)
