"""Vonage Voice API WebSockets; Vonage is the WebSocket client (docs/protocol/vonage.md).

Binary messages are audio, 16-bit little-endian, 20 ms each. Everything else is JSON text. The first text names the
audio's rate, and has the custom headers of the NCCO beside the standard fields.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
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
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaDtmf,
    MediaMark,
    MediaStart,
    ToMedia,
)
from telephony_tts.wire.native_media import DIGITS, NO_AUDIO, parameters

RATES_HZ = (8000, 16000, 24000)
FRAME_MS = 20
"""Vonage plays exactly this much of each binary message."""

CALL_FIELDS = ("call", "uuid")
"""The custom headers that may name the call, in this order."""

EVENTS = ("websocket:connected", "websocket:cleared", "websocket:notify", "websocket:dtmf")

MAX_TOKEN_AGE_S = 300
"""How old a token without `exp` may be."""

MAX_SKEW_S = 60
"""By how much Vonage's clock may be ahead of ours."""

MAX_USED_TOKENS = 65_536
"""So many tokens are remembered, the newest."""

_STANDARD = frozenset({"event", "content-type"})
_FORMAT = re.compile(r"audio/l16; *rate=([0-9]{4,5})", re.ASCII | re.IGNORECASE)
_CLEAR = b'{"action":"clear"}'
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class VonageCodec:
    """The codec of one media leg. `call` is the call's name if the address has it."""

    def __init__(self, call: str | None = None) -> None:
        self._call = call
        self._has_started = False

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`."""
        try:
            if not is_text:
                return self._audio(data, want_audio)
            text = decode_text(data)
            if isinstance(text, Invalid):
                return text
            message = parse_object(text)
            return message if isinstance(message, Invalid) else self._event(message)
        except BadField as error:
            return error.invalid

    def _audio(self, data: bytes, want_audio: bool) -> MediaAudio:
        if not self._has_started:
            raise BadField('audio came before "websocket:connected"', "bad_order")
        if len(data) % 2:
            raise BadField(f"{len(data)} bytes are not a whole number of samples of 2 bytes")
        return MediaAudio(data) if want_audio else NO_AUDIO

    def _event(self, message: dict[str, Any]) -> FromMedia | None:
        f = Fields(message)
        event = f.get("event")
        if event == "websocket:connected":
            return self._start(message)
        if event not in EVENTS:
            return Invalid("unknown_type", f'"event" {quote(event)} is not known; known events: {", ".join(EVENTS)}')
        if not self._has_started:
            raise BadField(f'"{event}" came before "websocket:connected"', "bad_order")
        if event == "websocket:notify":
            name = f.inner("payload").name("id", MAX_MARK_CHARS, printable=False)
            return MediaMark(require("id", name, f"a string of 1 to {MAX_MARK_CHARS} characters"))
        if event == "websocket:dtmf":
            return MediaDtmf(require("digit", f.choice("digit", DIGITS), f"one of {DIGITS}"))
        return None

    def _start(self, message: dict[str, Any]) -> MediaStart:
        if self._has_started:
            raise BadField('a second "websocket:connected" on one leg', "bad_order")
        form = message.get("content-type")
        found = _FORMAT.fullmatch(form) if isinstance(form, str) else None
        if found is None or int(found[1]) not in RATES_HZ:
            rates = ", ".join(map(str, RATES_HZ))
            raise BadField(
                f'"content-type" must be audio/l16;rate=R with R one of {rates}, got {quote(form)}', "unsupported_codec"
            )
        # Values that are not flat have no form among the parameters of a call.
        headers = {
            name: value
            for name, value in message.items()
            if name not in _STANDARD and isinstance(value, str | int | float)
        }
        given = (headers[name] for name in CALL_FIELDS if name in headers)
        call = self._call or next(given, None)
        if not isinstance(call, str) or not CALL_NAME.fullmatch(call):
            raise BadField(
                "the call needs a name of 1 to 128 of the characters A-Z a-z 0-9 _ . : -, as the custom header "
                f'"call" of the NCCO or as ?call= of the uri; got {quote(call)}'
            )
        start = MediaStart(call, call, "pcm", int(found[1]), parameters(headers), FRAME_MS)
        self._has_started = True
        return start

    # ---------------------------------------------------------- server → media leg

    def encode(self, message: ToMedia) -> Wire:
        if type(message) is Frame:
            return message.payload, False
        if isinstance(message, MediaMark):
            return ('{"action":"notify","payload":{"id":' + clean(_to_json(message.name)) + "}}").encode(), True
        return _CLEAR, True


# -------------------------------------------------------------------- the signature


class TokenVerifier:
    """Checks the tokens of one account. It remembers each that was used, as long as it could be used again."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._used: dict[bytes, float] = {}
        """Each used token, and until when it is valid. The oldest stands first."""

    def flaw(self, token: str, now_s: float) -> str | None:
        """What is wrong with a token; None if it is valid and was not used. `now_s` is in seconds since 1970."""
        if verify(self._secret, token, now_s) is None:
            return 'Authorization is no JWT that Vonage signed; set "authorization":{"type":"vonage"} in the NCCO'
        if token_identity(token) in self._used:
            return "the JWT was used before: this request is a replay"
        return None

    def use(self, token: str, now_s: float) -> None:
        """Remember a token that `flaw` found nothing wrong with."""
        valid_until_s = verify(self._secret, token, now_s)
        if valid_until_s is None:
            return
        if len(self._used) >= MAX_USED_TOKENS:
            self._used = {used: until_s for used, until_s in self._used.items() if until_s >= now_s}
        while len(self._used) >= MAX_USED_TOKENS:
            del self._used[next(iter(self._used))]
        self._used[token_identity(token)] = valid_until_s


def token_identity(token: str) -> bytes:
    """What names a signed token: its `jti`, or the whole of it if it has none."""
    claims = _part(token.rpartition(".")[0].partition(".")[2]) or {}
    name = claims.get("jti")
    text = token if name is None else f"jti {_to_json(name)}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def verify(secret: str, token: str, now_s: float) -> float | None:
    """Until when a JWT is valid that Vonage signed with the account's signature secret. None if it is not, at `now_s`.

    Only HS256 is accepted. A token must not be from the future, and not be past its `exp`. Without `exp`, which
    Vonage leaves out, it may be `MAX_TOKEN_AGE_S` old. Times are in seconds since 1970. Never raises.
    """
    signed, dot, signature = token.rpartition(".")
    head, claims = _part(signed.partition(".")[0]), _part(signed.partition(".")[2])
    if not secret or not dot or head is None or claims is None or head.get("alg") != "HS256":
        return None
    digest = hmac.digest(secret.encode("utf-8", "surrogatepass"), signed.encode("utf-8", "surrogatepass"), "sha256")
    expected = base64.urlsafe_b64encode(digest).rstrip(b"=")
    if not hmac.compare_digest(expected, signature.encode("utf-8", "surrogatepass")):
        return None
    issued_s = _time(claims.get("iat"))
    if issued_s is None or issued_s > now_s + MAX_SKEW_S:
        return None
    if claims.get("exp") is None:
        return issued_s + MAX_TOKEN_AGE_S if issued_s >= now_s - MAX_TOKEN_AGE_S else None
    expires_s = _time(claims["exp"])
    return expires_s if expires_s is not None and expires_s > now_s else None


def _part(text: str) -> dict[str, Any] | None:
    """A part of a JWT: a JSON object in base64url without padding (RFC 7515 §2)."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        value = parse_object(raw.decode())
    except (ValueError, binascii.Error):
        return None
    return value if isinstance(value, dict) else None


def _time(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
