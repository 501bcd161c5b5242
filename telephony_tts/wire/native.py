"""The native dialect of the bot leg (PROTOCOL.md §4 and §5): JSON with a `type`, or a plain line of text.

A text frame that does not begin with `{` is one turn of plain text, so a developer can type into wscat.
"""

from __future__ import annotations

import json
import math
import re
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from telephony_tts.wire.fields import (
    MAX_EXACT_INT,
    MAX_MARK_CHARS,
    MAX_MS,
    MAX_NAME_CHARS,
    BadField,
    Fields,
    Wire,
    clean,
    decode_text,
    parse_object,
    quote,
    require,
)
from telephony_tts.wire.messages import (
    CallerSpeech,
    CallStarted,
    Clear,
    Cleared,
    Close,
    Configure,
    Done,
    Dtmf,
    End,
    ErrorEvent,
    Flush,
    Frame,
    FromBot,
    Hangup,
    InboundAudio,
    Invalid,
    Mark,
    MarkReached,
    Pause,
    Ping,
    Pong,
    Ready,
    Resume,
    Say,
    SendDtmf,
    SentenceSpoken,
    Started,
    Status,
    StatusReport,
    Text,
    ToBot,
    WarningEvent,
)

AUDIO_FORMS = ("base64", "binary", "none")
INBOUND_CODECS = ("ulaw", "alaw", "pcm")
INBOUND_RATES_HZ = (8000, 16000, 24000, 48000)
CLIENT_TYPES = ("say", "text", "end", "flush", "clear", "mark", "config", "status", "ping", "close", "dtmf")

MIN_SPEED, MAX_SPEED = 0.5, 2.0
MAX_SEED = 2**32 - 1
MAX_INSTRUCT_CHARS = 1000
SWITCH = ("on", "off")
MIN_SPEECH_MS = (64, 2000)
"""The limits of `min_speech_ms`: two windows of the detector, and a time beyond any useful one."""
MAX_HOLD_OFF_MS = 10_000
MAX_DTMF_CHARS = 64
_TONES = re.compile(rf"[0-9*#A-Dw]{{1,{MAX_DTMF_CHARS}}}")

EVENT_TYPES: Mapping[type, str] = {
    Ready: "ready",
    Started: "started",
    SentenceSpoken: "sentence",
    MarkReached: "mark",
    Cleared: "cleared",
    Done: "done",
    Pause: "pause",
    Resume: "resume",
    WarningEvent: "warning",
    ErrorEvent: "error",
    Pong: "pong",
    StatusReport: "status",
    CallStarted: "call",
    Dtmf: "dtmf",
    CallerSpeech: "caller",
    Hangup: "hangup",
}
"""The `type` of each event; its other fields are those of the dataclass."""

