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
    traceparent,
)
from telephony_tts.wire.messages import (
    UNTIL_SPEECH,
    AnsweringMachineHeard,
    CallerSilent,
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
    Hold,
    InboundAudio,
    Invalid,
    Mark,
    MarkReached,
    Pause,
    Paused,
    PauseSpeech,
    Ping,
    Play,
    Pong,
    Ready,
    Record,
    RecordingChanged,
    Resume,
    Resumed,
    ResumeSpeech,
    Say,
    SendDtmf,
    SentenceSpoken,
    Started,
    Status,
    StatusReport,
    Text,
    ToBot,
    WarningEvent,
    WordsSpoken,
)

AUDIO_FORMS = ("base64", "binary", "none")
INBOUND_CODECS = ("ulaw", "alaw", "pcm")
INBOUND_RATES_HZ = (8000, 16000, 24000, 48000)
CLIENT_TYPES = ("say", "text", "end", "flush", "clear", "mark", "config", "status", "ping", "close", "dtmf",
                "pause", "resume", "play", "record")  # fmt: skip

MIN_SPEED, MAX_SPEED = 0.5, 2.0
MAX_SEED = 2**32 - 1
MAX_INSTRUCT_CHARS = 1000
SWITCH = ("on", "off")
TURN_TEXT_TYPES = ("text", "ssml")
TEXT_TYPES = ("auto", *TURN_TEXT_TYPES)
THINKING = ("silent", "spoken")
MIN_SPEECH_MS = (64, 2000)
"""The limits of `min_speech_ms`: two windows of the detector, and a time beyond any useful one."""
MAX_HOLD_OFF_MS = 10_000
BARGE_IN_ACTIONS = ("clear", "pause")
FALSE_INTERRUPTION_MS = (100, 60_000)
MAX_RESUME_AFTER_MS = 60_000
MAX_STEP_BACK_MS = 2_000
CALLER_SILENT_MS = (100, 600_000)
"""The limits of `caller_silent_ms`, which may also be 0."""
DTMF_WAYS = ("auto", "message", "tones")
RECORD_ACTIONS = ("start", "stop")
MAX_DTMF_CHARS = 64
MAX_URL_CHARS = 2048
MIN_GAIN_DB, MAX_GAIN_DB = -60.0, 12.0
MAX_LEXICON_ENTRIES = 64
MAX_LEXICON_CHARS = 300
"""The longest text on either side of an entry of `lexicon`."""
_TONES = re.compile(rf"[0-9*#A-Dw]{{1,{MAX_DTMF_CHARS}}}")

EVENT_TYPES: Mapping[type, str] = {
    Ready: "ready",
    Started: "started",
    SentenceSpoken: "sentence",
    WordsSpoken: "words",
    MarkReached: "mark",
    Cleared: "cleared",
    Paused: "paused",
    Resumed: "resumed",
    Done: "done",
    Pause: "pause",
    Resume: "resume",
    WarningEvent: "warning",
    ErrorEvent: "error",
    Pong: "pong",
    StatusReport: "status",
    CallStarted: "call",
    Dtmf: "dtmf",
    Hold: "hold",
    CallerSpeech: "caller",
    CallerSilent: "caller_silent",
    AnsweringMachineHeard: "answering_machine",
    Hangup: "hangup",
    RecordingChanged: "recording",
}
"""The `type` of each event; its other fields are those of the dataclass."""

