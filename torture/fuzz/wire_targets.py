"""The dialects of the WebSocket legs. An input is a connection: messages, separated by the byte 0x1E.

A message that begins with the byte 0x00 is binary, without that byte. For bots in the protocol of a vendor the first
message is the target of the request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from telephony_tts.app.config import doors
from telephony_tts.doors.asterisk.codec import AsteriskCodec
from telephony_tts.doors.asterisk.dial import call_of_dial, dial_in
from telephony_tts.doors.bandwidth.codec import BandwidthCodec
from telephony_tts.doors.exotel.codec import ExotelCodec
from telephony_tts.doors.freeswitch.codec import FreeSwitchCodec
from telephony_tts.doors.genesys.codec import GenesysCodec
from telephony_tts.doors.jambonz.codec import JambonzCodec
from telephony_tts.doors.plivo.codec import PlivoCodec
from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.doors.telnyx.codec import TelnyxCodec, TelnyxOptions, parse_options
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.doors.vonage.codec import VonageCodec
from telephony_tts.transport.door import Doors, Vendor, open_dialect, split_call
from telephony_tts.wire import messages as m
from telephony_tts.wire.fields import CALL_NAME
from telephony_tts.wire.native import CLIENT_TYPES, NativeCodec
from telephony_tts.wire.native_media import NativeMediaCodec
from telephony_tts.wire.query import (
    StreamOptions,
    parse_stream_query,
    token_in,
)
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, query_of
from torture.fuzz.judge import FuzzTarget

SEPARATOR = b"\x1e"
_MOST_MESSAGES = 1_000
"""The messages of an input that are read: each has its own time, and not all of 30,000 together."""
MOST_MESSAGE_CHARS = 1_000
"""Of an error message: it quotes a little of what was wrong."""
_FROM_BOT, _FROM_MEDIA, _STEPS = get_args(m.FromBot), get_args(m.FromMedia), get_args(Step)


def connection(*messages: bytes | str | dict[str, Any]) -> bytes:
    """An input of these messages."""
    told = (json.dumps(each) if isinstance(each, dict) else each for each in messages)
    return SEPARATOR.join(each.encode() if isinstance(each, str) else each for each in told)


def messages_of(data: bytes) -> Iterable[tuple[bytes, bool]]:
    """(payload, whether it is text) of each message."""
    for part in data.split(SEPARATOR, _MOST_MESSAGES)[:_MOST_MESSAGES]:
        yield (part[1:], False) if part[:1] == b"\0" else (part, True)


def check_plain(value: object) -> None:
    """Whether all texts in a message can be written as UTF-8: a lone surrogate would break the socket that it is sent
    to. Raises ValueError, of which UnicodeEncodeError is one."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, each in value.items():
            check_plain(key)
            check_plain(each)
    elif isinstance(value, list | tuple):
        for each in value:
            check_plain(each)
    elif is_dataclass(value):
        for field in fields(value):
            check_plain(getattr(value, field.name))
    if isinstance(value, m.Invalid):
        assert value.message and len(value.message) <= MOST_MESSAGE_CHARS, value.message[:200]
    if isinstance(value, m.MediaStart):
        assert CALL_NAME.fullmatch(value.call), value.call


def read_native(data: bytes) -> None:
    codec = NativeCodec()
    for payload, is_text in messages_of(data):
        message = codec.decode(payload, is_text)
        assert isinstance(message, _FROM_BOT)
        check_plain(message)


def read_query(data: bytes) -> None:
    target = data.decode("latin-1")
    options = parse_stream_query(target)
    assert isinstance(options, StreamOptions | m.Invalid)
    check_plain(options)
    for read in (token_in, dial_in, call_of_dial, query_of, parse_options, split_call):
        check_plain(read(target))


