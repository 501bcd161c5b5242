"""The protocol between a front and an engine server: every field survives, and other bytes are refused."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.api import Chunk, EngineStats, Pronunciation, Timing, Utterance, Voice
from telephony_tts.engines.remote.messages import (
    REPLICA_LOST,
    Attach,
    Attached,
    BadMessage,
    CancelSpeech,
    EngineStatus,
    FindVoice,
    KeepAlive,
    MoreText,
    Speak,
    SpeechEnded,
    SpokenAudio,
    TookAudio,
    VoiceFound,
    decode_from_client,
    decode_from_server,
    encode,
)
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost, UnknownVoice, UnsupportedText

EVERYTHING = Utterance(
    "u7", "lone \ud800 surrogate, \0, 重庆", voice="anna", lang="zh", lang_source="words", speed=1.25, seed=-3,
    instruct="softly", call="CA1", turn="t2", follows=True, can_wait=True, is_private=True, has_digits=True,
    pronunciations=(Pronunciation(0, 2, "ipa", "a"), Pronunciation(21, 23, "pinyin", "chong2 qing4")),
)  # fmt: skip
VOICE = Voice("anna", "", ("zh", "en"), 24_000, -1.5, "a woman")


@pytest.mark.parametrize(
    "message",
    [
        Attach(1, "front 1", 1000),
        KeepAlive(7, ("a", "b")),
        Speak(3, EVERYTHING, -5, True),
        Speak(4_294_967_295, Utterance("u", "")),
        MoreText(3, "x \ud83d", True),
        TookAudio(3, 5 * 10**12),
        CancelSpeech(9),
        FindVoice(9, "é"),
    ],
)
def test_a_clients_message_survives(message: Any) -> None:
    assert decode_from_client(encode(message)) == [message]


@pytest.mark.parametrize(
    "message",
    [
        Attached(1, "fake", True, "telephony-tts 0.1.0", ("ja",)),
        EngineStatus(3, EngineStats(1, 2, 0.75, False, 900), True, 2, 1, (VOICE,), {"anna": "v1", "b": None}, ("anna",),
                     {"steps": 7.0}, ("anna",)),
        EngineStatus(0, EngineStats()),
        SpeechEnded(3),
        VoiceFound(1, VOICE),
        VoiceFound(1, None),
    ],
)  # fmt: skip
def test_a_servers_message_survives(message: Any) -> None:
    assert decode_from_server(encode(message)) == [message]


def test_audio_survives_with_its_timings() -> None:
    pcm = np.array([-32768, 32767, 0, 258], np.int16)
    chunk = Chunk(pcm, 22_050, (Timing(0, 3, 0, 4), Timing(4, 5, 4, 9)), 17, True)
    (message,) = decode_from_server(encode(SpokenAudio(5, chunk)))
    assert isinstance(message, SpokenAudio) and message.key == 5
    read = message.chunk
    assert read.pcm.dtype == np.int16 and read.pcm.tolist() == pcm.tolist()
    assert (read.sample_rate_hz, read.timings, read.queued_ns, read.estimates) == (22_050, chunk.timings, 17, True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnknownVoice("no voice"), UnknownVoice),
        (UnsupportedText("no letters"), UnsupportedText),
        (EngineUnavailable("no package"), EngineUnavailable),
        (EngineError("broke", retry_after_ms=300), EngineError),
        (EngineError("hot", code="too_hot", retryable=False), EngineError),
        (EngineError("stopping", code=REPLICA_LOST, retry_after_ms=500), ReplicaLost),
    ],
)
def test_an_error_keeps_its_kind_and_its_hints(error: EngineError, kind: type[EngineError]) -> None:
    (message,) = decode_from_server(encode(SpeechEnded(1, error)))
    assert isinstance(message, SpeechEnded) and type(message.error) is kind
    read = message.error
    assert (read.message, read.retryable, read.retry_after_ms) == (error.message, error.retryable, error.retry_after_ms)
    assert read.code == ("engine_failed" if error.code == REPLICA_LOST else error.code)


def test_one_grpc_message_holds_many_frames_in_order() -> None:
    messages = [CancelSpeech(1), MoreText(2, "a", False), KeepAlive(1)]
    assert decode_from_client(b"".join(map(encode, messages))) == messages


def frame(kind: int, fields: object = None, pcm: bytes = b"", *, key: int = 1, missing: int = 0) -> bytes:
    head = b"" if fields is None else json.dumps(fields).encode()
    return struct.pack("<BIII", kind, key, len(head) + missing, len(pcm)) + head + pcm


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x05", "header"),
        (frame(6, missing=1), "needs 1 bytes"),
        (frame(3, {"text": "a"}), "id is missing"),
        (frame(3, {"id": 7, "text": "a"}), "id is int"),
        (frame(3, {"id": "u", "text": "a", "speed": 0}), "speed is 0"),
        (frame(3, {"id": "u", "text": "a", "seed": True}), "seed is bool"),
        (frame(3, {"id": "u", "text": "ab", "pronunciations": [[0, 3, "ipa", "x"]]}), "pronunciation"),
        (frame(3, {"id": "u", "text": "a" * 200_001}), "200001 characters"),
        (frame(3, {"id": "u", "text": "a", "lang_source": "guess"}), "lang_source"),
        (frame(4, [1]), "not an object"),
        (frame(67, {"rate_hz": 8000}, b"ab"), "kind 67"),
        (frame(99), "kind 99"),
        (struct.pack("<BIII", 6, 1, 3, 0) + b"{]}", "JSON"),
    ],
)
def test_what_is_no_message_of_a_client_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_from_client(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(67, {"rate_hz": 8000}, b"abc"), "3 bytes"),
        (frame(67, {"rate_hz": 8000}), "0 bytes"),
        (frame(67, {"rate_hz": 1}, b"ab"), "rate_hz"),
        (frame(67, {"rate_hz": 8000, "timings": [[0, 1, 2]]}, b"ab"), "wrong fields"),
        (frame(67, {"rate_hz": 8000, "timings": [[0, 1, 2, -1]]}, b"ab"), "timing"),
        (frame(66, {"number": 1, "n_queued": 0, "n_running": "2", "load": 0}), "n_running is str"),
        (frame(66, {"number": 1, "n_queued": 0, "n_running": 0, "load": 0, "counters": {"a": []}}), "wrong fields"),
        (frame(1), "kind 1"),
    ],
)
def test_what_is_no_message_of_a_server_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_from_server(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = ("id", "text", "speed", "seed", "pronunciations", "number", "rate_hz", "timings", "error", "voices", "versions",
         "counters", "load", "n_queued", "n_running", "is_last", "audio_ns", "protocol", "window_ms", "voice", "name",
         "message", "engine")  # fmt: skip
KINDS = (1, 2, 3, 4, 5, 6, 7, 65, 66, 67, 68, 69, 0, 255)


@pytest.mark.slow
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), JSON), st.binary(max_size=9))
def test_any_fields_are_a_message_or_refused(kind: int, fields: dict[str, Any], pcm: bytes) -> None:
    for decode in (decode_from_client, decode_from_server):
        with suppress(BadMessage):
            decode(frame(kind, fields, pcm))


@given(st.binary(max_size=60))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    for decode in (decode_from_client, decode_from_server):
        with suppress(BadMessage):
            decode(data)
