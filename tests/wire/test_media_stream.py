"""Telnyx, Plivo, SignalWire and Exotel (PROTOCOL.md §9.7 to §9.10): what they send in their own spelling, and what they
are sent. Messages follow the carriers' documents; Plivo's also the types of its stream SDK."""

from __future__ import annotations

import array
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.doors.exotel.codec import ExotelCodec, rate_in
from telephony_tts.doors.plivo.codec import PlivoCodec, signature_v3, verify_v3
from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.doors.telnyx.codec import WINDOW, TelnyxCodec, TelnyxOptions, parse_options
from telephony_tts.wire import messages
from telephony_tts.wire.media_stream import NO_AUDIO, MediaStreamCodec
from telephony_tts.wire.messages import (
    Frame,
    Invalid,
    MediaAudio,
    MediaClear,
    MediaDtmf,
    MediaMark,
    MediaStart,
    MediaStop,
    MediaTones,
)

AUDIO = bytes(range(160))
PAYLOAD = base64.b64encode(AUDIO).decode()
CODECS: dict[str, Callable[[], MediaStreamCodec]] = {
    "telnyx": TelnyxCodec, "plivo": PlivoCodec, "signalwire": SignalWireCodec, "exotel": ExotelCodec,
}  # fmt: skip
STARTS: dict[str, dict[str, Any]] = {
    "telnyx": {
        "event": "start", "sequence_number": "1", "stream_id": "s1",
        "start": {
            "call_control_id": "v3:a", "custom_parameters": {"bot": "sales"}, "from": "+49",
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        },
    },
    "plivo": {
        "event": "start", "sequenceNumber": 0,
        "start": {
            "callId": "c", "streamId": "s1", "accountId": "a", "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        },
        "extra_headers": '{"X-PH-bot": "sales"}',
    },
    "signalwire": {
        "event": "start", "sequenceNumber": "1", "streamSid": "s1",
        "start": {
            "callSid": "c", "streamSid": "s1", "customParameters": {"bot": "sales"},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        },
    },
    "exotel": {
        "event": "start", "sequence_number": "1", "stream_sid": "s1",
        "start": {
            "call_sid": "c", "stream_sid": "s1", "custom_parameters": {"bot": "sales"}, "from": "+91",
            "media_format": {"encoding": "raw/slin", "sample_rate": "8000", "bit_rate": "128kbps"},
        },
    },
}  # fmt: skip
FORMATS = {"telnyx": "media_format", "plivo": "mediaFormat", "signalwire": "mediaFormat", "exotel": "media_format"}
every_carrier = pytest.mark.parametrize("carrier", CODECS)


def with_format(carrier: str, media_format: Any) -> str:
    start = STARTS[carrier]
    return json.dumps({**start, "start": {**start["start"], FORMATS[carrier]: media_format}})


def started(carrier: str, codec: MediaStreamCodec | None = None) -> MediaStreamCodec:
    codec = codec or CODECS[carrier]()
    assert isinstance(codec.decode(json.dumps(STARTS[carrier])), MediaStart)
    return codec


def media(audio: bytes = AUDIO, **fields: Any) -> str:
    payload = base64.b64encode(audio).decode()
    return json.dumps({"event": "media", "media": {"track": "inbound", "payload": payload, **fields}})


# ------------------------------------------------------------------------ start


@pytest.mark.parametrize(
    ("carrier", "media_format", "codec", "rate_hz"),
    [
        ("telnyx", {"encoding": "PCMA", "sample_rate": 8000}, "alaw", 8000),
        ("telnyx", {"encoding": "L16", "sample_rate": "16000"}, "pcm", 16000),
        ("telnyx", {"encoding": "L16"}, "pcm", 8000),
        ("telnyx", None, "ulaw", 8000),
        ("plivo", {"encoding": "audio/x-l16", "sampleRate": 16000}, "pcm", 16000),
        ("plivo", {"encoding": "audio/x-l16;rate=16000"}, "pcm", 16000),
        ("plivo", None, "ulaw", 8000),
        ("signalwire", {"encoding": "audio/x-L16", "sampleRate": 24000}, "pcm", 24000),
        ("signalwire", {"encoding": "audio/x-mulaw", "sampleRate": "8000"}, "ulaw", 8000),
        ("exotel", {"encoding": "base64", "sample_rate": "16000", "bit_rate": "256kbps"}, "pcm", 16000),
        ("exotel", {"encoding": "audio/x-raw", "sample_rate": 24000}, "pcm", 24000),
        ("exotel", {"encoding": "audio/L16;rate=16000"}, "pcm", 16000),
        ("exotel", {"encoding": "audio/x-mulaw", "sample_rate": 8000}, "ulaw", 8000),
        ("exotel", None, "pcm", 8000),
    ],
)
def test_the_format_is_that_of_start(carrier: str, media_format: Any, codec: str, rate_hz: int) -> None:
    start = CODECS[carrier]().decode(with_format(carrier, media_format))
    assert isinstance(start, MediaStart)
    assert (start.codec, start.rate_hz) == (codec, rate_hz)
    assert start.stream == "s1" and start.parameters["bot"] == "sales"


@pytest.mark.parametrize(
    ("carrier", "media_format", "part_of_message"),
    [
        ("telnyx", {"encoding": "OPUS", "sample_rate": 16000}, "pcmu at 8000 Hz"),
        ("telnyx", {"encoding": "PCMU", "sample_rate": 16000}, '"PCMU" at 16000'),
        ("plivo", {"encoding": "audio/x-l16", "sampleRate": 24000}, "audio/x-l16 at 8000, 16000 Hz"),
        ("plivo", {"encoding": 7, "sampleRate": 8000}, "got 7"),
        ("signalwire", {"encoding": "audio/x-L16", "sampleRate": True}, "got"),
        ("exotel", {"encoding": "raw/slin", "sample_rate": "44100"}, "8000, 16000, 24000"),
    ],
)
def test_another_format_is_refused_and_the_stream_stays_unstarted(
    carrier: str, media_format: Any, part_of_message: str
) -> None:
    codec = CODECS[carrier]()
    answer = codec.decode(with_format(carrier, media_format))
    assert isinstance(answer, Invalid)
    assert answer.code == "unsupported_codec" and part_of_message in answer.message
    assert codec.stream is None


@every_carrier
def test_the_order_of_messages(carrier: str) -> None:
    codec = CODECS[carrier]()
    mark = codec.keys.mark
    for kind in ("media", "dtmf", mark, "stop"):
        body = {"payload": PAYLOAD, "digit": "1", "name": "m"}
        answer = codec.decode(json.dumps({"event": kind, kind: body, "name": "m"}).encode(), False)
        assert answer == Invalid("bad_order", f'"{kind}" came before "start"')
    started(carrier, codec)
    second = codec.decode(json.dumps(STARTS[carrier]))
    assert isinstance(second, Invalid) and second.code == "bad_order"
    assert codec.decode(media()) == MediaAudio(AUDIO)
    unknown = codec.decode('{"event":"shout"}')
    assert isinstance(unknown, Invalid) and unknown.code == "unknown_type" and mark in unknown.message
    binary = codec.decode(AUDIO, is_text=False)
    assert isinstance(binary, Invalid) and binary.code == "binary_not_expected"


@pytest.mark.parametrize(
    ("extra_headers", "parameters"),
    [
        ('{"bot": "sales", "X-PH-token": "t", "n": 1}', {"bot": "sales", "token": "t", "n": "1"}),
        ({"bot": "sales"}, {"bot": "sales"}),
        ("bot=sales", {"extra_headers": "bot=sales"}),
        ("[1]", {"extra_headers": "[1]"}),
        ("", {}),
        (None, {}),
        (5, {}),
    ],
)
def test_plivos_extra_headers_are_the_parameters(extra_headers: Any, parameters: dict[str, str]) -> None:
    start = PlivoCodec().decode(json.dumps({**STARTS["plivo"], "extra_headers": extra_headers}))
    assert isinstance(start, MediaStart) and start.parameters == parameters


@pytest.mark.parametrize(
    ("start", "query", "lead_ms", "rate_hz", "sent_ms", "ahead_ms"),
    [
        ({"encoding": "raw/slin", "sample_rate": "8000"}, None, 200, 8000, 200, 500),
        ({"encoding": "raw/slin"}, 16000, 200, 16000, 100, 300),
        ({"encoding": "raw/slin"}, 11025, 200, 8000, 200, 500),
        ({"encoding": "raw/slin", "sample_rate": "24000"}, 16000, 50, 24000, 100, 300),
        ({"encoding": "audio/x-mulaw"}, 16000, 200, 8000, 200, 500),
        (None, None, 1000, 8000, 200, 1000),
    ],
)
def test_exotels_messages_are_whole_units_of_3200_bytes_or_more(
    start: Any, query: int | None, lead_ms: int, rate_hz: int, sent_ms: int, ahead_ms: int
) -> None:
    codec = ExotelCodec(query, lead_ms)
    message = codec.decode(with_format("exotel", start))
    assert isinstance(message, MediaStart)
    assert (message.rate_hz, message.ptime_ms) == (rate_hz, 20)
    assert (message.bulk_ms, message.lead_ms) == (sent_ms, ahead_ms)
    assert codec.bulk_bytes == sent_ms * codec.bytes_per_ms
    assert codec.bulk_bytes % 320 == 0 and codec.bulk_bytes >= 100 * codec.bytes_per_ms
    assert 3200 <= codec.bulk_bytes <= 100_000 or message.codec == "ulaw"


def test_the_rate_in_exotels_address() -> None:
    assert rate_in("/media/exotel?sample-rate=16000&token=t") == 16000
    assert rate_in("/media/exotel?sample-rate=fast") is None
    assert rate_in("/media/exotel") is None
    assert rate_in("/media/exotel?" + "a=b&" * 100) is None


# ------------------------------------------------------------------- in the call


@every_carrier
@pytest.mark.parametrize("as_bytes", [False, True])
def test_messages_of_a_call_are_read(carrier: str, as_bytes: bool) -> None:
    codec = started(carrier)
    mark: dict[str, Any] = {"event": "mark", "mark": {"name": "1.1"}}
    if carrier == "plivo":
        mark = {"event": "playedStream", "streamId": "s1", "name": "1.1"}
    told: list[tuple[Any, messages.FromMedia | None]] = [
        ({"event": "media", "media": {"payload": PAYLOAD, "timestamp": "40"}}, MediaAudio(AUDIO, 40)),
        ({"event": "media", "media": {"payload": PAYLOAD, "timestamp": "1700000000000"}}, MediaAudio(AUDIO, None)),
        ({"event": "media", "media": {"track": "outbound", "payload": PAYLOAD}}, None),
        ({"event": "dtmf", "dtmf": {"digit": "#", "duration": "100"}}, MediaDtmf("#")),
        (mark, MediaMark("1.1")),
        ({"event": "connected"}, None),
        ({"event": "stop"}, MediaStop()),
    ]
    for body, message in told:
        data = json.dumps(body)
        assert codec.decode(data.encode() if as_bytes else data) == message
    assert codec.decode(media(), want_audio=False) is NO_AUDIO
    assert codec.decode(media().encode(), want_audio=False) is NO_AUDIO


@every_carrier
@pytest.mark.parametrize(
    "body",
    [
        {"event": "media"}, {"event": "media", "media": {"payload": 5}}, {"event": "media", "media": {"payload": "a"}},
        {"event": "dtmf", "dtmf": {"digit": "12"}}, {"event": "dtmf", "dtmf": []},
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_with_the_reason(carrier: str, body: Any) -> None:
    answer = started(carrier).decode(json.dumps(body))
    assert isinstance(answer, Invalid) and answer.code == "bad_field"


def test_half_a_sample_is_refused() -> None:
    answer = started("exotel").decode(media(b"abc"))
    assert isinstance(answer, Invalid) and "whole number of samples" in answer.message


def test_cleared_audio_needs_no_action_and_no_start() -> None:
    assert PlivoCodec().decode('{"event":"clearedAudio","streamId":"s1"}') is None


def test_telnyx_reports_an_error() -> None:
    error = {"code": 100002, "title": "unknown_error", "detail": "nothing to play"}
    answer = started("telnyx").decode(json.dumps({"event": "error", "payload": error}))
    assert answer == Invalid("peer_error", 'Telnyx says 100002 "unknown_error": "nothing to play"')
    assert isinstance(started("telnyx").decode('{"event":"error","payload":"x"}'), Invalid)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["payload", "chunk", "timestamp", "track", "digit", "name", "call_sid", "callSid", "callId", "call_control_id",
     "stream_id", "streamSid", "custom_parameters", "media_format", "mediaFormat", "encoding", "sample_rate"]
)  # fmt: skip
KINDS = st.sampled_from(["connected", "start", "media", "dtmf", "mark", "playedStream", "error", "stop"])
NEAR = st.tuples(KINDS, JSON_VALUES | st.dictionaries(NAMES, JSON_VALUES), JSON_VALUES).map(
    lambda t: json.dumps({"event": t[0], t[0]: t[1]} | dict.fromkeys(("payload", "extra_headers", "name"), t[2]))
)


@every_carrier
@settings(deadline=None, max_examples=60)
@given(st.binary() | st.text(st.characters()) | NEAR | JSON_VALUES.map(json.dumps), st.booleans(), st.booleans())
def test_decode_never_raises(carrier: str, data: str | bytes, want_audio: bool, has_started: bool) -> None:
    codec = started(carrier) if has_started else CODECS[carrier]()
    message = codec.decode(data, want_audio)
    assert message is None or isinstance(message, messages.FromMedia)
    repr(message).encode()
    if isinstance(message, MediaStart):
        json.dumps(message.parameters, ensure_ascii=False).encode()


# -------------------------------------------------------------------- what is sent


@pytest.mark.parametrize(
    ("carrier", "wire"),
    [
        ("telnyx", [{"event": "media", "media": {"payload": PAYLOAD}}, {"event": "mark", "mark": {"name": '7."é'}},
                    {"event": "clear"}]),
        ("plivo", [{"event": "playAudio", "streamId": "s1",
                    "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": PAYLOAD}},
                   {"event": "checkpoint", "streamId": "s1", "name": '7."é'},
                   {"event": "clearAudio", "streamId": "s1"}]),
        ("signalwire", [{"event": "media", "streamSid": "s1", "media": {"payload": PAYLOAD}},
                        {"event": "mark", "streamSid": "s1", "mark": {"name": '7."é'}},
                        {"event": "clear", "streamSid": "s1"}]),
        ("exotel", [{"event": "media", "stream_sid": "s1", "media": {"payload": PAYLOAD}},
                    {"event": "mark", "stream_sid": "s1", "mark": {"name": '7."é'}},
                    {"event": "clear", "stream_sid": "s1"}]),
    ],
)  # fmt: skip
def test_speech_marks_and_clear_in_the_carriers_form(carrier: str, wire: list[dict[str, Any]]) -> None:
    codec = started(carrier)
    sent = [codec.encode(m) for m in (Frame(AUDIO), MediaMark('7."é'), MediaClear())]
    assert [json.loads(payload) for payload, _ in sent] == wire
    assert all(is_text for _, is_text in sent)


def test_plivo_names_the_format_of_its_speech() -> None:
    codec = PlivoCodec()
    codec.decode(with_format("plivo", {"encoding": "audio/x-l16", "sampleRate": 16000}))
    sent = json.loads(codec.encode(Frame(AUDIO))[0])
    assert sent["media"] == {"contentType": "audio/x-l16", "sampleRate": 16000, "payload": PAYLOAD}


@every_carrier
def test_encoding_before_start_raises(carrier: str) -> None:
    for message in (Frame(b""), MediaTones("1")):
        with pytest.raises(RuntimeError, match="start"):
            CODECS[carrier]().encode(message)


def test_signalwire_sends_tones() -> None:
    sent, is_text = started("signalwire").encode(MediaTones("12#w"))
    assert json.loads(sent) == {"event": "dtmf", "streamSid": "s1", "dtmf": {"digit": "12#w"}} and is_text


def test_plivo_sends_tones() -> None:
    sent, is_text = started("plivo").encode(MediaTones("12#w"))
    assert json.loads(sent) == {"event": "sendDTMF", "dtmf": "12#w"} and is_text


# ------------------------------------------------------------------------- Telnyx


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/media/telnyx", TelnyxOptions()),
        ("/media/telnyx?token=t", TelnyxOptions()),
        ("/media/telnyx?codec=PCMA", TelnyxOptions("alaw")),
        ("/media/telnyx?codec=ulaw&rate=8000", TelnyxOptions("ulaw", 8000)),
        ("/media/telnyx?codec=l16&rate=16000&byte_order=big", TelnyxOptions("pcm", 16000, True)),
        ("/media/telnyx?rate=24000", TelnyxOptions(None, 24000)),
    ],
)
def test_the_options_of_telnyxs_address(path: str, options: TelnyxOptions) -> None:
    assert parse_options(path) == options


