"""The native media leg (docs/protocol/native-media.md): binary audio, and JSON for everything else.

It is for a process that has the telephone's audio itself, like sip_bridge. It supports every codec and rate of a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from telephony_tts.wire.fields import (
    CALL_NAME,
    MAX_MARK_CHARS,
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
    ErrorEvent,
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaDtmf,
    MediaHold,
    MediaMark,
    MediaStart,
    MediaStop,
    MediaTones,
    ToMedia,
)
from telephony_tts.wire.query import CODECS, MAX_LEAD_MS, PTIMES_MS, RATES_HZ

TYPES = ("start", "mark", "dtmf", "hold", "stop")
HOLD_STATES = ("started", "ended")
DIGITS = "0123456789*#ABCD"
MAX_PARAMETERS = 64
MAX_PARAMETER_CHARS = 1024

NO_AUDIO = MediaAudio(b"")
"""Every binary message decodes to this while the caller's audio is not wanted."""

_CLEAR = b'{"type":"clear"}'
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NativeMediaCodec:
    """The codec of one media leg."""

    def __init__(self) -> None:
        self._has_started = False
        self._sample_bytes = 1
        self.sends_dtmf = False
        """Whether the leg takes tones for the telephone. Its `start` says so."""

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia:
        """Read one WebSocket message. Never raises: an unreadable message is `Invalid`."""
        try:
            if not is_text:
                return self._audio(data, want_audio)
            text = decode_text(data)
            if isinstance(text, Invalid):
                return text
            message = parse_object(text)
            return message if isinstance(message, Invalid) else self._event(Fields(message))
        except BadField as error:
            return error.invalid

    def _audio(self, data: bytes, want_audio: bool) -> MediaAudio:
        if not self._has_started:
            raise BadField('audio came before "start"', "bad_order")
        if len(data) % self._sample_bytes:
            raise BadField(f"{len(data)} bytes are not a whole number of samples of {self._sample_bytes} bytes")
        return MediaAudio(data) if want_audio else NO_AUDIO

    def _event(self, f: Fields) -> FromMedia:
        event = f.get("type")
        if event == "start":
            return self._start(f)
        if event not in TYPES:
            return Invalid("unknown_type", f'"type" {quote(event)} is not known; known types: {", ".join(TYPES)}')
        if not self._has_started:
            raise BadField(f'"{event}" came before "start"', "bad_order")
        if event == "mark":
            name = f.name("name", MAX_MARK_CHARS, printable=False)
            return MediaMark(require("name", name, f"a string of 1 to {MAX_MARK_CHARS} characters"))
        if event == "dtmf":
            return MediaDtmf(require("digit", f.choice("digit", DIGITS), f"one of {DIGITS}"))
        if event == "hold":
            state = require("state", f.choice("state", HOLD_STATES), f"one of {', '.join(HOLD_STATES)}")
            return MediaHold(state == "started")
        return MediaStop(f.name("reason") or "hangup")

    def _start(self, f: Fields) -> MediaStart:
        if self._has_started:
            raise BadField('a second "start" on one leg', "bad_order")
        call = require("call", f.name("call"), "the call's name")
        if not CALL_NAME.fullmatch(call):
            raise BadField(f'"call" must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, got {quote(call)}')
        codec = f.choice("codec", CODECS) or "ulaw"
        rate_hz = _one_of(f, "rate_hz", RATES_HZ) or 8000
        if codec != "pcm" and rate_hz != 8000:
            raise BadField(f'"rate_hz" must be 8000 with codec {codec}; other rates go with pcm', "unsupported_codec")
        start = MediaStart(
            call,
            f.name("stream") or call,
            codec,
            rate_hz,
            parameters(f.get("parameters")),
            _one_of(f, "ptime_ms", PTIMES_MS),
            f.whole("lead_ms", MAX_LEAD_MS),
        )
        self.sends_dtmf = f.flag("dtmf")
        self._has_started = True
        self._sample_bytes = 2 if codec == "pcm" else 1
        return start

    # ---------------------------------------------------------- server → media leg

    def encode(self, message: ToMedia) -> Wire:
        if type(message) is Frame:
            return message.payload, False
        if isinstance(message, MediaMark):
            return ('{"type":"mark","name":' + clean(_to_json(message.name)) + "}").encode(), True
        if isinstance(message, MediaTones):
            return _to_json(
                {"type": "dtmf", "digits": message.digits, "on_ms": message.on_ms, "off_ms": message.off_ms}
            ).encode(), True
        return _CLEAR, True

    def complaint(self, mistake: Invalid) -> Wire:
        """Encode an error for the peer about one of its messages."""
        error = ErrorEvent(mistake.code, mistake.message)
        return clean(_to_json({"type": "error", "code": error.code, "message": error.message})).encode(), True


def parameters(value: Any) -> dict[str, str]:
    """The parameters of a call, as strings. Raises BadField if they are not a flat object, or too many or too long."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadField(f'"parameters" must be an object, got {quote(value)}')
    if len(value) > MAX_PARAMETERS:
        raise BadField(f'"parameters" has {len(value)} fields; the limit is {MAX_PARAMETERS}')
    given = {}
    for name, item in value.items():
        if not isinstance(item, str | int | float):
            raise BadField(f'"parameters" must hold strings, numbers or true and false; {quote(name)} is {quote(item)}')
        text = clean(item) if isinstance(item, str) else json.dumps(item)
        if max(len(name), len(text)) > MAX_PARAMETER_CHARS:
            raise BadField(f'"parameters": {quote(name)} is longer than {MAX_PARAMETER_CHARS} characters')
        given[clean(name)] = text
    return given


def _one_of(f: Fields, field: str, allowed: tuple[int, ...]) -> int | None:
    value = f.whole(field, max(allowed))
    if value is not None and value not in allowed:
        raise BadField(f'"{field}" must be one of {", ".join(map(str, allowed))}, got {value}')
    return value
