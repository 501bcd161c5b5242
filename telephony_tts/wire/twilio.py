"""Twilio Media Streams; Twilio is the WebSocket client (docs/protocol/twilio.md).

Twilio sends JSON text only; its numbers arrive as strings or integers. All audio is 8 kHz μ-law, base64 in JSON.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Any

from telephony_tts.wire.fields import (
    CALL_NAME,
    MAX_MARK_CHARS,
    MAX_MS,
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
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaClear,
    MediaDtmf,
    MediaMark,
    MediaStart,
    MediaStop,
    ToMedia,
)

EVENTS = ("connected", "start", "media", "dtmf", "mark", "stop")
RATE_HZ = 8000

NO_AUDIO = MediaAudio(b"")
"""Every media message decodes to this while the caller's audio is not wanted."""

# Matches only if a full parse of a well-formed message would find "event": "media" at the top level: before it there
# are only flat string or number fields without escapes, none of them "event". Everything else goes to the full parse.
# Possessive quantifiers (`*+`), so a hostile message costs one pass.
_CERTAINLY_MEDIA = re.compile(
    rb"""[ \t\r\n]*\{[ \t\r\n]*
    (?: "(?!event") [^"\\]*+ "[ \t\r\n]*:[ \t\r\n]* (?: "[^"\\]*+" | [0-9]++ ) [ \t\r\n]*,[ \t\r\n]* )*+
    "event"[ \t\r\n]*:[ \t\r\n]*"media"[ \t\r\n]*[,}]""",
    re.VERBOSE,
)

