"""jambonz's verb `listen`: messages in the form that its audio module writes and reads, and those of a broken peer."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.jambonz.codec import JambonzCodec, without_markers
from telephony_tts.wire import messages as m

METADATA = {
    "callSid": "b6f48929-8e86-4d62-ae3b-64fb574d91f6", "direction": "inbound", "from": "15083084809",
    "to": "15083728299", "callId": "252d9117-2a73-423a-9d4a-19c39ad2b7a9", "sampleRate": 8000,
    "mixType": "mono", "bot": "sales", "sip": {"headers": {}},
}  # fmt: skip
FRAME = bytes(range(160)) * 2


def started(**fields: Any) -> JambonzCodec:
    codec = JambonzCodec()
    assert isinstance(codec.decode(json.dumps(METADATA | fields).encode()), m.MediaStart)
    return codec


def test_the_metadata_starts_the_call() -> None:
    start = JambonzCodec().decode(json.dumps(METADATA).encode())
    assert isinstance(start, m.MediaStart)
    assert (start.call, start.stream) == (METADATA["callSid"], METADATA["callSid"])
    assert (start.codec, start.rate_hz, start.caller_format) == ("pcm", 8000, None)
    assert start.parameters["bot"] == "sales" and start.parameters["from"] == "15083084809"
    assert "sip" not in start.parameters


def test_playback_has_the_rate_of_the_address() -> None:
    start = JambonzCodec("c1", 24000).decode(json.dumps(METADATA | {"sampleRate": 16000}).encode())
    assert isinstance(start, m.MediaStart)
    assert (start.call, start.stream, start.rate_hz) == ("c1", METADATA["callSid"], 24000)
    assert start.caller_format == ("pcm", 16000)
    same = JambonzCodec(None, 8000).decode(json.dumps(METADATA).encode())
    assert isinstance(same, m.MediaStart) and (same.rate_hz, same.caller_format) == (8000, None)


def test_what_jambonz_sends_is_read() -> None:
    codec = started()
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)
    assert codec.decode(FRAME, False, False) == m.MediaAudio(b"")
    assert codec.decode(b'{"event":"dtmf","dtmf":"2","duration":"1600"}') == m.MediaDtmf("2")
    assert codec.decode(b'{"type":"mark","data":{"name":"1.1","event":"playout"}}') == m.MediaMark("1.1")
    assert codec.decode(b'{"type":"mark","data":{"name":"1.1","event":"cleared"}}') is None
    assert codec.decode(b'{"type":"playDone","data":{"id":"x"}}') is None


def test_what_jambonz_gets() -> None:
    codec = started()
    assert codec.encode(m.Frame(FRAME)) == (FRAME, False)
    said = [codec.encode(m.MediaMark("1.1")), codec.encode(m.MediaClear()), codec.clear_marks(), codec.hang_up()]
    assert [json.loads(payload) for payload, is_text in said if is_text] == [
        {"type": "mark", "data": {"name": "1.1"}}, {"type": "killAudio"}, {"type": "clearMarks"},
        {"type": "disconnect"},
    ]  # fmt: skip


def test_the_sample_that_means_a_mark_is_never_sent() -> None:
    spoken = array("h", [0, -1, 1, -1, -2, 255, -256, -1])
    heard = array("h")
    heard.frombytes(started().encode(m.Frame(spoken.tobytes()))[0])
    assert list(heard) == [0, 0, 1, 0, -2, 255, -256, 0]


@given(st.lists(st.integers(-32768, 32767) | st.sampled_from([-1, 255, -256]), max_size=40))
def test_no_other_sample_is_changed(samples: list[int]) -> None:
    heard = array("h")
    heard.frombytes(without_markers(array("h", samples).tobytes()))
    assert list(heard) == [0 if sample == -1 else sample for sample in samples]


@pytest.mark.parametrize(
    ("said", "is_text", "code", "hint"),
    [
        (FRAME, False, "bad_order", "metadata"),
        (b"{}", True, "bad_field", "callSid"),
        (b'{"event":"dtmf","dtmf":"2"}', True, "bad_field", "metadata"),
        (b'{"callSid":"a b"}', True, "bad_field", "A-Z"),
        (b'{"callSid":"c","sampleRate":44100}', True, "unsupported_codec", "48000"),
        (b'{"callSid":"c","sampleRate":"8000"}', True, "unsupported_codec", "48000"),
        (b'{"callSid":"c","sampleRate":true}', True, "unsupported_codec", "48000"),
        (b'{"callSid":"c","mixType":"stereo"}', True, "unsupported_codec", "mono"),
        (b"hello", True, "bad_json", "JSON"),
        (b"\xff", True, "bad_utf8", "UTF-8"),
    ],
)
def test_a_leg_that_cannot_start_says_why(said: bytes, is_text: bool, code: str, hint: str) -> None:
    answer = JambonzCodec().decode(said, True, is_text)
    assert isinstance(answer, m.Invalid) and answer.code == code and hint in answer.message


@pytest.mark.parametrize(
    "said",
    [
        b'{"event":"dtmf","dtmf":"22"}', b'{"event":"dtmf"}', b'{"type":"mark","data":{"name":"1.1","event":"sung"}}',
        b'{"type":"mark","data":{"event":"playout"}}', b'{"type":"mark"}', b'{"type":"sing"}', b'{"event":["x"]}',
    ],
)  # fmt: skip
def test_a_bad_message_is_refused_and_the_leg_goes_on(said: bytes) -> None:
    codec = started()
    assert isinstance(codec.decode(said), m.Invalid)
    assert isinstance(codec.decode(FRAME[:-1], True, False), m.Invalid)
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(["callSid", "sampleRate", "mixType", "type", "event", "data", "dtmf"])


_SAID = st.binary(max_size=24) | st.dictionaries(_KEYS, _JSON, max_size=4)


@pytest.mark.slow
@given(st.lists(st.tuples(_SAID, st.booleans()), max_size=5))
def test_no_input_raises(said: list[tuple[bytes | dict[str, Any], bool]]) -> None:
    for codec in (JambonzCodec(), JambonzCodec("c", 16000), started()):
        for data, is_text in said:
            raw = data if isinstance(data, bytes) else json.dumps(data).encode()
            answer = codec.decode(raw, True, is_text)
            kinds = m.Invalid | m.MediaStart | m.MediaAudio | m.MediaMark | m.MediaDtmf
            assert answer is None or isinstance(answer, kinds)
