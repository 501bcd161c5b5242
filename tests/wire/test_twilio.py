"""Twilio Media Streams (PROTOCOL.md §9): what Twilio sends, in its own spelling, and what it is sent."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from telephony_tts.doors.twilio.codec import TwilioCodec, signature, verify
from telephony_tts.wire import messages
from telephony_tts.wire.media_stream import _PLAIN_AUDIO, NO_AUDIO
from telephony_tts.wire.messages import (
    Frame,
    Invalid,
    MediaAudio,
    MediaClear,
    MediaDtmf,
    MediaMark,
    MediaStart,
    MediaStop,
)

ULAW_20_MS = bytes(range(160))
PAYLOAD = base64.b64encode(ULAW_20_MS).decode()
START: dict[str, Any] = {
    "event": "start",
    "sequenceNumber": "1",
    "streamSid": "MZ0001",
    "start": {
        "streamSid": "MZ0001",
        "accountSid": "AC1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "customParameters": {"bot": "sales", "tries": 2, "vip": True},
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    },
}


def started() -> TwilioCodec:
    codec = TwilioCodec()
    assert isinstance(codec.decode(json.dumps(START)), MediaStart)
    return codec


def start_with(**changes: Any) -> str:
    inner = {k: v for k, v in {**START["start"], **changes}.items() if v is not ...}
    return json.dumps({**START, "start": inner})


# ---------------------------------------------------------------- media leg → server


def test_connected_needs_no_answer() -> None:
    assert TwilioCodec().decode('{"event":"connected","protocol":"Call","version":"1.0.0"}') is None


def test_start_tells_the_call_the_stream_and_the_parameters() -> None:
    parameters = {"bot": "sales", "tries": "2", "vip": "true"}
    assert MediaStart("CA1", "MZ0001", "ulaw", 8000, parameters) == TwilioCodec().decode(json.dumps(START))


@pytest.mark.parametrize(
    "data",
    [
        start_with(mediaFormat=..., customParameters=...),
        start_with(mediaFormat={"encoding": "audio/x-mulaw", "sampleRate": "8000"}, customParameters=None),
        start_with(streamSid=..., customParameters={"nested": {"a": 1}}),
        json.dumps(
            {**START, "streamSid": None, "sequenceNumber": 1, "start": {"callSid": "CA1", "streamSid": "MZ0001"}}
        ),
    ],
)
def test_start_is_read_without_unused_fields(data: str) -> None:
    assert MediaStart("CA1", "MZ0001", "ulaw", 8000, {}) == TwilioCodec().decode(data)


@pytest.mark.parametrize(
    ("data", "code", "part_of_message"),
    [
        ('{"event":"start"}', "bad_field", '"start" is missing'),
        (start_with(callSid=...), "bad_field", '"callSid" is missing'),
        (start_with(callSid="CA 1"), "bad_field", "A-Z"),
        (start_with(callSid=5), "bad_field", '"callSid"'),
        ('{"event":"start","start":{"callSid":"CA1"}}', "bad_field", '"streamSid" is missing'),
        (start_with(mediaFormat={"encoding": "audio/x-l16"}), "unsupported_codec", "audio/x-mulaw at 8000 Hz"),
        (start_with(mediaFormat={"encoding": "audio/x-mulaw", "sampleRate": 16000}), "unsupported_codec", "16000"),
        (start_with(mediaFormat="ulaw"), "bad_field", "an object"),
    ],
)
def test_an_unsupported_start_is_refused_and_the_stream_stays_unstarted(
    data: str, code: str, part_of_message: str
) -> None:
    codec = TwilioCodec()
    answer = codec.decode(data)
    assert isinstance(answer, Invalid)
    assert code == answer.code
    assert part_of_message in answer.message
    assert codec.stream is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"event": "media", "media": {"track": "inbound", "timestamp": "20", "payload": PAYLOAD}},
            MediaAudio(ULAW_20_MS, 20),
        ),
        ({"event": "media", "media": {"timestamp": 20, "payload": PAYLOAD}}, MediaAudio(ULAW_20_MS, 20)),
        ({"event": "media", "media": {"track": "inbound", "payload": PAYLOAD}}, MediaAudio(ULAW_20_MS, None)),
        ({"event": "media", "media": {"timestamp": "soon", "payload": PAYLOAD}}, MediaAudio(ULAW_20_MS, None)),
        ({"event": "media", "media": {"timestamp": True, "payload": ""}}, MediaAudio(b"", None)),
        ({"event": "media", "media": {"track": "outbound", "payload": PAYLOAD}}, None),
        ({"event": "dtmf", "streamSid": "MZ0001", "dtmf": {"track": "inbound_track", "digit": "#"}}, MediaDtmf("#")),
        ({"event": "mark", "sequenceNumber": 12, "mark": {"name": "t7-s2"}}, MediaMark("t7-s2")),
        ({"event": "stop", "stop": {"accountSid": "AC1", "callSid": "CA1"}}, MediaStop()),
        ({"event": "stop"}, MediaStop()),
        ({"event": "connected"}, None),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_message_after_start_is_read(
    body: dict[str, Any], message: messages.FromMedia | None, as_bytes: bool
) -> None:
    data = json.dumps(body)
    assert message == started().decode(data.encode() if as_bytes else data)


@pytest.mark.parametrize(
    ("data", "code", "part_of_message"),
    [
        ('{"event":"media"}', "bad_field", '"media" is missing'),
        ('{"event":"media","media":{}}', "bad_field", '"payload"'),
        ('{"event":"media","media":{"payload":7}}', "bad_field", "got 7"),
        ('{"event":"media","media":{"payload":"a"}}', "bad_field", "not base64"),
        ('{"event":"media","media":{"payload":"AA=A"}}', "bad_field", "not base64"),
        ('{"event":"media","media":{"payload":"AAAA!"}}', "bad_field", "not base64"),
        ('{"event":"media","media":{"payload":"AA==AA=="}}', "bad_field", "not base64"),
        ('{"event":"media","media":{"payload":"é"}}', "bad_field", "not base64"),
        ('{"event":"dtmf","dtmf":{}}', "bad_field", "0-9"),
        ('{"event":"dtmf","dtmf":{"digit":"12"}}', "bad_field", 'got "12"'),
        ('{"event":"dtmf","dtmf":{"digit":""}}', "bad_field", "0-9"),
        ('{"event":"mark","mark":{}}', "bad_field", '"name" is missing'),
        ('{"event":"mark","mark":"m1"}', "bad_field", "an object"),
        (json.dumps(START), "bad_order", "second"),
        ('{"event":"shout"}', "unknown_type", "connected, start, media, dtmf, mark, stop"),
        ("{}", "unknown_type", "null"),
        ("[1]", "bad_json", "a list"),
        ("Hello.", "bad_json", "expected one JSON object"),
        ("", "bad_json", "expected one JSON object"),
    ],
)
def test_an_unreadable_message_is_refused_with_the_reason(data: str, code: str, part_of_message: str) -> None:
    answer = started().decode(data)
    assert isinstance(answer, Invalid)
    assert code == answer.code
    assert part_of_message in answer.message


@pytest.mark.parametrize("want_audio", [False, True])
@pytest.mark.parametrize("kind", ["media", "dtmf", "mark", "stop"])
def test_messages_before_start_are_refused(kind: str, want_audio: bool) -> None:
    data = json.dumps({"event": kind, kind: {"payload": PAYLOAD, "digit": "1", "name": "m"}}).encode()
    answer = TwilioCodec().decode(data, want_audio)
    assert answer == Invalid("bad_order", f'"{kind}" came before "start"')


def test_binary_is_refused() -> None:
    answer = started().decode(b"\xff" * 160, is_text=False)
    assert isinstance(answer, Invalid)
    assert answer.code == "binary_not_expected"


# --------------------------------------------------- unwanted media, recognised by its first bytes

MEDIA = {"track": "inbound", "chunk": "1", "timestamp": "20", "payload": PAYLOAD}


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"event": "media", "media": MEDIA}),
        json.dumps({"event": "media", "media": MEDIA}, separators=(",", ":")),
        json.dumps({"streamSid": "MZ0001", "sequenceNumber": 3, "event": "media", "media": MEDIA}),
        json.dumps({"media": MEDIA, "event": "media"}, indent=1),
        json.dumps({"stream\\Sid": 'M"Z', "event": "media", "media": MEDIA}),
        json.dumps({"media": {"event": "stop"}, "event": "media"}),
    ],
)
def test_unwanted_media_is_one_shared_constant_in_any_key_order(data: str) -> None:
    assert started().decode(data.encode(), want_audio=False) is NO_AUDIO
    assert started().decode(data, want_audio=False) is NO_AUDIO


@pytest.mark.parametrize(
    "head",
    [
        b'{"event":"media",',
        b' {\n"event" : "media" ,',
        b'{"sequenceNumber":"3","streamSid":"MZ0001","event":"media",',
        b'{"sequenceNumber":3, "streamSid": "MZ0001", "event": "media",',
    ],
)
def test_the_rest_of_an_unwanted_media_message_is_not_even_parsed(head: bytes) -> None:
    unfinished = head + b'"media":{"payload":'
    assert started().decode(unfinished, want_audio=False) is NO_AUDIO
    assert isinstance(started().decode(unfinished, want_audio=True), Invalid)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"event":"stop","note":"\\"event\\":\\"media\\","}', MediaStop()),
        ('{"note":"x\\",\\"event\\":\\"media\\",","event":"stop"}', MediaStop()),
        ('{"note":{"event":"media","a":1},"event":"stop"}', MediaStop()),
        ('{"event":"mark","mark":{"name":"m"},"x":{"event":"media"}}', MediaMark("m")),
        ('{"event":"stop","event":"media"}', NO_AUDIO),
    ],
)
def test_only_a_top_level_event_counts(data: str, message: messages.FromMedia) -> None:
    assert message == started().decode(data.encode(), want_audio=False)


FLAT = st.text(max_size=12) | st.integers(-5, 10**6) | st.booleans() | st.none()
BODIES = st.dictionaries(st.sampled_from(["streamSid", "sequenceNumber", "even", "events", 'e"', "é"]), FLAT).flatmap(
    lambda rest: st.permutations([*rest.items(), ("event", "media"), ("media", {"payload": PAYLOAD, "event": "stop"})])
)


@settings(deadline=None)
@given(BODIES, st.sampled_from(["media", "stop", "mark", "medial", ""]), st.booleans(), st.booleans())
@example([("event", "media"), ("media", {})], "medial", False, False)
@example([("event", "media"), ("media", {})], "media", True, True)
def test_the_fast_path_decodes_like_the_full_parse(
    body: list[tuple[str, Any]], kind: str, spaced: bool, escaped: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    data = json.dumps({**dict(body), "event": kind}, separators=separators, ensure_ascii=escaped)
    long_way = started().decode(data, want_audio=False)  # a str always gets the full parse
    assert long_way == started().decode(data.encode("utf-8", "replace"), want_audio=False)
    assert (kind == "media") == (long_way is NO_AUDIO)


MEDIA_FIELDS = st.fixed_dictionaries(
    {
        "track": st.sampled_from(["inbound", "inbound", "inbound_track", "outbound"]),
        "chunk": st.sampled_from(["1", "300", 5, "x"]),
        "timestamp": st.sampled_from(["0", "1240", "007", "9999999", "86400001", "-5", 1240, "1.5"]),
        "payload": st.sampled_from([PAYLOAD, PAYLOAD, "", "AA==", "AA=", "A", "AAA\u00e9", "AA A", PAYLOAD + "\n"]),
    }
)
AROUND = st.dictionaries(
    st.sampled_from(["streamSid", "sequenceNumber", "even", "Event", "media", "event", 'a"b', "é"]),
    st.sampled_from(["MZ1", 'q"', "b\\", "", 5, 0, -1, 1.5, True, None, "media", "stop", "é", "x" * 300]),
    max_size=2,
)  # fmt: skip


@settings(deadline=None)
@given(MEDIA_FIELDS, AROUND, AROUND, st.booleans(), st.sampled_from(["", " ", "\t", ",", "}", '"']))
@example({"track": "inbound", "chunk": "1", "timestamp": "5", "payload": PAYLOAD}, {}, {"event": "stop"}, False, "")
@example({"track": "inbound", "chunk": "1", "timestamp": "5", "payload": PAYLOAD}, {}, {"media": "MZ1"}, True, "")
def test_audio_in_its_usual_form_is_read_like_the_full_parse(
    media: dict[str, Any], before: dict[str, Any], after: dict[str, Any], spaced: bool, end: str
) -> None:
    comma, colon = (", ", ": ") if spaced else (",", ":")
    pairs = [("event", "media"), *before.items(), ("media", media), *after.items()]
    body = comma.join(f"{json.dumps(k)}{colon}{json.dumps(v, separators=(comma, colon))}" for k, v in pairs)
    data = "{" + body + "}" + end
    assert started().decode(data.encode()) == started().decode(data), "a str always gets the full parse"


def test_twilios_own_form_of_audio_is_the_usual_one() -> None:
    """The message of Twilio's documents, in its order."""
    media = {"track": "inbound", "chunk": "2", "timestamp": "5", "payload": PAYLOAD}
    message = {"event": "media", "sequenceNumber": "3", "media": media, "streamSid": "MZ0001"}
    for separators in ((",", ":"), (", ", ": ")):
        assert _PLAIN_AUDIO.fullmatch(json.dumps(message, separators=separators).encode())
    assert started().decode(json.dumps(message).encode()) == MediaAudio(ULAW_20_MS, 5)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KINDS = ["connected", "start", "media", "dtmf", "mark", "stop"]