_FIELD_NAMES = {event: tuple(field.name for field in fields(event)) for event in EVENT_TYPES}
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NativeCodec:
    """The codec of one bot leg.

    `audio` is the form of the server's speech on this leg, `inbound` that of the caller's audio ("none" at first; a
    `config` message changes it). `stream_id` is the `streamSid` of media events. `max_text_chars` limits one message;
    the session limits a turn, so that its refusal can name the turn.
    """

    def __init__(
        self, audio: str = "base64", stream_id: str = "", max_text_chars: int = 262_144, inbound: str = "none"
    ) -> None:
        self.audio = audio
        self.inbound = inbound
        self.max_text_chars = max_text_chars
        self._media_head = b'{"event":"media","streamSid":' + clean(_to_json(stream_id)).encode()
        self._media_head += b',"media":{"payload":"'

    # ------------------------------------------------------------ bot leg → server

    def decode(self, data: str | bytes, is_text: bool = True) -> FromBot:
        """Read one WebSocket message. Never raises: an unreadable message is `Invalid`."""
        if not is_text:
            return Invalid("binary_not_expected", "binary messages are not read on this leg; send text or JSON")
        text = decode_text(data)
        if isinstance(text, Invalid):
            return text
        stripped = text.lstrip()
        try:
            if not stripped.startswith("{"):
                return self._plain(text)
            message = parse_object(stripped)
            return message if isinstance(message, Invalid) else self._typed(Fields(message))
        except BadField as error:
            return error.invalid

    def _plain(self, text: str) -> Say:
        if len(text) > self.max_text_chars:
            raise BadField(f"the text has {len(text)} characters; the limit is {self.max_text_chars}", "text_too_long")
        return Say(clean(text))

    def _typed(self, f: Fields) -> FromBot:
        match f.get("type"):
            case "say":
                return Say(self._text(f, "text"), f.name("turn"))
            case "text":
                field = "token" if f.get("text") is None and f.get("token") is not None else "text"
                return Text(self._text(f, field), f.name("turn"), f.flag("last"))
            case "end":
                return End(f.name("turn"))
            case "flush":
                return Flush(f.name("turn"))
            case "clear":
                return Clear(f.name("turn"), f.whole("heard_ms", MAX_MS))
            case "mark":
                name = f.name("name", MAX_MARK_CHARS, printable=False)
                return Mark(require("name", name, f"a string of 1 to {MAX_MARK_CHARS} characters"), f.name("turn"))
            case "config":
                return self._configure(f)
            case "status":
                return Status()
            case "ping":
                return Ping(_ping_id(f))
            case "close":
                return Close(f.flag("now"))
            case "dtmf":
                return SendDtmf(_tones(f))
            case unknown:
                known = ", ".join(CLIENT_TYPES)
                return Invalid("unknown_type", f'"type" {quote(unknown)} is not known; known types: {known}')

    def _text(self, f: Fields, field: str) -> str:
        return require(field, f.text(field, self.max_text_chars, "text_too_long"), "a string")

    def _configure(self, f: Fields) -> Configure:
        settings = Configure(
            voice=f.name("voice"),
            lang=f.name("lang", 35),  # the longest tag that RFC 5646 §4.4.1 requires implementations to hold
            speed=f.number("speed", MIN_SPEED, MAX_SPEED),
            seed=f.whole("seed", MAX_SEED),
            instruct=f.text("instruct", MAX_INSTRUCT_CHARS),
            inbound=f.choice("inbound", AUDIO_FORMS),
            inbound_codec=f.choice("inbound_codec", INBOUND_CODECS),
            inbound_rate_hz=f.whole("inbound_rate_hz", max(INBOUND_RATES_HZ)),
            barge_in=f.choice("barge_in", SWITCH),
            min_speech_ms=f.whole("min_speech_ms", MIN_SPEECH_MS[1]),
            hold_off_ms=f.whole("hold_off_ms", MAX_HOLD_OFF_MS),
        )
        least, most = MIN_SPEECH_MS
        if settings.min_speech_ms is not None and settings.min_speech_ms < least:
            wrong = settings.min_speech_ms
            raise BadField(f'"min_speech_ms" must be a whole number from {least} to {most}, got {wrong}')
        if settings.inbound_rate_hz is not None and settings.inbound_rate_hz not in INBOUND_RATES_HZ:
            rates = ", ".join(map(str, INBOUND_RATES_HZ))
            raise BadField(f'"inbound_rate_hz" must be one of {rates}, got {settings.inbound_rate_hz}')
        if settings.inbound is not None:
            self.inbound = settings.inbound
        return settings

    # ------------------------------------------------------------ server → bot leg

    def encode(self, message: ToBot | Frame) -> Wire | None:
        """Encode one event or frame of speech; None if this leg does not carry it."""
        if type(message) is Frame:
            if self.audio == "base64":
                return self._media_head + b2a_base64(message.payload, newline=False) + b'"}}', True
            return (message.payload, False) if self.audio == "binary" else None
        if type(message) is InboundAudio:
            return self._inbound(message)
        kind = type(message)
        event: dict[str, Any] = {"type": EVENT_TYPES[kind]}
        for name in _FIELD_NAMES[kind]:
            value = getattr(message, name)
            if value is not None:
                event[name] = _without_gaps(value)
        return clean(_to_json(event)).encode(), True

    def _inbound(self, audio: InboundAudio) -> Wire | None:
        if self.inbound == "none":
            return None
        if self.inbound == "binary" and self.audio != "binary":
            return audio.payload, False
        # Two kinds of binary frames on one leg would be indistinguishable; media events name their track.
        head = b'{"event":"media","media":{"track":"inbound","timestamp":"%d","payload":"' % audio.timestamp_ms
        return head + b2a_base64(audio.payload, newline=False) + b'"}}', True


def _ping_id(f: Fields) -> str | int | None:
    value = f.get("id")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_EXACT_INT:
        return value
    if value is None or isinstance(value, str):
        return f.name("id")
    raise BadField(f'"id" must be a whole number or a string of 1 to {MAX_NAME_CHARS} characters, got {quote(value)}')


def _tones(f: Fields) -> str:
    digits = f.get("digits")
    if isinstance(digits, str) and _TONES.fullmatch(digits):
        return digits
    raise BadField(f'"digits" must be 1 to {MAX_DTMF_CHARS} of 0-9 * # A-D and w for a pause, got {quote(digits)}')


def _without_gaps(value: Any) -> Any:
    """Leave out None and NaN inside a field too: JSON has no NaN, and null means "not given"."""
    if isinstance(value, dict):
        return {key: _without_gaps(v) for key, v in value.items() if not _is_gap(v)}
    if isinstance(value, list):
        return [_without_gaps(v) for v in value]
    return value


def _is_gap(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
