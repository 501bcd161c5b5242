"""FreeSWITCH's modules: messages recorded from them, and those of a broken peer.

The conversation below was recorded from mod_audio_stream (open edition, ec2a781) in FreeSWITCH 1.10.12. That of
mod_audio_fork is from its page. Neither module runs here.
"""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.freeswitch.codec import MAX_FILE_BYTES, FreeSwitchCodec
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.wire import messages as m

UUID = "7dd5e34e-5db4-4edb-a166-757e5d29b941"
FRAME = bytes(range(160)) * 2


def test_the_recorded_conversation_is_read() -> None:
    """Metadata, 320 bytes every 20 ms, and the text of the stop."""
    codec = FreeSwitchCodec(is_fork=False, call=UUID)
    start = codec.decode(b'{"caller":"phone"}')
    assert isinstance(start, m.MediaStart)
    assert (start.call, start.codec, start.rate_hz, start.parameters) == (UUID, "pcm", 8000, {"caller": "phone"})
    assert start.whole_sentences and start.lead_ms == 60_000
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)
    assert codec.decode(FRAME, False, False) == m.MediaAudio(b"")
    assert codec.decode(b'{"bye":1}') is None


def test_a_message_of_speech_has_what_the_module_needs() -> None:
    codec = FreeSwitchCodec(is_fork=False, call=UUID, rate_hz=16000)
    codec.decode(FRAME, True, False)
    payload, is_text = codec.file("3", FRAME)
    said = json.loads(payload)
    assert is_text and said["type"] == "streamAudio"
    audio = base64.b64decode(said["data"].pop("audioData"), validate=True)
    assert audio == FRAME
    # The event mod_audio_stream::play has the rest of the data; a rate that is text would be 0 there.
    assert said["data"] == {"audioDataType": "raw", "sampleRate": 16000, "id": "3"}


def test_the_longest_file_is_within_the_modules_limit() -> None:
    codec = FreeSwitchCodec(is_fork=True, call=UUID)
    codec.decode(FRAME, True, False)
    assert len(codec.file("999999", bytes(MAX_FILE_BYTES))[0]) < 650_000


def test_audio_alone_starts_a_call_that_the_handshake_has_named() -> None:
    codec = FreeSwitchCodec(is_fork=False, call="c1", rate_hz=16000)
    start = codec.decode(FRAME, True, False)
    assert isinstance(start, m.MediaStart) and (start.call, start.rate_hz, start.parameters) == ("c1", 16000, {})
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)


@pytest.mark.parametrize("field", ["call", "uuid", "callSid"])
def test_the_metadata_names_the_call_if_the_handshake_does_not(field: str) -> None:
    metadata = {field: "c7", "sampleRate": 16000, "to": "100", "deep": {"a": 1}, "list": [1]}
    start = FreeSwitchCodec(is_fork=True).decode(json.dumps(metadata).encode())
    assert isinstance(start, m.MediaStart) and (start.call, start.rate_hz) == ("c7", 16000)
    assert start.parameters == {field: "c7", "sampleRate": "16000", "to": "100"}


@pytest.mark.parametrize(
    ("said", "is_text", "code", "hint"),
    [
        (b"{}", True, "bad_field", "X-Call"),
        (b'{"call":"a b"}', True, "bad_field", "A-Z"),
        (b'{"call":7}', True, "bad_field", "A-Z"),
        (b"hello", True, "bad_json", "JSON"),
        (FRAME, False, "bad_field", "metadata"),
        (b'{"call":"c","rate_hz":44100}', True, "unsupported_codec", "8000 or 16000"),
        (b'{"call":"c","rate_hz":"16000"}', True, "unsupported_codec", "8000 or 16000"),
        (b'{"esl":"again"}', True, "bad_order", "started"),
        (b"\xff\xfe", True, "bad_utf8", "UTF-8"),
    ],
)
def test_a_leg_without_a_name_is_refused_with_what_is_needed(said: bytes, is_text: bool, code: str, hint: str) -> None:
    answer = FreeSwitchCodec(is_fork=False).decode(said, True, is_text)
    assert isinstance(answer, m.Invalid) and answer.code == code and hint in answer.message


def test_any_text_is_metadata_if_the_name_is_known() -> None:
    start = FreeSwitchCodec(is_fork=False, call="c1").decode(b"plain words")
    assert isinstance(start, m.MediaStart) and start.parameters == {"metadata": "plain words"}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b'{"esl":"sung","file":"1"}', "unknown_type"),
        (b'{"esl":["playing"]}', "unknown_type"),
        (b'{"esl":"dtmf","digit":"12"}', "bad_field"),
        (b'{"esl":"dtmf"}', "bad_field"),
        (b'{"esl":"played","file":{"a":1}}', "bad_field"),
    ],
)
def test_a_bad_report_is_refused(said: bytes, code: str) -> None:
    codec = FreeSwitchCodec(is_fork=False, call="c1")
    codec.decode(FRAME, True, False)
    answer = codec.decode(said)
    assert isinstance(answer, m.Invalid) and answer.code == code


def test_half_a_sample_is_refused() -> None:
    codec = FreeSwitchCodec(is_fork=False, call="c1")
    codec.decode(FRAME, True, False)
    assert isinstance(codec.decode(FRAME[:-1], True, False), m.Invalid)


@given(st.lists(st.tuples(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), st.booleans()), max_size=6))
def test_no_input_raises(messages: list[tuple[bytes, bool]]) -> None:
    for call in (None, "c1"):
        codec = FreeSwitchCodec(is_fork=False, call=call)
        for data, is_text in messages:
            answer = codec.decode(data, True, is_text)
            assert answer is None or isinstance(answer, m.Invalid | m.MediaStart | m.MediaAudio | m.MediaPlayback)


def test_a_mark_is_the_same_for_peers_without_sentences() -> None:
    codec = TwilioCodec()
    codec.decode('{"event":"start","streamSid":"MZ1","start":{"streamSid":"MZ1","callSid":"CA1"}}')
    assert codec.encode(m.MediaMark("1.1", ends_sentence=True)) == codec.encode(m.MediaMark("1.1"))