@pytest.mark.parametrize(
    ("query", "part_of_message"),
    [
        ("codec=opus", 'codec="opus": expected one of pcmu'),
        ("rate=11025", "rate="),
        ("codec=pcmu&rate=16000", "expected one of 8000"),
        ("byte_order=middle", "little, big"),
        ("&".join(f"a{n}=1" for n in range(100)), "more than 64"),
    ],
)
def test_a_wrong_option_of_telnyxs_address(query: str, part_of_message: str) -> None:
    answer = parse_options(f"/media/telnyx?{query}")
    assert isinstance(answer, Invalid)
    assert answer.code == "bad_option" and part_of_message in answer.message


@pytest.mark.parametrize(
    ("options", "media_format", "spoken", "heard"),
    [
        (TelnyxOptions(), {"encoding": "PCMA", "sample_rate": 8000}, ("alaw", 8000), ("alaw", 8000)),
        (TelnyxOptions("ulaw"), {"encoding": "PCMA", "sample_rate": 8000}, ("ulaw", 8000), ("alaw", 8000)),
        (TelnyxOptions("pcm", 16000), {"encoding": "PCMU", "sample_rate": 8000}, ("pcm", 16000), ("ulaw", 8000)),
        (TelnyxOptions("pcm"), {"encoding": "PCMU", "sample_rate": 8000}, ("pcm", 8000), ("ulaw", 8000)),
        (TelnyxOptions("pcm"), {"encoding": "L16", "sample_rate": 16000}, ("pcm", 16000), ("pcm", 16000)),
        (TelnyxOptions(None, 24000), {"encoding": "L16", "sample_rate": 16000}, ("pcm", 24000), ("pcm", 16000)),
        (TelnyxOptions(None, 24000), {"encoding": "PCMU", "sample_rate": 8000}, ("ulaw", 8000), ("ulaw", 8000)),
    ],
)
def test_telnyx_speaks_in_the_codec_of_the_address(
    options: TelnyxOptions, media_format: Any, spoken: tuple[str, int], heard: tuple[str, int]
) -> None:
    start = TelnyxCodec(options).decode(with_format("telnyx", media_format))
    assert isinstance(start, MediaStart)
    assert (start.codec, start.rate_hz) == spoken
    assert start.caller_format == heard
    assert start.ptime_ms == 20, "Telnyx takes no shorter messages"