def media_reader(make: Callable[[], Any]) -> Callable[[bytes], None]:
    """Reads a connection of a telephone platform twice: with the caller's audio, and without it."""

    def read(data: bytes) -> None:
        for want_audio in (True, False):
            codec = make()
            for payload, is_text in messages_of(data):
                message = codec.decode(payload, want_audio, is_text)
                assert message is None or isinstance(message, _FROM_MEDIA), message
                check_plain(message)
                if isinstance(message, m.MediaAudio) and not want_audio:
                    assert not message.payload, "unwanted audio was read"
                for reply, _ in getattr(codec, "replies", list)():
                    json.loads(reply)

    return read


def vendor_reader(vendor: Vendor) -> Callable[[bytes], None]:
    """Reads a bot's connection. Each turn that it begins ends: was sent, or failed."""

    def read(data: bytes) -> None:
        first, *messages = messages_of(data)
        dialect = open_dialect(vendor, first[0].decode("latin-1"))
        if isinstance(dialect, Refused):
            json.loads(dialect.body)
            return
        check_plain(dialect.options)
        check_wires(dialect.greeting())
        turns: dict[str, None] = {}
        for payload, is_text in messages:
            for step in dialect.decode(payload, is_text):
                assert isinstance(step, _STEPS), step
                if isinstance(step, Reply):
                    check_wires([step.wire])
                    continue
                check_plain(step)
                if isinstance(step, CloseSocket):
                    return
                if isinstance(step, m.Text) and step.turn is not None:
                    turns[step.turn] = None
        for number, turn in enumerate(turns):
            check_wires(dialect.audio(turn, bytes(320), None))
            ended = m.TurnSent(turn) if number % 2 else m.ErrorEvent("engine_error", "it failed", turn=turn)
            check_wires(wire for wire in dialect.event(ended) if not isinstance(wire, CloseSocket | m.Clear))

    return read


def check_wires(wires: Iterable[Any]) -> None:
    """Whether all text messages are JSON."""
    for payload, is_text in wires:
        if is_text:
            json.loads(payload)


_FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
_AUDIO = "/v7+" * 4
_BOT_SEEDS = (
    connection({"type": "say", "text": "Hello.", "turn": "t1", "private": True, "text_type": "ssml"}, "Just a line."),
    connection({"type": "text", "token": "Hel", "turn": "a"}, {"type": "text", "text": "lo.", "last": True}),
    connection({"type": "clear", "heard_ms": 1200}, {"type": "pause"}, {"type": "resume"}, {"type": "status"}),
    connection({"type": "mark", "name": "m1", "turn": "a"}, {"type": "ping", "id": 7}, {"type": "close", "now": False}),
    connection({"type": "dtmf", "digits": "12#w"}, {"type": "record", "action": "start"}),
    connection({"type": "play", "url": "https://a.example/x.wav", "loop": "until_speech", "gain_db": -6.5}),
    connection(
        {
            "type": "config",
            "voice": "en",
            "lang": "en-GB",
            "speed": 1.25,
            "seed": 7,
            "inbound": "base64",
            "inbound_rate_hz": 16000,
            "barge_in": "on",
            "min_speech_ms": 200,
            "caller_silent_ms": 500,
            "false_interruption_ms": 900,
            "lexicon": {"SQL": "sequel"},
        }
    ),
    b"\0\x01\x02",
)
_QUERY_SEEDS = (
    b"/v1/stream?codec=alaw&rate=16000&ptime_ms=20&audio=binary&pace=burst&lead_ms=60&call=c1&token=s%2Bcret",
    b"/v1/stream?speed=1.5&barge_in=on&min_speech_ms=64&caller_silent_ms=0&dtmf=auto&lexicon=a&record=on&text_type=ssml&thinking=spoken",
    b"/media/asterisk?dial=ws://127.0.0.1:8088/media/x&call=c1",
    b"/media/telnyx?codec=L16&rate=16000",
    b"/calls/CA1/v1/speak?model=aura&x=%ff&y=+&z",
)


def _carrier(start: dict[str, Any], *later: dict[str, Any], first: str = '{"event":"connected"}') -> bytes:
    return connection(first, start, *later)


