"""The native dialect (PROTOCOL.md §4, §5): what a bot may type and what it reads back."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from telephony_tts.wire import messages
from telephony_tts.wire.messages import (
    CallStarted,
    Clear,
    Cleared,
    Close,
    Configure,
    Done,
    End,
    ErrorEvent,
    Flush,
    Frame,
    InboundAudio,
    Invalid,
    Mark,
    MarkReached,
    Ping,
    Play,
    Pong,
    Say,
    SendDtmf,
    SentenceSpoken,
    Status,
    StatusReport,
    Text,
    WarningEvent,
)
from telephony_tts.wire.native import CLIENT_TYPES, EVENT_TYPES, NativeCodec

ULAW_20_MS = bytes(range(160))


def decode(data: str | bytes, **settings: Any) -> messages.FromBot:
    return NativeCodec(**settings).decode(data, True)


def event(message: messages.ToBot, **settings: Any) -> dict[str, Any]:
    wire = NativeCodec(**settings).encode(message)
    assert wire is not None
    payload, is_text = wire
    assert is_text
    value = json.loads(payload)
    assert isinstance(value, dict)
    return value


# ------------------------------------------------------------------- bot leg → server

READABLE = [
    ('{"type":"say","text":"Hello."}', Say("Hello.")),
    ('{"type":"say","text":"Hello.","turn":"t7"}', Say("Hello.", "t7")),
    ('{"type":"say","text":""}', Say("")),
    ('{"type":"text","text":"Your bal"}', Text("Your bal")),
    ('{"type":"text","token":"ance","turn":"t7","last":true}', Text("ance", "t7", True)),
    ('{"type":"text","text":"a","token":"b"}', Text("a")),
    ('{"type":"text","text":null,"token":"b"}', Text("b")),
    ('{"type":"text","text":"","last":false}', Text("")),
    ('{"type":"end"}', End()),
    ('{"type":"end","turn":"t7"}', End("t7")),
    ('{"type":"flush"}', Flush()),
    ('{"type":"flush","turn":"第一轮"}', Flush("第一轮")),
    ('{"type":"clear"}', Clear()),
    ('{"type":"clear","turn":"t7","heard_ms":1200}', Clear("t7", 1200)),
    ('{"type":"clear","heard_ms":0}', Clear(None, 0)),
    ('{"type":"mark","name":"m1"}', Mark("m1")),
    ('{"type":"mark","name":"line\\nbreak","turn":"t7"}', Mark("line\nbreak", "t7")),
    ('{"type":"config"}', Configure()),
    (
        '{"type":"config","voice":"v2","lang":"zh-CN","speed":2,"seed":4294967295,"instruct":"","inbound":"binary"}',
        Configure("v2", "zh-CN", 2.0, 4294967295, "", "binary"),
    ),
    ('{"type":"config","speed":0.5}', Configure(speed=0.5)),
    ('{"type":"config","text_type":"auto"}', Configure(text_type="auto")),
    ('{"type":"say","text":"<p>a</p>","text_type":"ssml"}', Say("<p>a</p>", text_type="ssml")),
    ('{"type":"text","text":"a","last":true,"text_type":"text"}', Text("a", None, True, text_type="text")),
    ('{"type":"status"}', Status()),
    ('{"type":"dtmf","digits":"0159*#ADw"}', SendDtmf("0159*#ADw")),
    ('{"type":"play","name":"hold"}', Play("hold")),
    ('{"type":"play","name":"hold","loop":true,"gain_db":-6,"turn":"t"}', Play("hold", "t", False, True, -6.0)),
    ('{"type":"play","name":"typing","loop":"until_speech","under":true}', Play("typing", None, True, "until_speech")),
    ('{"type":"play","name":"hold","loop":false,"stop":false}', Play("hold", loop=False)),
    ('{"type":"play","stop":true}', Play(stop=True)),
    ('{"type":"play","stop":true,"turn":"t"}', Play(stop=True, turn="t")),
    ('{"type":"ping"}', Ping()),
    ('{"type":"ping","id":1}', Ping(1)),
    ('{"type":"ping","id":"a"}', Ping("a")),
    ('{"type":"close"}', Close()),
    ('{"type":"close","now":true}', Close(True)),
    ('{"type":"end","turn":null,"colour":"blue"}', End()),
    ('\ufeff \r\n\t{"type":"status"} ', Status()),
]


@pytest.mark.parametrize(("data", "message"), READABLE)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_message_is_read(data: str, message: messages.FromBot, as_bytes: bool) -> None:
    assert message == decode(data.encode() if as_bytes else data)


@pytest.mark.parametrize(
    "line",
    ["Hello there.", "", "  ", "[laughs] no.", '"quoted"', "12", "null", "你好。", " trailing space \n", "a {brace}"],
)
def test_a_line_without_a_brace_is_a_whole_turn_word_for_word(line: str) -> None:
    assert Say(line) == decode(line)
    assert Say(line) == decode(line.encode())


def test_a_byte_order_mark_is_not_spoken() -> None:
    assert Say("Hello.") == decode(b"\xef\xbb\xbfHello.")


UNREADABLE = [
    ("{", "bad_json", "character 1"),
    ('{"type":"say","text":"a"', "bad_json", "expected one JSON object"),
    ('{"type":"say"} x', "bad_json", "character"),
    ('{"type":"config","speed":NaN}', "bad_json", "number"),
    ('{"type":"clear","heard_ms":' + "9" * 5000 + "}", "bad_json", "number"),
    ('{"a":' + "[" * 100_000, "bad_json", "nested"),
    ("{}", "unknown_type", "say, text, end, flush, clear, mark, config, status, ping, close"),
    ('{"type":"shout"}', "unknown_type", '"shout"'),
    ('{"type":7}', "unknown_type", "7"),
    ('{"type":["say"]}', "unknown_type", "a list"),
    ('{"event":"media"}', "unknown_type", "null"),
    *(
        (f'{{"type":"dtmf","digits":{digits}}}', "bad_field", "1 to 64 of 0-9 * # A-D and w")
        for digits in ('""', '"12a"', '"1 2"', "12", "null", '"' + "1" * 65 + '"', '"１"', '"1\\n"')
    ),
    ('{"type":"dtmf"}', "bad_field", '"digits"'),
    ('{"type":"play"}', "bad_field", '"name" is missing'),
    ('{"type":"play","name":""}', "bad_field", '"name" must be a string of 1 to 128 printable characters'),
    ('{"type":"play","name":7}', "bad_field", '"name"'),
    ('{"type":"play","name":"a","stop":true}', "bad_field", '"name" and "stop" do not go together'),
    ('{"type":"play","name":"a","loop":"always"}', "bad_field", 'must be true, false or "until_speech", got "always"'),
    ('{"type":"play","name":"a","loop":1}', "bad_field", '"loop" must be'),
    ('{"type":"play","name":"a","gain_db":13}', "bad_field", '"gain_db" must be a number from -60.0 to 12.0, got 13'),
    ('{"type":"play","name":"a","under":"yes"}', "bad_field", '"under" must be true or false'),
    ('{"type":"play","url":"ftp://a/b.wav"}', "bad_field", '"url" must begin with http:// or https://'),
    ('{"type":"play","url":"http://a/' + "x" * 2048 + '"}', "bad_field", "1 to 2048"),
    ('{"type":"play","url":"http://a/b.wav","name":"hold"}', "bad_field", '"name" and "url" do not go together'),
    ('{"type":"say"}', "bad_field", '"text" is missing'),
    ('{"type":"say","text":5}', "bad_field", "a string, got 5"),
    ('{"type":"say","text":{"a":1}}', "bad_field", "got an object"),
    ('{"type":"text","last":true}', "bad_field", '"text" is missing'),
    ('{"type":"text","token":7}', "bad_field", '"token" must be a string'),
    ('{"type":"text","text":"a","last":1}', "bad_field", "true or false, got 1"),
    ('{"type":"say","text":"a","turn":""}', "bad_field", "1 to 128"),
    ('{"type":"say","text":"a","text_type":"auto"}', "bad_field", "text, ssml"),
    ('{"type":"text","text":"a","text_type":true}', "bad_field", "text, ssml"),
    ('{"type":"config","text_type":"xml"}', "bad_field", "auto, text, ssml"),
    ('{"type":"say","text":"a","turn":7}', "bad_field", '"turn"'),
    ('{"type":"end","turn":"' + "x" * 129 + '"}', "bad_field", "1 to 128"),
    ('{"type":"end","turn":"a\\nb"}', "bad_field", "printable"),
    ('{"type":"end","turn":"\\ud800"}', "bad_field", "printable"),
    ('{"type":"clear","heard_ms":-1}', "bad_field", "whole number"),
    ('{"type":"clear","heard_ms":1.5}', "bad_field", "got 1.5"),
    ('{"type":"clear","heard_ms":true}', "bad_field", "got true"),
    ('{"type":"clear","heard_ms":"100"}', "bad_field", 'got "100"'),
    ('{"type":"clear","heard_ms":86400001}', "bad_field", "86400000"),
    ('{"type":"mark"}', "bad_field", '"name" is missing'),
    ('{"type":"mark","name":""}', "bad_field", "1 to 256"),
    ('{"type":"mark","name":"' + "x" * 257 + '"}', "bad_field", "1 to 256"),
    ('{"type":"mark","name":"\\udfff"}', "bad_field", "1 to 256"),
    ('{"type":"config","speed":0.49}', "bad_field", "0.5 to 2.0"),
    ('{"type":"config","speed":2.01}', "bad_field", "0.5 to 2.0"),
    ('{"type":"config","speed":1e999}', "bad_field", "0.5 to 2.0"),
    ('{"type":"config","speed":true}', "bad_field", "got true"),
    ('{"type":"config","speed":"fast"}', "bad_field", 'got "fast"'),
    ('{"type":"config","seed":1.0}', "bad_field", "whole number"),
    ('{"type":"config","seed":4294967296}', "bad_field", "4294967295"),
    ('{"type":"config","voice":""}', "bad_field", '"voice"'),
    ('{"type":"config","lang":"' + "x" * 36 + '"}', "bad_field", "1 to 35"),
    ('{"type":"config","instruct":"' + "x" * 1001 + '"}', "bad_field", "limit is 1000"),
    ('{"type":"config","inbound":"wav"}', "bad_field", "base64, binary, none"),
    ('{"type":"ping","id":1.5}', "bad_field", '"id"'),
    ('{"type":"ping","id":true}', "bad_field", '"id"'),
    ('{"type":"ping","id":9007199254740992}', "bad_field", '"id"'),
    ('{"type":"close","now":"yes"}', "bad_field", 'true or false, got "yes"'),
]


@pytest.mark.parametrize(("data", "code", "part_of_message"), UNREADABLE)
def test_an_unreadable_message_is_refused_with_the_reason(data: str, code: str, part_of_message: str) -> None:
    answer = decode(data)
    assert isinstance(answer, Invalid)
    assert code == answer.code
    assert part_of_message in answer.message


def test_every_known_type_is_read_and_no_other_is() -> None:
    read = {t for t in CLIENT_TYPES if not _is_unknown({"type": t, "text": "a", "name": "m"})}
    assert set(CLIENT_TYPES) == read
    assert all(_is_unknown({"type": t}) for t in ("Say", "say ", "speak", ""))


def _is_unknown(message: dict[str, str]) -> bool:
    answer = decode(json.dumps(message))
    return isinstance(answer, Invalid) and answer.code == "unknown_type"


def test_every_binary_message_is_refused() -> None:
    answer = NativeCodec().decode(b'{"type":"status"}', is_text=False)
    assert isinstance(answer, Invalid)
    assert answer.code == "binary_not_expected"


def test_bytes_that_are_not_utf8_are_refused_with_their_place() -> None:
    answer = decode(b"Hello \xff there")
    assert answer == Invalid("bad_utf8", "a text message must be UTF-8; byte 6 is not")


@pytest.mark.parametrize(
    "data", ["x" * 11, '{"type":"say","text":"xxxxxxxxxxx"}', '{"type":"text","token":"xxxxxxxxxxx"}']
)
def test_text_over_the_limit_is_refused_and_at_the_limit_is_not(data: str) -> None:
    answer = decode(data, max_text_chars=10)
    assert isinstance(answer, Invalid)
    assert answer.code == "text_too_long"
    assert "11 characters; the limit is 10" in answer.message
    assert not isinstance(decode(data, max_text_chars=11), Invalid)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ('{"type":"say","text":"a\\ud800b"}', "a\ufffdb"),
        ('{"type":"say","text":"\\udc00\\ud800"}', "\ufffd\ufffd"),
        ('{"type":"say","text":"\\ud83d\\ude00"}', "😀"),  # a surrogate pair is one character
        ("plain \ud800", "plain \ufffd"),
    ],
)
def test_lone_surrogates_become_replacement_characters(data: str, text: str) -> None:
    assert Say(text) == decode(data)


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "\x00" * 10_000, "\ud800" * 500, "a\x7f\u2028\u202eb", "😀" * 500, '"\\' * 500]
)
@pytest.mark.parametrize("template", [{"type": "?"}, {"type": "end", "turn": "?"}, {"type": "config", "inbound": "?"}])
def test_a_message_never_echoes_more_than_80_characters(value: str, template: dict[str, str]) -> None:
    answer = decode(json.dumps({key: value if v == "?" else v for key, v in template.items()}))
    bare = decode(json.dumps({key: "" if v == "?" else v for key, v in template.items()}))
    assert isinstance(answer, Invalid) and isinstance(bare, Invalid)
    assert len(answer.message) <= len(bare.message) + 80
    assert answer.message.isprintable()
    answer.message.encode()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELD_NAMES = ["text", "token", "turn", "last", "heard_ms", "name", "voice", "lang", "speed", "seed", "instruct"]
NEAR_MESSAGES = st.dictionaries(
    st.sampled_from([*FIELD_NAMES, "inbound", "id", "now"]), JSON_VALUES, max_size=6
).flatmap(lambda rest: st.sampled_from([*CLIENT_TYPES, "shout"]).map(lambda kind: json.dumps({**rest, "type": kind})))


@settings(deadline=None)
@given(
    st.binary() | st.text(st.characters()) | NEAR_MESSAGES | NEAR_MESSAGES.map(lambda m: m[: len(m) // 2]),
    st.booleans(),
)
@example(b"{" + b"[" * 50_000, True)
@example(b"\x00\x00\x00{", True)
def test_decode_never_raises_and_gives_only_what_can_be_passed_on(data: str | bytes, is_text: bool) -> None:
    message = NativeCodec().decode(data, is_text)
    assert isinstance(message, messages.FromBot)
    repr(message).encode()  # a log and a socket can carry all of it
    match message:
        case Say(text=text, turn=turn) | Text(text=text, turn=turn):
            text.encode()
            assert turn is None or 1 <= len(turn) <= 128
        case Clear(heard_ms=int(heard_ms)):
            assert 0 <= heard_ms <= 86_400_000
        case Configure(speed=float(speed)):
            assert 0.5 <= speed <= 2.0
        case _:
            pass


@settings(deadline=None)
@given(st.text().filter(lambda t: not t.lstrip("\ufeff").lstrip().startswith("{") and not t.startswith("\ufeff")))
def test_plain_text_arrives_unchanged(text: str) -> None:
    assert Say(text) == decode(text.encode())


# ------------------------------------------------------------------- server → bot leg

WRITTEN = [
    (
        SentenceSpoken("t7", 0, "你好。", 0, 980),
        '{"type":"sentence","turn":"t7","index":0,"text":"你好。","start_ms":0,"end_ms":980}',
    ),
    (MarkReached("m1", "played"), '{"type":"mark","name":"m1","state":"played"}'),
    (MarkReached("m1", "cleared", "t7"), '{"type":"mark","name":"m1","state":"cleared","turn":"t7"}'),
    (WarningEvent("empty_text", "nothing to say"), '{"type":"warning","code":"empty_text","message":"nothing to say"}'),
    (
        ErrorEvent("bad_json", "not JSON"),
        '{"type":"error","code":"bad_json","message":"not JSON","fatal":false,"retryable":false}',
    ),
    (Pong(), '{"type":"pong"}'),
    (Pong(0), '{"type":"pong","id":0}'),
    (Pong("\ud800"), '{"type":"pong","id":"\ufffd"}'),
    (
        CallStarted("CA1", "MZ1", "ulaw", 8000, {"bot": "sales"}),
        '{"type":"call","call":"CA1","stream":"MZ1","codec":"ulaw","rate_hz":8000,"parameters":{"bot":"sales"}}',
    ),
    (
        Done("t7", 1980, 25, 0, {"first_audio_ms": 31.5, "queue_ms": None, "x": float("nan")}),
        '{"type":"done","turn":"t7","audio_ms":1980,"chars":25,"underruns":0,"latency":{"first_audio_ms":31.5}}',
    ),
    (
        StatusReport("c1", "none", None, [{"turn": "t1", "heard_ms": None}], 0, 0, 0),
        '{"type":"status","call":"c1","media":"none","turns":[{"turn":"t1"}],"buffered_chars":0,"buffered_ms":0,"underruns":0}',
    ),
]


@pytest.mark.parametrize(("message", "data"), WRITTEN)
def test_an_event_is_written_compactly_and_without_gaps(message: messages.ToBot, data: str) -> None:
    assert (data.encode(), True) == NativeCodec(audio="none").encode(message)


def test_every_message_to_the_bot_has_a_form() -> None:
    # TurnSent is for vendors' protocols only.
    assert set(messages.ToBot.__args__) == {*EVENT_TYPES, InboundAudio, messages.TurnSent}
    assert len(EVENT_TYPES) == len(set(EVENT_TYPES.values()))


@settings(deadline=None)
@given(st.text(), st.text(), st.integers(0, 10**9))
def test_heard_text_survives_the_wire(heard: str, unheard: str, heard_ms: int) -> None:
    message = Cleared("t7", heard, len(heard), heard_ms, unheard, "clock", "clear")
    got = event(message)
    assert got.pop("type") == "cleared"
    assert message == Cleared(**got)


def test_a_frame_as_base64_is_a_twilio_shaped_media_event() -> None:
    wire = NativeCodec("base64", stream_id='s"1').encode(Frame(ULAW_20_MS))
    assert wire is not None and wire[1]
    payload = base64.b64encode(ULAW_20_MS).decode()
    assert {"event": "media", "streamSid": 's"1', "media": {"payload": payload}} == json.loads(wire[0])


def test_a_frame_as_binary_is_its_own_bytes() -> None:
    assert NativeCodec("binary").encode(Frame(ULAW_20_MS)) == (ULAW_20_MS, False)


def test_a_frame_is_not_sent_if_audio_is_off() -> None:
    assert NativeCodec("none").encode(Frame(ULAW_20_MS)) is None


INBOUND = InboundAudio(ULAW_20_MS, 1240)


def test_the_callers_audio_comes_in_the_form_that_the_session_states() -> None:
    codec = NativeCodec("none")
    wire = codec.encode(INBOUND)
    assert wire is not None and wire[1]
    payload = base64.b64encode(ULAW_20_MS).decode()
    assert {"event": "media", "media": {"track": "inbound", "timestamp": "1240", "payload": payload}} == json.loads(
        wire[0]
    )
    codec.decode('{"type":"config","inbound":"none"}')
    assert codec.encode(replace(INBOUND, form="binary")) == (ULAW_20_MS, False)


def test_binary_speech_and_binary_caller_are_never_mixed() -> None:
    wire = NativeCodec("binary").encode(replace(INBOUND, form="binary"))
    assert wire is not None and wire[1]
    assert json.loads(wire[0])["media"]["track"] == "inbound"


@settings(deadline=None)
@given(st.binary(max_size=400), st.text(max_size=8))
def test_a_frame_of_any_bytes_comes_back_from_its_base64(payload: bytes, stream_id: str) -> None:
    wire = NativeCodec("base64", stream_id).encode(replace(Frame(b""), payload=payload))
    assert wire is not None
    assert payload == base64.b64decode(json.loads(wire[0])["media"]["payload"], validate=True)