def test_the_byte_order_of_l16_is_little_endian_unless_the_address_says_big() -> None:
    loud = array.array("h", [1, -2, 300]).tobytes()
    for order, on_wire in ((False, loud), (True, array.array("h", [256, -257, 11265]).tobytes())):
        codec = TelnyxCodec(TelnyxOptions(is_big_endian=order))
        codec.decode(with_format("telnyx", {"encoding": "L16", "sample_rate": 16000}))
        assert codec.decode(media(on_wire)) == MediaAudio(loud)
        assert base64.b64decode(json.loads(codec.encode(Frame(loud))[0])["media"]["payload"]) == on_wire
    ulaw = started("telnyx", TelnyxCodec(TelnyxOptions(is_big_endian=True)))
    assert ulaw.decode(media(AUDIO)) == MediaAudio(AUDIO), "G.711 has no byte order"


def heard(chunks: list[int]) -> list[int]:
    """The numbers of the audio that a leg gets from messages in this order."""
    codec = started("telnyx")
    got: list[int] = []
    for chunk in chunks:
        audio = codec.decode(media(bytes([chunk % 256]), chunk=str(chunk)))
        if audio is not None:
            assert isinstance(audio, MediaAudio)
            got += audio.payload
    return got


@pytest.mark.parametrize(
    ("chunks", "in_order"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([7, 8, 9], [7, 8, 9]),
        ([1, 3, 2, 4], [1, 2, 3, 4]),
        ([1, 5, 4, 3, 2, 6], [1, 2, 3, 4, 5, 6]),
        ([1, 2, 2, 3, 3, 4], [1, 2, 3, 4]),
        ([1, 3, 4, 5, 6, 7, 8], [1, 3, 4, 5, 6, 7, 8]),
        ([1, 3, 4, 5, 6, 7, 2, 8], [1, 3, 4, 5, 6, 7, 8]),
        ([1, 9, 8, 7, 6, 5, 10], [1, 5, 6, 7, 8, 9, 10]),
        ([200, 1, 2, 3, 4, 5, 6, 7], [200, 5, 6, 7]),
    ],
)
def test_telnyxs_audio_is_put_in_order(chunks: list[int], in_order: list[int]) -> None:
    assert heard(chunks) == in_order


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, WINDOW - 1), min_size=1, max_size=60), st.integers(0, 1000))
def test_audio_that_is_late_by_less_than_the_window_is_never_lost(delays: list[int], first: int) -> None:
    """Each message after the first is delayed by some places. The sort is stable, so no message overtakes more than the
    window."""
    order = sorted(range(1, len(delays)), key=lambda n: n + delays[n])
    chunks = [first, *(first + n for n in order)]
    flat = [first + n for n in range(len(delays))] + [first + len(delays) + n for n in range(WINDOW)]
    assert heard([*chunks, *flat[len(delays) :]]) == [n % 256 for n in flat]