_ADDRESS = re.compile(r"(wss?|https?)://(\[[^\]]*\]|[^/?#:@\[]+)(?::[0-9]*)?([/?#].*)?", re.DOTALL)

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class TwilioCodec:
    """The codec of one media leg. It learns `stream_sid` from the peer's `start`."""

    def __init__(self) -> None:
        self.stream_sid: str | None = None
        self._media_head = b""
        self._mark_head = ""
        self._clear = b""

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: str | bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`.

        Without `want_audio` a media message is recognised by its first bytes and becomes `NO_AUDIO`; its payload is
        not read.
        """
        if not is_text:
            return Invalid("binary_not_expected", "Twilio media streams carry JSON text, not binary messages")
        if not want_audio and self.stream_sid is not None and isinstance(data, bytes) and _CERTAINLY_MEDIA.match(data):
            return NO_AUDIO
        text = decode_text(data)
        if isinstance(text, Invalid):
            return text
        message = parse_object(text)
        if isinstance(message, Invalid):
            return message
        try:
            return self._event(Fields(message), want_audio)
        except BadField as error:
            return error.invalid

    def _event(self, f: Fields, want_audio: bool) -> FromMedia | None:
        event = f.get("event")
        if event == "connected":
            return None
        if event == "start":
            return self._start(f)
        if event not in EVENTS:
            return Invalid("unknown_type", f'"event" {quote(event)} is not known; known events: {", ".join(EVENTS)}')
        if self.stream_sid is None:
            raise BadField(f'"{event}" came before "start"', "bad_order")
        if event == "media":
            return _audio(f.inner("media")) if want_audio else NO_AUDIO
        if event == "dtmf":
            return MediaDtmf(_digit(f.inner("dtmf")))
        if event == "mark":
            name = f.inner("mark").name("name", MAX_MARK_CHARS, printable=False)
            return MediaMark(require("name", name, f"a string of 1 to {MAX_MARK_CHARS} characters"))
        return MediaStop()

    def _start(self, f: Fields) -> MediaStart:
        if self.stream_sid is not None:
            raise BadField('a second "start" on one stream', "bad_order")
        start = f.inner("start")
        call = require("callSid", start.name("callSid"), "the call's name")
        if not CALL_NAME.fullmatch(call):
            raise BadField(f'"callSid" must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, got {quote(call)}')
        stream = require("streamSid", start.name("streamSid") or f.name("streamSid"), "the stream's name")
        if start.get("mediaFormat") is not None:
            _check_format(start.inner("mediaFormat"))
        parameters = _parameters(start.get("customParameters"))
        self._begin(stream)
        return MediaStart(call, stream, "ulaw", RATE_HZ, parameters)

    def _begin(self, stream_sid: str) -> None:
        self.stream_sid = stream_sid
        sid = _to_json(stream_sid)
        self._media_head = f'{{"event":"media","streamSid":{sid},"media":{{"payload":"'.encode()
        self._mark_head = f'{{"event":"mark","streamSid":{sid},"mark":{{"name":'
        self._clear = f'{{"event":"clear","streamSid":{sid}}}'.encode()

    # ---------------------------------------------------------- server → media leg

    def encode(self, message: ToMedia) -> Wire:
        """Encode one message for Twilio. Raises RuntimeError before `start`, which names the stream."""
        if self.stream_sid is None:
            raise RuntimeError('nothing can be sent to Twilio before its "start"')
        if type(message) is Frame:
            return self._media_head + b2a_base64(message.payload, newline=False) + b'"}}', True
        if isinstance(message, MediaMark):
            return (self._mark_head + clean(_to_json(message.name)) + "}}").encode(), True
        assert isinstance(message, MediaClear)
        return self._clear, True


def _audio(media: Fields) -> MediaAudio | None:
    if media.get("track") not in ("inbound", "inbound_track", None):
        return None  # the server's own speech, sent back by Twilio
    payload = media.get("payload")
    if not isinstance(payload, str):
        raise BadField(f'"payload" must be base64 in a string, got {quote(payload)}')
    try:
        audio = a2b_base64(payload, strict_mode=True)
    except ValueError as error:
        raise BadField(f'"payload" is not base64: {error}') from None
    return MediaAudio(audio, _timestamp_ms(media.get("timestamp")))


def _timestamp_ms(value: Any) -> int | None:
    """Twilio's media clock, from a string of digits or a number; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MAX_MS)):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MS else None


def _digit(dtmf: Fields) -> str:
    digit = dtmf.get("digit")
    if isinstance(digit, str) and len(digit) == 1 and digit in "0123456789*#ABCD":
        return digit
    raise BadField(f'"digit" must be one of 0-9 * # A-D, got {quote(digit)}')


def _check_format(media_format: Fields) -> None:
    encoding = media_format.get("encoding")
    rate = media_format.get("sampleRate")
    if encoding not in (None, "audio/x-mulaw") or rate not in (None, RATE_HZ, str(RATE_HZ)):
        got = f"{quote(encoding)} at {quote(rate)}"
        raise BadField(f'"mediaFormat" must be audio/x-mulaw at {RATE_HZ} Hz, got {got}', "unsupported_codec")


def _parameters(value: Any) -> dict[str, str]:
    """customParameters as strings. A value that is not a scalar is left out: TwiML has no form for it."""
    if not isinstance(value, dict):
        return {}
    return {
        clean(name): clean(v) if isinstance(v, str) else json.dumps(v)
        for name, v in value.items()
        if isinstance(v, str | int | float)
    }


def signature(auth_token: str, url: str, params: Mapping[str, str] | None = None) -> str:
    """X-Twilio-Signature of a request: base64(HMAC-SHA1(auth_token, url + each form name and value, by name)).

    Source: https://www.twilio.com/docs/usage/security. A WebSocket handshake has no form, so `params` is empty.
    """
    signed = url + "".join(name + value for name, value in sorted((params or {}).items()))
    digest = hmac.digest(_utf8(auth_token), _utf8(signed), "sha1")
    return base64.b64encode(digest).decode()


def verify(auth_token: str, url: str, header: str | None) -> bool:
    """Whether `header` signs the handshake for `url`, the public wss:// address Twilio dialled.

    Twilio signs with or without the port, depending on the product. So both forms of `url` are tried, as in Twilio's
    own libraries. With an empty token every signature is refused.
    """
    if not auth_token or not header:
        return False
    given = _utf8(header)
    matches = [hmac.compare_digest(signature(auth_token, spelling).encode(), given) for spelling in _spellings(url)]
    return any(matches)


def _spellings(url: str) -> tuple[str, ...]:
    """`url` unchanged, without its port, and with the scheme's default port."""
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        return (url,)
    scheme, host, path = parts.groups(default="")
    port = 443 if scheme in ("wss", "https") else 80
    return (url, f"{scheme}://{host}{path}", f"{scheme}://{host}:{port}{path}")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