INNER_FIELDS = [
    "payload",
    "timestamp",
    "track",
    "digit",
    "name",
    "callSid",
    "streamSid",
    "customParameters",
    "mediaFormat",
]
NEAR_MESSAGES = st.sampled_from(KINDS).flatmap(
    lambda kind: (JSON_VALUES | st.dictionaries(st.sampled_from(INNER_FIELDS), JSON_VALUES)).map(
        lambda inner: json.dumps({"event": kind, kind: inner, "streamSid": "MZ1"})
    )
)


@settings(deadline=None)
@given(
    st.binary() | st.text(st.characters()) | NEAR_MESSAGES | JSON_VALUES.map(json.dumps), st.booleans(), st.booleans()
)
def test_decode_never_raises(data: str | bytes, want_audio: bool, has_started: bool) -> None:
    message = (started() if has_started else TwilioCodec()).decode(data, want_audio)
    assert message is None or isinstance(message, messages.FromMedia)
    repr(message).encode()
    if isinstance(message, MediaStart):
        json.dumps(message.parameters, ensure_ascii=False).encode()


# ---------------------------------------------------------------- server → media leg


def test_speech_marks_and_clear_in_twilios_form() -> None:
    codec = started()
    sent = [codec.encode(m) for m in (Frame(ULAW_20_MS), MediaMark('7."3é'), MediaClear())]
    assert all(is_text for _, is_text in sent)
    assert [json.loads(payload) for payload, _ in sent] == [
        {"event": "media", "streamSid": "MZ0001", "media": {"payload": PAYLOAD}},
        {"event": "mark", "streamSid": "MZ0001", "mark": {"name": '7."3é'}},
        {"event": "clear", "streamSid": "MZ0001"},
    ]