def test_audio_passes_at_once_when_it_is_wanted_again() -> None:
    codec = started("telnyx")
    assert codec.decode(media(b"a", chunk="1")) == MediaAudio(b"a")
    assert codec.decode(media(b"b", chunk="2").encode(), want_audio=False) is NO_AUDIO
    assert codec.decode(media(b"c", chunk="9")) == MediaAudio(b"c")
    assert codec.decode(media(b"d")) == MediaAudio(b"d"), "without a number"


# -------------------------------------------------------------------------- Plivo

URL = "wss://tts.example.com/media/plivo"
SIGNED = "50zIAbSkf7fRXeEycD9S7WxBou+WC3B0Z3ckREofzGQ="


def test_a_plivo_signature_is_the_documented_hmac() -> None:
    # printf '%s' https://tts.example.com/answer.0542956780 | openssl dgst -sha256 -hmac secret -binary | base64
    assert signature_v3("secret", "https://tts.example.com/answer", "0542956780") == SIGNED


@pytest.mark.parametrize(
    "signed",
    [
        URL, "wss://tts.example.com:443/media/plivo", "https://tts.example.com/media/plivo",
        "http://tts.example.com/media/plivo/websocket",
    ],
)  # fmt: skip
def test_a_plivo_signature_holds_for_each_form_of_the_address(signed: str) -> None:
    header = signature_v3("secret", signed, "n1")
    assert verify_v3("secret", URL, header, "n1")
    assert verify_v3("secret", URL, f"other, {header}", "n1"), "one of several"


