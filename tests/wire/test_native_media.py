"""The native media leg: what is read, what is refused with which message, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.wire.messages import (
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaClear,
    MediaDtmf,
    MediaHold,
    MediaMark,
    MediaStart,
    MediaStop,
)
from telephony_tts.wire.native_media import NO_AUDIO, NativeMediaCodec


def told(leg: NativeMediaCodec, /, **fields: Any) -> Any:
    return leg.decode(json.dumps(fields).encode())


def started(**fields: Any) -> NativeMediaCodec:
    codec = NativeMediaCodec()
    assert isinstance(told(codec, type="start", call="c1", **fields), MediaStart)
    return codec


def test_a_start_needs_only_the_calls_name() -> None:
    assert told(NativeMediaCodec(), type="start", call="c1") == MediaStart("c1", "c1", "ulaw", 8000, {})


def test_a_start_sets_codec_rate_and_timing() -> None:
    start = told(
        NativeMediaCodec(),
        type="start", call="a.b:c-1", stream="s", codec="pcm", rate_hz=48000, ptime_ms=30, lead_ms=0,
        parameters={"from": "+49", "n": 3, "vip": True},
    )  # fmt: skip
    assert start == MediaStart("a.b:c-1", "s", "pcm", 48000, {"from": "+49", "n": "3", "vip": "true"}, 30, 0)


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, "bad_field", '"call" is missing'),
        ({"call": "a b"}, "bad_field", '"call" must be 1 to 128 of the characters'),
        ({"call": "c", "codec": "opus"}, "bad_field", "one of ulaw, alaw, pcm"),
        ({"call": "c", "codec": "alaw", "rate_hz": 16000}, "unsupported_codec", "8000 with codec alaw"),
        ({"call": "c", "codec": "pcm", "rate_hz": 11025}, "bad_field", "one of 8000, 16000, 24000, 48000, got 11025"),
        ({"call": "c", "ptime_ms": 25}, "bad_field", '"ptime_ms" must be one of'),
        ({"call": "c", "lead_ms": -1}, "bad_field", '"lead_ms" must be a whole number from 0 to 60000'),
        ({"call": "c", "parameters": ["x"]}, "bad_field", "must be an object, got a list"),
        ({"call": "c", "parameters": {"x": {}}}, "bad_field", '"x" is an object'),
        ({"call": "c", "parameters": {"x": "y" * 2000}}, "bad_field", "longer than 1024"),
        ({"call": "c", "parameters": {str(i): "" for i in range(65)}}, "bad_field", "has 65 fields; the limit is 64"),
    ],
)  # fmt: skip
def test_a_refused_start_says_why_and_another_may_follow(fields: Any, code: str, word: str) -> None:
    codec = NativeMediaCodec()
    refused = told(codec, type="start", **fields)
    assert isinstance(refused, Invalid) and refused.code == code and word in refused.message
    assert isinstance(told(codec, type="start", call="c1"), MediaStart)


def test_messages_before_the_start_and_a_second_start_are_refused() -> None:
    codec = NativeMediaCodec()
    for early in (codec.decode(b"\xff", is_text=False), told(codec, type="mark", name="1"), told(codec, type="stop")):
        assert isinstance(early, Invalid) and early.code == "bad_order"
    codec = started()
    second = told(codec, type="start", call="c2")
    assert isinstance(second, Invalid) and second.code == "bad_order"


def test_audio_is_whole_samples_of_the_codec() -> None:
    assert started().decode(b"\xff\x7f\x00", is_text=False) == MediaAudio(b"\xff\x7f\x00")
    codec = started(codec="pcm", rate_hz=16000)
    assert codec.decode(b"\x01\x00", is_text=False) == MediaAudio(b"\x01\x00")
    assert codec.decode(b"\x01\x00", want_audio=False, is_text=False) is NO_AUDIO
    odd = codec.decode(b"\x01", is_text=False)
    assert isinstance(odd, Invalid) and "whole number of samples" in odd.message


@pytest.mark.parametrize("want_audio", [False, True])
def test_marks_digits_and_the_end(want_audio: bool) -> None:
    codec = started()
    assert codec.decode(b'{"type":"mark","name":"3.1"}', want_audio) == MediaMark("3.1")
    assert codec.decode(b'{"type":"dtmf","digit":"#"}', want_audio) == MediaDtmf("#")
    assert codec.decode(b'{"type":"stop"}', want_audio) == MediaStop("hangup")
    assert codec.decode(b'{"type":"stop","reason":"busy"}', want_audio) == MediaStop("busy")
    assert codec.decode(b'{"type":"hold","state":"started"}', want_audio) == MediaHold(True)
    assert codec.decode(b'{"type":"hold","state":"ended"}', want_audio) == MediaHold(False)
    for bad in (b'{"type":"hold"}', b'{"type":"hold","state":true}', b'{"type":"hold","state":"off"}'):
        assert isinstance(codec.decode(bad, want_audio), Invalid)
    assert isinstance(told(NativeMediaCodec(), type="hold", state="started"), Invalid), "it came before start"
    for bad in (b'{"type":"dtmf","digit":"55"}', b'{"type":"dtmf","digit":["5"]}', b'{"type":"mark"}', b'{"type":7}'):
        assert isinstance(codec.decode(bad, want_audio), Invalid)


def test_speech_is_binary_and_all_else_text() -> None:
    codec = started()
    assert codec.encode(Frame(b"\xff" * 160)) == (b"\xff" * 160, False)
    assert codec.encode(MediaMark('a"b')) == (b'{"type":"mark","name":"a\\"b"}', True)
    assert codec.encode(MediaClear()) == (b'{"type":"clear"}', True)
    payload, is_text = codec.complaint(Invalid("bad_field", "no"))
    assert is_text and json.loads(payload) == {"type": "error", "code": "bad_field", "message": "no"}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.booleans(), st.booleans())
def test_nothing_a_peer_sends_raises(data: bytes, is_text: bool, has_started: bool) -> None:
    codec = started() if has_started else NativeMediaCodec()
    message = codec.decode(data, True, is_text)
    assert isinstance(message, FromMedia)
    if isinstance(message, Invalid):
        assert json.loads(codec.complaint(message)[0])["code"] == message.code


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


FIELDS = ["call", "stream", "codec", "rate_hz", "ptime_ms", "lead_ms", "parameters", "name", "digit", "state", "reason"]


@pytest.mark.slow
@given(st.sampled_from(["start", "mark", "dtmf", "hold", "stop"]), st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_field_of_any_kind_raises(kind: str, fields: dict[str, Any]) -> None:
    for leg in (NativeMediaCodec(), started()):
        assert isinstance(told(leg, type=kind, **fields), FromMedia)
