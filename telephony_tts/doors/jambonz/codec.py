"""The verb `listen` (or `stream`) of jambonz, which is the WebSocket client (docs/protocol/jambonz.md).

Binary messages are audio, 16-bit little-endian. The first text is the metadata of the call. Everything after it is
JSON text too.
"""

from __future__ import annotations

import json
from array import array
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
from telephony_tts.wire.query import RATES_HZ

CALL_FIELDS = ("call", "callSid")
"""The fields of the metadata that may name the call, in this order."""

MOST_MARKS = 30
"""jambonz drops a mark when it has this many."""

LEAD_MS = 200
"""How much speech jambonz has in advance."""

FLUSH_MS = 80
"""jambonz collects so much audio before it passes it on to its playout buffer. Less would stay where it is, and so
would the marks in it."""

_MARKER = -1
"""jambonz writes a mark into its buffer as this sample, so it takes the sample for a mark."""


class JambonzCodec:
    """The codec of one media leg. `call` and `rate_hz`, the rate of playback, are those of the address, if it has them.
    Without `rate_hz` playback has the rate of the metadata."""

    def __init__(self, call: str | None = None, rate_hz: int | None = None) -> None:
        self._call = call
        self._rate_hz = rate_hz
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
            if isinstance(message, Invalid):
                return message
            return self._event(Fields(message)) if self._has_started else self._start(message)
        except BadField as error:
            return error.invalid

    def _audio(self, data: bytes, want_audio: bool) -> MediaAudio:
        if not self._has_started:
            raise BadField("audio came before the metadata", "bad_order")
        if len(data) % 2:
            raise BadField(f"{len(data)} bytes are not a whole number of samples of 2 bytes")
        return MediaAudio(data) if want_audio else NO_AUDIO

    def _start(self, metadata: dict[str, Any]) -> MediaStart:
        f = Fields(metadata)
        call = self._call or next((metadata[name] for name in CALL_FIELDS if metadata.get(name) is not None), None)
        if not isinstance(call, str) or not CALL_NAME.fullmatch(call):
            raise BadField(
                "the first message must be metadata with the call's name as callSid, 1 to 128 of the characters "
                f"A-Z a-z 0-9 _ . : -; got {quote(call)}"
            )
        mix = f.get("mixType")
        if mix not in (None, "mono"):
            raise BadField(f'"mixType" must be mono, got {quote(mix)}', "unsupported_codec")
        caller_hz = f.get("sampleRate")
        if caller_hz is None:
            caller_hz = 8000
        if not isinstance(caller_hz, int) or caller_hz not in RATES_HZ:
            rates = ", ".join(map(str, RATES_HZ))
            raise BadField(f'"sampleRate" must be one of {rates}, got {quote(caller_hz)}', "unsupported_codec")
        flat = {name: value for name, value in metadata.items() if isinstance(value, str | int | float)}
        stream = flat.get("callSid")
        rate_hz = self._rate_hz or caller_hz
        start = MediaStart(
            call,
            clean(stream) if isinstance(stream, str) else call,
            "pcm",
            rate_hz,
            parameters(flat),
            lead_ms=LEAD_MS,
            caller_format=None if rate_hz == caller_hz else ("pcm", caller_hz),
        )
        self._has_started = True
        return start

    def _event(self, f: Fields) -> FromMedia | None:
        if f.get("event") == "dtmf":
            return MediaDtmf(require("dtmf", f.choice("dtmf", DIGITS), f"one of {DIGITS}"))
        if f.get("type") == "mark":
            data = f.inner("data")
            name = data.name("name", MAX_MARK_CHARS, printable=False)
            event = data.get("event")
            if event == "playout":
                return MediaMark(require("name", name, f"a string of 1 to {MAX_MARK_CHARS} characters"))
            if event in ("cleared", None):
                return None  # the session has ended it already
            raise BadField(f'"event" of a mark must be playout or cleared, got {quote(event)}')
        if f.get("type") == "playDone":
            return None
        what = f.get("event") if f.get("type") is None else f.get("type")
        return Invalid("unknown_type", f"{quote(what)} is not known; known are dtmf, mark and playDone")

    # ---------------------------------------------------------- server → media leg

    def encode(self, message: ToMedia) -> Wire:
        if type(message) is Frame:
            return without_markers(message.payload), False
        if isinstance(message, MediaMark):
            return _json({"type": "mark", "data": {"name": message.name}})
        return _json({"type": "killAudio"})

    def clear_marks(self) -> Wire:
        """Forget the marks that were not reached, for builds in which `killAudio` leaves them."""
        return _json({"type": "clearMarks"})

    def hang_up(self) -> Wire:
        """End the verb. The call goes on with the next one, or ends if there is none."""
        return _json({"type": "disconnect"})


def without_markers(payload: bytes) -> bytes:
    """16-bit samples in which -1 is 0: jambonz would take that sample for a mark. Its two bytes are alike, so the byte
    order does not matter."""
    if b"\xff\xff" not in payload:
        return payload
    samples = array("h", payload)
    at = -1
    try:
        while True:
            at = samples.index(_MARKER, at + 1)
            samples[at] = 0
    except ValueError:
        return samples.tobytes()


def _json(message: dict[str, Any]) -> Wire:
    return clean(json.dumps(message, ensure_ascii=False, separators=(",", ":"))).encode(), True