def test_encoding_before_start_raises() -> None:
    with pytest.raises(RuntimeError, match="start"):
        TwilioCodec().encode(Frame(b""))


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_a_mark_comes_back_as_it_was_sent(name: str) -> None:
    codec = started()
    assert MediaMark(name) == codec.decode(codec.encode(MediaMark(name))[0])


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_audio_comes_back_as_it_was_sent(payload: bytes) -> None:
    codec = started()
    assert MediaAudio(payload) == codec.decode(codec.encode(Frame(payload))[0])


# --------------------------------------------------------------------- signature

# Twilio's own published example: https://www.twilio.com/docs/usage/security and its Python library's unit tests.
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FORM = {
    "CallSid": "CA1234567890ABCDE",
    "Digits": "1234",
    "From": "+14158675309",
    "To": "+18005551212",
    "Caller": "+14158675309",
}


def test_the_published_example_has_the_published_signature() -> None:
    assert signature("12345", URL, FORM) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="


def test_a_websocket_handshake_is_signed_without_a_form() -> None:
    # printf '%s' wss://tts.example.com/media/twilio | openssl dgst -sha1 -hmac 12345 -binary | base64
    assert signature("12345", "wss://tts.example.com/media/twilio") == "TYCctvisiN8WVK5PpxSTJS8P+9w="