_FIELD_NAMES = {event: tuple(field.name for field in fields(event)) for event in EVENT_TYPES}
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NativeCodec:
    """The codec of one bot leg.

    `audio` is the form of the server's speech on this leg. `stream_id` is the `streamSid` of media events.
    `max_text_chars` limits one message; the session limits a turn, so that its refusal can name the turn.
    """

    def __init__(self, audio: str = "base64", stream_id: str = "", max_text_chars: int = 262_144) -> None:
        self.audio = audio
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
                text_type = f.choice("text_type", TURN_TEXT_TYPES)
                return Say(self._text(f, "text"), f.name("turn"), f.flag("private"), text_type, _traceparent(f))
            case "text":
                field = "token" if f.get("text") is None and f.get("token") is not None else "text"
                text_type = f.choice("text_type", TURN_TEXT_TYPES)
                return Text(
                    self._text(f, field), f.name("turn"), f.flag("last"), f.flag("private"), text_type, _traceparent(f)
                )
            case "end":
                return End(f.name("turn"))
            case "flush":
                return Flush(f.name("turn"))
            case "clear":
                return Clear(f.name("turn"), f.whole("heard_ms", MAX_MS))
            case "pause":
                return PauseSpeech(f.whole("heard_ms", MAX_MS))
            case "resume":
                return ResumeSpeech()
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
            case "play":
                return _play(f)
            case "record":
                action = f.choice("action", RECORD_ACTIONS)
                return Record(require("action", action, f"one of {', '.join(RECORD_ACTIONS)}"))
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
            text_type=f.choice("text_type", TEXT_TYPES),
            thinking=f.choice("thinking", THINKING),
            inbound=f.choice("inbound", AUDIO_FORMS),
            inbound_codec=f.choice("inbound_codec", INBOUND_CODECS),
            inbound_rate_hz=f.whole("inbound_rate_hz", max(INBOUND_RATES_HZ)),
            barge_in=f.choice("barge_in", SWITCH),
            min_speech_ms=f.whole("min_speech_ms", MIN_SPEECH_MS[1]),
            hold_off_ms=f.whole("hold_off_ms", MAX_HOLD_OFF_MS),
            barge_in_action=f.choice("barge_in_action", BARGE_IN_ACTIONS),
            false_interruption_ms=f.whole("false_interruption_ms", FALSE_INTERRUPTION_MS[1]),
            resume_after_ms=f.whole("resume_after_ms", MAX_RESUME_AFTER_MS),
            step_back_ms=f.whole("step_back_ms", MAX_STEP_BACK_MS),
            words=f.choice("words", SWITCH),
            dtmf=f.choice("dtmf", DTMF_WAYS),
            answering_machine=f.choice("answering_machine", SWITCH),
            caller_silent_ms=f.whole("caller_silent_ms", CALLER_SILENT_MS[1]),
            lexicon=_lexicon(f),
        )
        for name, (least, most) in (("min_speech_ms", MIN_SPEECH_MS), ("false_interruption_ms", FALSE_INTERRUPTION_MS)):
            wrong = getattr(settings, name)
            if wrong is not None and wrong < least:
                raise BadField(f'"{name}" must be a whole number from {least} to {most}, got {wrong}')
        if settings.caller_silent_ms and settings.caller_silent_ms < CALLER_SILENT_MS[0]:
            wrong = settings.caller_silent_ms
            raise BadField(f'"caller_silent_ms" must be 0 or a whole number from {CALLER_SILENT_MS[0]}, got {wrong}')
        if settings.inbound_rate_hz is not None and settings.inbound_rate_hz not in INBOUND_RATES_HZ:
            rates = ", ".join(map(str, INBOUND_RATES_HZ))
            raise BadField(f'"inbound_rate_hz" must be one of {rates}, got {settings.inbound_rate_hz}')
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

    def _inbound(self, audio: InboundAudio) -> Wire:
        if audio.form == "binary" and self.audio != "binary":
            return audio.payload, False
        # Two kinds of binary frames on one leg would be indistinguishable; media events name their track.
        head = b'{"event":"media","media":{"track":"inbound","timestamp":"%d","payload":"' % audio.timestamp_ms
        return head + b2a_base64(audio.payload, newline=False) + b'"}}', True


def _traceparent(f: Fields) -> str | None:
    """None if it is missing or cannot be read: a mistake in it must not cost the bot its speech."""
    value = f.get("traceparent")
    return traceparent(value) if isinstance(value, str) else None


def _ping_id(f: Fields) -> str | int | None:
    value = f.get("id")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_EXACT_INT:
        return value
    if value is None or isinstance(value, str):
        return f.name("id")
    raise BadField(f'"id" must be a whole number or a string of 1 to {MAX_NAME_CHARS} characters, got {quote(value)}')


def _lexicon(f: Fields) -> dict[str, str] | None:
    value = f.get("lexicon")
    if value is None:
        return None
    each = f"each text of 1 to {MAX_LEXICON_CHARS} characters"
    expected = f"an object of at most {MAX_LEXICON_ENTRIES} pairs of text, {each}"
    if not isinstance(value, dict) or len(value) > MAX_LEXICON_ENTRIES:
        raise BadField(f'"lexicon" must be {expected}, got {quote(value)}')
    for text in (text for pair in value.items() for text in pair):
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_LEXICON_CHARS:
            raise BadField(f'"lexicon" must be {expected}; {quote(text)} is wrong')
    return {clean(written): clean(say) for written, say in value.items()}


def _tones(f: Fields) -> str:
    digits = f.get("digits")
    if isinstance(digits, str) and _TONES.fullmatch(digits):
        return digits
    raise BadField(f'"digits" must be 1 to {MAX_DTMF_CHARS} of 0-9 * # A-D and w for a pause, got {quote(digits)}')


def _play(f: Fields) -> Play:
    loop = f.get("loop")
    if not (loop is None or isinstance(loop, bool) or loop == UNTIL_SPEECH):
        raise BadField(f'"loop" must be true, false or "{UNTIL_SPEECH}", got {quote(loop)}')
    gain_db = f.number("gain_db", MIN_GAIN_DB, MAX_GAIN_DB)
    name, url = f.name("name"), f.name("url", MAX_URL_CHARS)
    if name is not None and url is not None:
        raise BadField('"name" and "url" do not go together: a sound has one or the other')
    if url is not None and not url.startswith(("http://", "https://")):
        raise BadField(f'"url" must begin with http:// or https://, got {quote(url)}')
    play = Play(name, f.name("turn"), f.flag("under"), loop, gain_db, f.flag("stop"), url)
    if (name or url) is None and not play.stop:
        raise BadField('"name" is missing; expected the name of a sound, its "url", or "stop": true')
    if (name or url) is not None and play.stop:
        raise BadField('"name" and "stop" do not go together: "stop" ends every sound')
    return play


def _without_gaps(value: Any) -> Any:
    """Leave out None and NaN inside a field too: JSON has no NaN, and null means "not given"."""
    if isinstance(value, dict):
        return {key: _without_gaps(v) for key, v in value.items() if not _is_gap(v)}
    if isinstance(value, list):
        return [_without_gaps(v) for v in value]
    return value


def _is_gap(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
