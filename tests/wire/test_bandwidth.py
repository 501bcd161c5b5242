"""Bandwidth's media streaming (PROTOCOL.md §9.14): what it sends, in its own spelling, and what it is sent.

The shapes are those of Bandwidth's `StartStream` page and of the frames that its own migration tools record.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.doors.bandwidth.codec import BandwidthCodec
from telephony_tts.wire import messages
from telephony_tts.wire.media_stream import NO_AUDIO
from telephony_tts.wire.messages import Frame, Invalid, MediaAudio, MediaClear, MediaStart, MediaStop

ULAW_20_MS = bytes(range(160))
PAYLOAD = base64.b64encode(ULAW_20_MS).decode()
INBOUND = {"name": "inbound", "mediaFormat": {"encoding": "PCMU", "sampleRate": 8000}}
METADATA: dict[str, Any] = {
    "accountId": "9900000",
    "callId": "c-15ac29a2-6e9d4d93-4a1c-4c1a-8f5e-a1b2c3d4e5f6",
    "streamId": "s-2b1a",
    "streamName": "bot",
    "tracks": [INBOUND],
}
START = {"eventType": "start", "metadata": METADATA, "streamParams": {"bot": "sales", "tries": 2}}
MEDIA = {"track": "inbound", "payload": PAYLOAD, "sequenceNumber": "1", "eventType": "media"}
STOP = {"eventType": "stop", "metadata": METADATA}


def started() -> BandwidthCodec:
    codec = BandwidthCodec()
    assert isinstance(codec.decode(json.dumps(START)), MediaStart)
    return codec


def start_with(**changes: Any) -> str:
    told = {name: value for name, value in {**METADATA, **changes}.items() if value is not ...}
    return json.dumps({**START, "metadata": told})


# ---------------------------------------------------------------- media leg → server


def test_start_tells_the_call_the_stream_and_the_parameters() -> None:
    expected = MediaStart(METADATA["callId"], "s-2b1a", "ulaw", 8000, {"bot": "sales", "tries": "2"})
    assert BandwidthCodec().decode(json.dumps(START)) == expected


@pytest.mark.parametrize("params", [..., None, "sales", [1], {"nested": {"a": 1}}])
def test_parameters_that_are_no_flat_object_are_none(params: Any) -> None:
    message = {name: value for name, value in {**START, "streamParams": params}.items() if value is not ...}
    start = BandwidthCodec().decode(json.dumps(message))
    assert isinstance(start, MediaStart) and start.parameters == {}


@pytest.mark.parametrize(
    "tracks",
    [
        ...,
        [],
        [{"name": "inbound"}],
        [{"name": "outbound", "mediaFormat": {"encoding": "OPUS", "sampleRate": 48000}}, INBOUND],
        [7, INBOUND],
    ],
)
def test_the_format_is_that_of_the_callers_track_and_pcmu_if_it_is_not_told(tracks: Any) -> None:
    start = BandwidthCodec().decode(start_with(tracks=tracks))
    assert isinstance(start, MediaStart) and (start.codec, start.rate_hz) == ("ulaw", 8000)


@pytest.mark.parametrize(
    ("data", "code", "part_of_message"),
    [
        ('{"eventType":"start"}', "bad_field", '"metadata" is missing; expected an object'),
        (json.dumps({**START, "metadata": "call"}), "bad_field", '"metadata" must be an object'),
        (start_with(callId=...), "bad_field", '"callId" is missing'),
        (start_with(callId="c 1"), "bad_field", "A-Z"),
        (start_with(streamId=...), "bad_field", '"streamId" is missing'),
        (start_with(tracks=[{"name": "inbound", "mediaFormat": "PCMU"}]), "bad_field", '"mediaFormat"'),
        (
            start_with(tracks=[{"name": "inbound", "mediaFormat": {"encoding": "PCMA", "sampleRate": 8000}}]),
            "unsupported_codec", "pcmu at 8000 Hz",
        ),
        (
            start_with(tracks=[{"name": "inbound", "mediaFormat": {"encoding": "PCMU", "sampleRate": 16000}}]),
            "unsupported_codec", "16000",
        ),
    ],
)  # fmt: skip
def test_an_unusable_start_is_refused_and_the_stream_stays_unstarted(
    data: str, code: str, part_of_message: str
) -> None:
    codec = BandwidthCodec()
    answer = codec.decode(data)
    assert isinstance(answer, Invalid)
    assert answer.code == code and part_of_message in answer.message
    assert codec.stream is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (MEDIA, MediaAudio(ULAW_20_MS)),
        ({"eventType": "media", "payload": PAYLOAD}, MediaAudio(ULAW_20_MS)),
        ({**MEDIA, "track": "outbound"}, None),
        (STOP, MediaStop()),
        ({"eventType": "stop"}, MediaStop()),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_message_after_start_is_read(
    body: dict[str, Any], message: messages.FromMedia | None, as_bytes: bool
) -> None:
    data = json.dumps(body)
    assert started().decode(data.encode() if as_bytes else data) == message


def test_unwanted_audio_is_not_read_and_in_bandwidths_order_not_even_parsed() -> None:
    data = json.dumps({**MEDIA, "payload": "***"}).encode()
    unfinished = data[:-1] + b',"more":{'
    for separated in (data, unfinished, data.replace(b" ", b""), unfinished.replace(b" ", b"")):
        assert started().decode(separated, want_audio=False) is NO_AUDIO
    assert started().decode(json.dumps(STOP).encode(), want_audio=False) == MediaStop()
    assert started().decode(b'{"event":"media","eventType":"stop"}', want_audio=False) == MediaStop()


def test_audio_in_the_form_of_other_carriers_is_unknown() -> None:
    media = {"track": "inbound", "chunk": "1", "timestamp": "20", "payload": PAYLOAD}
    data = json.dumps({"event": "media", "media": media})
    for form in (data, data.encode()):
        for want_audio in (False, True):
            answer = started().decode(form, want_audio)
            assert isinstance(answer, Invalid) and answer.code == "unknown_type"


@pytest.mark.parametrize(
    ("data", "code", "part_of_message"),
    [
        ('{"eventType":"media"}', "bad_field", '"payload"'),
        ('{"eventType":"media","payload":7}', "bad_field", "got 7"),
        ('{"eventType":"media","payload":"AA=A"}', "bad_field", "not base64"),
        (json.dumps(START), "bad_order", "second"),
        ('{"eventType":"dtmf","dtmf":{"digit":"5"}}', "unknown_type", "start, media, stop"),
        ('{"event":"stop"}', "unknown_type", "null"),
        ("[1]", "bad_json", "a list"),
        ("", "bad_json", "expected one JSON object"),
    ],
)
def test_an_unreadable_message_is_refused_with_the_reason(data: str, code: str, part_of_message: str) -> None:
    answer = started().decode(data)
    assert isinstance(answer, Invalid)
    assert answer.code == code and part_of_message in answer.message


@pytest.mark.parametrize("body", [MEDIA, STOP])
@pytest.mark.parametrize("want_audio", [False, True])
def test_messages_before_start_are_refused(body: dict[str, Any], want_audio: bool) -> None:
    answer = BandwidthCodec().decode(json.dumps(body).encode(), want_audio)
    assert answer == Invalid("bad_order", f'"{body["eventType"]}" came before "start"')


def test_binary_is_refused() -> None:
    answer = started().decode(b"\xff" * 160, is_text=False)
    assert isinstance(answer, Invalid) and answer.code == "binary_not_expected"
    assert "Bandwidth" in answer.message


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
NAMES = ["metadata", "callId", "streamId", "tracks", "name", "mediaFormat", "streamParams", "track", "payload"]
NEAR_OBJECTS = st.dictionaries(st.sampled_from(NAMES), JSON_VALUES, max_size=4)
NEAR_MESSAGES = st.builds(
    lambda kind, fields, metadata, tracks: json.dumps(
        {**fields, "eventType": kind, "metadata": {**METADATA, **metadata, "tracks": tracks}}
    ),
    st.sampled_from(["start", "media", "stop", "clear", None]),
    NEAR_OBJECTS,
    NEAR_OBJECTS,
    st.lists(NEAR_OBJECTS | JSON_VALUES, max_size=2) | JSON_VALUES,
)


@settings(deadline=None)
@given(st.binary() | st.text() | NEAR_MESSAGES | JSON_VALUES.map(json.dumps), st.booleans(), st.booleans())
def test_decode_never_raises(data: str | bytes, want_audio: bool, has_started: bool) -> None:
    message = (started() if has_started else BandwidthCodec()).decode(data, want_audio)
    assert message is None or isinstance(message, messages.FromMedia)


# ---------------------------------------------------------------- server → media leg


def test_speech_and_clear_in_bandwidths_form() -> None:
    codec = started()
    sent = [codec.encode(message) for message in (Frame(ULAW_20_MS), MediaClear())]
    assert all(is_text for _, is_text in sent)
    assert [json.loads(payload) for payload, _ in sent] == [
        {"eventType": "playAudio", "media": {"contentType": "audio/pcmu", "payload": PAYLOAD}},
        {"eventType": "clear"},
    ]


def test_encoding_before_start_raises() -> None:
    with pytest.raises(RuntimeError, match="Bandwidth"):
        BandwidthCodec().encode(Frame(b""))