def test_the_query_is_signed_in_the_order_of_its_names() -> None:
    header = signature_v3("secret", f"{URL}?a=1&b=2", "n1")
    assert verify_v3("secret", f"{URL}?b=2&a=1", header, "n1")
    assert not verify_v3("secret", f"{URL}?b=2&a=2", header, "n1")


@pytest.mark.parametrize(
    ("token", "url", "header", "nonce"),
    [
        ("secret", URL, signature_v3("other", URL, "n1"), "n1"),
        ("secret", URL, signature_v3("secret", URL, "n1"), "n2"),
        ("secret", "wss://evil.example.com/media/plivo", signature_v3("secret", URL, "n1"), "n1"),
        ("secret", URL, signature_v3("secret", URL, "n1")[:-1], "n1"),
        ("secret", URL, "", "n1"),
        ("secret", URL, None, "n1"),
        ("secret", URL, signature_v3("secret", URL, ""), ""),
        ("secret", URL, signature_v3("secret", URL, "n1"), None),
        ("", URL, signature_v3("", URL, "n1"), "n1"),
        ("secret", URL, "\ud800é,,,,,,,,,,,,", "n1"),
    ],
)
def test_any_other_plivo_signature_is_refused(token: str, url: str, header: str | None, nonce: str | None) -> None:
    assert not verify_v3(token, url, header, nonce)