_STREAM = {"event": "media", "media": {"track": "inbound", "chunk": "1", "timestamp": "20", "payload": _AUDIO}}
_DTMF = {"event": "dtmf", "dtmf": {"digit": "5"}}
_MARK = {"event": "mark", "mark": {"name": "m1"}}
_STOP = {"event": "stop"}
_GENESYS_ID = "e160e428-53e2-487c-977d-96989bf5c99d"
MEDIA: tuple[tuple[str, Callable[[], Any], tuple[bytes, ...]], ...] = (
    (
        "twilio",
        TwilioCodec,
        (
            _carrier(
                {
                    "event": "start",
                    "streamSid": "MZ1",
                    "start": {
                        "streamSid": "MZ1",
                        "callSid": "CA1",
                        "customParameters": {"a": "b", "n": 1},
                        "mediaFormat": _FORMAT,
                    },
                },
                _STREAM,
                _DTMF,
                _MARK,
                _STOP,
            ),
        ),
    ),
    (
        "telnyx",
        lambda: TelnyxCodec(TelnyxOptions()),
        (
            _carrier(
                {
                    "event": "start",
                    "stream_id": "s1",
                    "start": {
                        "call_control_id": "c1",
                        "from": "+49",
                        "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
                    },
                },
                _STREAM,
                _DTMF,
                _MARK,
            ),
        ),
    ),
    (
        "plivo",
        PlivoCodec,
        (
            _carrier(
                {
                    "event": "start",
                    "start": {
                        "callId": "c1",
                        "streamId": "s1",
                        "mediaFormat": {"encoding": "audio/x-l16", "sampleRate": 16000},
                    },
                    "extra_headers": "{a: b}",
                },
                _STREAM,
                {"event": "playedStream", "name": "m1"},
                {"event": "clearedAudio"},
                _DTMF,
            ),
        ),
    ),
    (
        "signalwire",
        SignalWireCodec,
        (
            _carrier(
                {
                    "event": "start",
                    "start": {
                        "streamSid": "s1",
                        "callSid": "c1",
                        "mediaFormat": {"encoding": "audio/x-L16;rate=24000"},
                    },
                },
                _STREAM,
                _DTMF,
                _MARK,
                _STOP,
            ),
        ),
    ),
    (
        "bandwidth",
        BandwidthCodec,
        (
            connection(
                {
                    "eventType": "start",
                    "metadata": {
                        "callId": "c-1",
                        "streamId": "s-1",
                        "tracks": [{"name": "inbound", "mediaFormat": {"encoding": "PCMU", "sampleRate": 8000}}],
                    },
                    "streamParams": {"a": "b"},
                },
                {"track": "inbound", "payload": _AUDIO, "sequenceNumber": "1", "eventType": "media"},
                {"eventType": "stop"},
            ),
        ),
    ),
    (
        "exotel",
        lambda: ExotelCodec(8000, 100),
        (
            _carrier(
                {
                    "event": "start",
                    "stream_sid": "s1",
                    "start": {
                        "stream_sid": "s1",
                        "call_sid": "c1",
                        "custom_parameters": {"a": "b"},
                        "media_format": {"encoding": "base64", "sample_rate": "8000", "bit_rate": "128kbps"},
                    },
                },
                _STREAM,
                _DTMF,
                _MARK,
                _STOP,
            ),
        ),
    ),
    (
        "asterisk",
        AsteriskCodec,
        (
            connection(
                "MEDIA_START connection_id:c1 channel:WebSocket/x channel_id:1.2 format:ulaw optimal_frame_size:160 "
                "ptime:20 channel_variables:a=b",
                b"\0" + bytes(160),
                "DTMF_END digit:5 duration_ms:90",
                "MEDIA_XOFF",
                "MEDIA_XON",
                "MEDIA_MARK_PROCESSED correlation_id:m1",
                "MEDIA_BUFFERING_COMPLETED",
            ),
            connection(
                {
                    "event": "MEDIA_START",
                    "connection_id": "c1",
                    "channel": "x",
                    "channel_id": "1.2",
                    "format": "slin16",
                    "optimal_frame_size": 640,
                    "ptime": 20,
                },
                b"\0" + bytes(64),
                {"event": "DTMF_END", "digit": "5", "duration_ms": 90},
                {"event": "STATUS", "queue_length": 1, "media_paused": False},
                {"event": "QUEUE_DRAINED"},
            ),
        ),
    ),
    (
        "freeswitch",
        lambda: FreeSwitchCodec(False, "c1", 8000),
        (
            connection(
                {"uuid": "u1", "rate": 8000, "call": "c1"},
                b"\0" + bytes(320),
                {"esl": "dtmf", "digit": "5"},
                {"esl": "playing", "file": "/tmp/u_1.tmp.r8"},
                {"esl": "again"},
            ),
        ),
    ),
    (
        "freeswitch_fork",
        lambda: FreeSwitchCodec(True, "c1", 16000),
        (connection("plain metadata", b"\0" + bytes(320), {"esl": "played", "file": "/tmp/u_1.tmp.r16"}),),
    ),
    (
        "native_media",
        NativeMediaCodec,
        (
            connection(
                {
                    "type": "start",
                    "call": "c1",
                    "codec": "ulaw",
                    "rate_hz": 8000,
                    "ptime_ms": 20,
                    "parameters": {"a": "b"},
                },
                b"\0" + bytes(160),
                {"type": "mark", "name": "m1"},
                {"type": "dtmf", "digit": "5"},
                {"type": "hold", "state": "started"},
                {"type": "stop"},
            ),
        ),
    ),
    (
        "vonage",
        VonageCodec,
        (
            connection(
                {"event": "websocket:connected", "content-type": "audio/l16;rate=16000", "call": "c1", "n": 1.5},
                b"\0" + bytes(640),
                {"event": "websocket:dtmf", "digit": "5", "duration": 200},
                {"event": "websocket:notify", "payload": {"id": "m1"}},
                {"event": "websocket:cleared"},
            ),
        ),
    ),
    (
        "genesys",
        lambda: GenesysCodec("c1"),
        (
            connection(
                {
                    "version": "2",
                    "type": "open",
                    "seq": 1,
                    "serverseq": 0,
                    "id": _GENESYS_ID,
                    "position": "PT0S",
                    "parameters": {
                        "organizationId": "o",
                        "conversationId": "c",
                        "participant": {"ani": "+1", "aniName": "x", "dnis": "+2"},
                        "media": [{"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}],
                        "inputVariables": {"a": "b"},
                    },
                },
                b"\0" + bytes(160),
                {
                    "version": "2",
                    "type": "ping",
                    "seq": 2,
                    "serverseq": 0,
                    "id": _GENESYS_ID,
                    "position": "PT1.5S",
                    "parameters": {"rtt": "PT0.1S"},
                },
                {
                    "version": "2",
                    "type": "dtmf",
                    "seq": 3,
                    "serverseq": 0,
                    "id": _GENESYS_ID,
                    "parameters": {"digit": "5"},
                },
                {
                    "version": "2",
                    "type": "playback_completed",
                    "seq": 4,
                    "serverseq": 0,
                    "id": _GENESYS_ID,
                    "parameters": {},
                },
                {
                    "version": "2",
                    "type": "close",
                    "seq": 5,
                    "serverseq": 0,
                    "id": _GENESYS_ID,
                    "parameters": {"reason": "end"},
                },
            ),
        ),
    ),
    (
        "jambonz",
        lambda: JambonzCodec("c1", 8000),
        (
            connection(
                {"callSid": "c1", "accountSid": "a", "sampleRate": 8000, "from": "+1", "to": "+2"},
                b"\0" + bytes(320),
                {"event": "dtmf", "dtmf": "5"},
                {"type": "mark", "data": {"name": "m1", "event": "playout"}},
                {"type": "mark", "data": {"name": "m1", "event": "cleared"}},
                {"type": "playDone", "data": {}},
            ),
        ),
    ),
)
_VENDOR_SEEDS: dict[str, tuple[bytes, ...]] = {
    "deepgram": (
        connection(
            b"/v1/speak?model=aura-2-thalia-en&encoding=linear16&sample_rate=24000",
            {"type": "Speak", "text": "Hi."},
            {"type": "Flush"},
            {"type": "Clear"},
            {"type": "Close"},
        ),
    ),
    "deepgram_flux": (
        connection(
            b"/v2/speak?model=flux-alexis-en&encoding=mulaw&sample_rate=8000",
            {"type": "Speak", "text": "Hi."},
            {"type": "Flush"},
            {"type": "Configure", "speed": 1.1},
            {"type": "Clear"},
            {"type": "Close"},
        ),
    ),
    "elevenlabs": (
        connection(
            b"/v1/text-to-speech/v1/stream-input?model_id=x&output_format=ulaw_8000&sync_alignment=true",
            {
                "text": " ",
                "xi_api_key": "k",
                "voice_settings": {"speed": 1.1, "stability": 0.5},
                "generation_config": {"chunk_length_schedule": [50, 90]},
            },
            {"text": "Hi there. ", "try_trigger_generation": True, "flush": True},
            {"text": ""},
        ),
        connection(
            b"/v1/text-to-speech/v1/multi-stream-input?output_format=mp3_44100_128&auto_mode=true&enable_ssml_parsing=true",
            {"text": " ", "context_id": "a"},
            {"text": "Hi.", "context_id": "a", "flush": True},
            {"context_id": "a", "close_context": True},
            {"close_socket": True},
        ),
    ),
    "cartesia": (
        connection(
            b"/tts/websocket?cartesia_version=2025-04-16&api_key=k",
            {
                "model_id": "sonic-2",
                "transcript": "Hi ",
                "voice": {"mode": "id", "id": "v"},
                "language": "en",
                "context_id": "a",
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000},
                "continue": True,
                "add_timestamps": True,
                "max_buffer_delay_ms": 0,
                "flush": True,
            },
            {"context_id": "a", "cancel": True},
        ),
    ),
    "dashscope": (
        connection(
            b"/api-ws/v1/inference",
            {
                "header": {"action": "run-task", "task_id": "t1", "streaming": "duplex"},
                "payload": {
                    "task_group": "audio",
                    "task": "tts",
                    "function": "SpeechSynthesizer",
                    "model": "cosyvoice-v2",
                    "parameters": {
                        "text_type": "PlainText",
                        "voice": "v",
                        "format": "pcm",
                        "sample_rate": 22050,
                        "volume": 50,
                        "rate": 1.0,
                        "pitch": 1.0,
                    },
                    "input": {},
                },
            },
            {
                "header": {"action": "continue-task", "task_id": "t1", "streaming": "duplex"},
                "payload": {"input": {"text": "Hi."}},
            },
            {"header": {"action": "finish-task", "task_id": "t1", "streaming": "duplex"}, "payload": {"input": {}}},
        ),
    ),
    "jambonz": (
        connection(b"/jambonz/tts?call=c1", {"type": "stream", "text": "Hi."}, {"type": "flush"}, {"type": "stop"}),
    ),
}
_JSON_WORDS = (
    b'"type":',
    b'"event":',
    b'"text":',
    b'"turn":',
    b'"name":',
    b"media",
    b"start",
    SEPARATOR,
    SEPARATOR + b"\0",
)

WIRE_TARGETS = (
    FuzzTarget("native", read_native, _BOT_SEEDS, (*_JSON_WORDS, *(name.encode() for name in CLIENT_TYPES))),
    FuzzTarget("query", read_query, _QUERY_SEEDS, (b"?", b"&", b"=", b"call=", b"dial=", b"token=", b"%25", b"+")),
    *(FuzzTarget(name, media_reader(make), seeds, _JSON_WORDS) for name, make, seeds in MEDIA),
    *(
        FuzzTarget(f"{vendor.name}_bot", vendor_reader(vendor), _VENDOR_SEEDS[vendor.name], _JSON_WORDS)
        for vendor in Doors(doors()).vendors
    ),
)
