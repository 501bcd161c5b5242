"""The custom streaming voice for jambonz.

The messages are those of the vendor's own example of a bridge (github.com/jambonz/custom-speech-example,
lib/tts/streaming): no package drives this protocol, and no jambonz server was at hand.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.jambonz.tts_codec import JambonzVoice, open_tts
from telephony_tts.wire.messages import Clear, Cleared, End, ErrorEvent, Invalid, Text, TurnSent, WarningEvent
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step

ADDRESS = "/jambonz/tts?voice=tone&language=en-US&sampleRate=8000"


def voice(target: str = ADDRESS) -> JambonzVoice:
    dialect = open_tts(target)
    assert isinstance(dialect, JambonzVoice)
    return dialect


def steps(dialect: JambonzVoice, message: Any) -> list[Step]:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return list(dialect.decode(data, True))


def said(dialect: JambonzVoice, *texts: str) -> str:
    """The text that the call gets for these messages."""
    taken = [step for text in texts for step in steps(dialect, {"type": "stream", "text": text})]
    assert all(isinstance(step, Text) for step in taken)
    return "".join(step.text for step in taken if isinstance(step, Text))


def errors(taken: list[Step]) -> list[str]:
    replies = [json.loads(step.wire[0]) for step in taken if isinstance(step, Reply)]
    assert all(reply["type"] == "error" for reply in replies)
    return [reply["error"] for reply in replies]


CONVERSATION: list[tuple[dict[str, Any], list[Step]]] = [
    ({"type": "stream", "text": "Hello, how can I help"}, [Text("Hello, how can I help ", "0")]),
    ({"type": "stream", "text": "you today?"}, [Text("you today? ", "0")]),
    ({"type": "flush"}, [End("0")]),
    ({"type": "keepalive"}, []),
    ({"type": "flush"}, []),
    ({"type": "stream", "text": "Your order "}, [Text("Your order ", "1")]),
    ({"type": "stream", "text": " has left."}, [Text("has left. ", "1")]),
    ({"type": "flush"}, [End("1")]),
    ({"type": "stream", "text": "It will"}, [Text("It will ", "2")]),
    ({"type": "stop"}, [Clear(), CloseSocket(1000, "stopped")]),
]


def test_a_whole_conversation() -> None:
    dialect = voice()
    assert [json.loads(payload) for payload, _ in dialect.greeting()] == [
        {"type": "connect", "data": {"sample_rate": 8000, "base64_encoding": False}}
    ]
    for message, expected in CONVERSATION:
        assert steps(dialect, message) == expected, message


def test_the_options_are_in_the_address() -> None:
    options = voice("/jambonz/tts?voice=anna&language=zh-CN&sampleRate=16000&call=CA1").options
    assert (options.voice, options.lang, options.call) == ("anna", "zh", "CA1")
    assert (options.codec, options.rate_hz) == ("pcm", 16000)
    assert voice("/jambonz/tts").options.rate_hz == 8000


@pytest.mark.parametrize("query", ["sampleRate=11025", "sampleRate=x", "base64_encoding=maybe"])
def test_options_that_cannot_be_served_are_refused(query: str) -> None:
    refused = open_tts(f"/jambonz/tts?{query}")
    assert isinstance(refused, Refused) and refused.status == 400
    assert query.partition("=")[2] in json.loads(refused.body)["error"]


def test_audio_is_binary_or_base64_as_the_address_says() -> None:
    assert list(voice().audio("0", b"\x01\x02", None)) == [(b"\x01\x02", False)]
    in_base64 = voice(f"{ADDRESS}&base64_encoding=true")
    assert json.loads(next(iter(in_base64.greeting()))[0])["data"]["base64_encoding"] is True
    ((payload, is_text),) = in_base64.audio("0", b"\x01\x02", None)
    assert is_text and json.loads(payload) == {"type": "data", "data": {"audio": "AQI="}}


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("Hello", "world."), "Hello world. "),
        (("Hello ", " world. "), "Hello world. "),
        (("One.\n", "Two."), "One.\nTwo. "),
        (("你好。", "今天", "很好。"), "你好。今天很好。"),
        (("안녕", "하세요."), "안녕 하세요. "),
        (("", "  ", "Yes."), "Yes. "),
    ],
)
def test_pieces_are_joined_by_one_space(pieces: tuple[str, ...], text: str) -> None:
    assert said(voice(), *pieces) == text


def test_a_clear_interrupts_and_keeps_the_connection() -> None:
    dialect = voice()
    said(dialect, "One.")
    assert steps(dialect, {"command": "clear"}) == [Clear()]
    assert steps(dialect, {"type": "stream", "text": "Two."}) == [Text("Two. ", "1")]


@pytest.mark.parametrize("event", [TurnSent("0"), Cleared("0", "", 0, 0, "One.", "clock", "barge_in")])
def test_text_after_a_turn_that_ended_by_itself_begins_another(event: Any) -> None:
    dialect = voice()
    said(dialect, "One.")
    assert list(dialect.event(event)) == []
    assert steps(dialect, {"type": "flush"}) == []
    assert steps(dialect, {"type": "stream", "text": "Two."}) == [Text("Two. ", "1")]


def test_text_for_a_turn_that_was_closed_meanwhile_is_not_lost() -> None:
    dialect = voice()
    said(dialect, "One.")
    taken = iter(dialect.decode(b'{"type":"stream","text":"Two."}', True))
    assert next(taken) == Text("Two. ", "0")
    assert list(dialect.event(ErrorEvent("turn_closed", "…", about="0"))) == []
    assert list(taken) == [Text("Two. ", "1")]
    assert steps(dialect, {"type": "flush"}) == [End("1")]


def test_an_engines_error_is_told() -> None:
    dialect = voice()
    said(dialect, "One.")
    ((payload, _),) = dialect.event(ErrorEvent("engine_failed", "it broke", turn="0"))
    assert json.loads(payload) == {"type": "error", "error": "it broke"}
    assert list(dialect.event(WarningEvent("empty_text", "…", "0"))) == []
    assert said(dialect, "Two.") == "Two. "


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (b"{", "not JSON"),
        (b"\xff", "UTF-8"),
        (b"[]", "expected one JSON object"),
        ({"type": "stream"}, '"text" is missing'),
        ({"type": "stream", "text": 7}, '"text" must be a string, got 7'),
        ({"type": "stream", "text": "x" * 10_001}, "the limit is 10000"),
        ({"type": "speak"}, 'unknown type "speak"'),
        ({}, "unknown type null"),
    ],
)
def test_a_bad_message_gets_an_error_and_harms_nothing(message: Any, word: str) -> None:
    dialect = voice()
    (error,) = errors(steps(dialect, message))
    assert word in error
    assert said(dialect, "Yes.") == "Yes. "


def test_a_binary_message_gets_an_error() -> None:
    (error,) = errors(list(voice().decode(b"\x00", False)))
    assert "binary" in error


_NUMBERS = st.integers() | st.floats()
_JSON = st.none() | st.booleans() | _NUMBERS | st.text(max_size=8) | st.lists(_NUMBERS, max_size=2)
_KINDS = st.sampled_from(["stream", "flush", "clear", "stop", "connect", "keepalive"]) | _JSON


@given(st.lists(st.fixed_dictionaries({}, optional={"type": _KINDS, "command": _KINDS, "text": _JSON}), max_size=6))
def test_any_json_gives_steps(messages: list[dict[str, Any]]) -> None:
    dialect = voice()
    for message in messages:
        for step in steps(dialect, message):
            assert isinstance(step, Text | End | Clear | Reply | CloseSocket) and not isinstance(step, Invalid)


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_give_steps(data: bytes, is_text: bool) -> None:
    assert all(isinstance(step, Reply | Clear | CloseSocket) for step in voice().decode(data, is_text))