@pytest.mark.parametrize(
    ("signed", "seen"),
    [
        ("wss://tts.example.com/media/twilio", "wss://tts.example.com/media/twilio"),
        ("wss://tts.example.com/media/twilio", "wss://tts.example.com:443/media/twilio"),
        ("wss://tts.example.com:443/media/twilio", "wss://tts.example.com/media/twilio"),
        ("wss://tts.example.com/media/twilio", "wss://tts.example.com:8443/media/twilio"),
        ("wss://[::1]/m", "wss://[::1]:443/m"),
        ("wss://wss", "wss://wss:443"),
    ],
)
def test_a_signature_holds_with_and_without_the_port(signed: str, seen: str) -> None:
    assert verify("12345", seen, signature("12345", signed))


@pytest.mark.parametrize(
    ("token", "url", "header"),
    [
        ("12345", "wss://a.example/m", signature("54321", "wss://a.example/m")),
        ("12345", "wss://a.example/m", signature("12345", "wss://a.example/n")),
        ("12345", "wss://a.example/m", signature("12345", "wss://b.example/m")),
        ("12345", "wss://a.example/m", signature("12345", "ws://a.example/m")),
        ("12345", "wss://a.example/m", signature("12345", "wss://a.example/m")[:-1]),
        ("12345", "wss://a.example/m", ""),
        ("12345", "wss://a.example/m", None),
        ("12345", "wss://a.example/m", "\ud800é"),
        ("", "wss://a.example/m", signature("", "wss://a.example/m")),
    ],
)
def test_a_signature_of_anything_else_is_refused(token: str, url: str, header: str | None) -> None:
    assert not verify(token, url, header)


@settings(deadline=None)
@given(st.text(), st.text())
def test_verify_never_raises_on_what_a_peer_sends(url: str, header: str) -> None:
    assert not verify("12345", url, header)
