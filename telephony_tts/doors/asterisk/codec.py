"""Asterisk's chan_websocket (docs/protocol/asterisk.md): binary audio, and control messages as JSON or plain lines.

The first message of a call, MEDIA_START, settles the form of its control messages. The codec answers in the same form:
Asterisk reads no other. Asterisk silently drops a control message longer than 128 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from telephony_tts.wire.fields import CALL_NAME, BadField, Fields, Wire, clean, decode_text, parse_object, quote
from telephony_tts.wire.messages import (
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaBuffered,
    MediaDtmf,
    MediaFlow,
    MediaMark,
    MediaStart,
    ToMedia,
)
from telephony_tts.wire.query import PTIMES_MS

FORMATS: Mapping[str, tuple[str, int]] = {
    "ulaw": ("ulaw", 8000),
    "alaw": ("alaw", 8000),
    "slin": ("pcm", 8000),
    "slin16": ("pcm", 16000),
    "slin24": ("pcm", 24000),
    "slin48": ("pcm", 48000),
}
"""Asterisk's names of the supported formats: codec and rate in Hz."""
RATES_HZ = tuple(sorted({rate_hz for _, rate_hz in FORMATS.values()}))

CALL_VARIABLE = "TTS_CALL"
"""The channel variable with which a dialplan names the call."""

MAX_CONTROL_BYTES = 128
MAX_QUEUE_FRAMES = 1000
"""The size of Asterisk's own queue. It drops frames beyond that."""
XON_FRAMES = 800
"""Asterisk sends XON below so many queued frames."""
LEAD_MS = 1000
"""The default of how far ahead of real time frames are sent. Asterisk plays them from its queue, one per tick."""
_BULKS_IN_LEAD = 5
"""A fifth of the lead is sent at a time: few messages, and the queue stays nearly full."""
MAX_AUDIO_BYTES = 65_500
"""The most audio in one message. At 65,535 bytes Asterisk was seen to drop the call."""

NO_AUDIO = MediaAudio(b"")
_DIGITS = frozenset("0123456789*#ABCD")
_QUIET = frozenset({"MEDIA_BUFFERING_COMPLETED", "QUEUE_DRAINED"})
"""Events that need no action here: answers to commands that other programs may send."""
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class AsteriskCodec:
    """The codec of one media leg. It learns the form of control messages from MEDIA_START."""

    def __init__(self, lead_ms: int = LEAD_MS) -> None:
        self._lead_ms = lead_ms
        self.is_json: bool | None = None
        """Whether control messages are JSON; None before MEDIA_START."""
        self._sample_bytes = 1

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`."""
        if not is_text:
            if len(data) % self._sample_bytes:
                return Invalid("bad_field", f"{len(data)} bytes are not a whole number of samples of 2 bytes")
            # Asterisk may send the caller's first frames before MEDIA_START.
            return MediaAudio(data) if want_audio and self.is_json is not None else NO_AUDIO
        text = decode_text(data)
        if isinstance(text, Invalid):
            return text
        try:
            if text.lstrip().startswith("{"):
                message = parse_object(text)
                if isinstance(message, Invalid):
                    return message
                return self._event(str(message.get("event")), Fields(message), is_json=True)
            name, fields = _plain(text)
            return self._event(name, Fields(fields), is_json=False)
        except BadField as error:
            return error.invalid

    def _event(self, event: str, f: Fields, *, is_json: bool) -> FromMedia | None:
        if event == "MEDIA_START":
            return self._start(f, is_json)
        if self.is_json is None:
            raise BadField(f"{quote(event)} came before MEDIA_START", "bad_order")
        match event:
            case "MEDIA_MARK_PROCESSED":
                name = f.name("correlation_id")
                return None if name is None else MediaMark(name)
            case "MEDIA_XOFF" | "MEDIA_XON":
                return MediaFlow(event == "MEDIA_XON")
            case "STATUS":
                n_frames = _whole(f, "queue_length")
                if n_frames is not None and n_frames > MAX_QUEUE_FRAMES:
                    raise BadField(f"a queue of {quote(n_frames)} frames; Asterisk's has room for {MAX_QUEUE_FRAMES}")
                return None if n_frames is None else MediaBuffered(n_frames, _flag(f, "media_paused"))
            case "DTMF_END":
                digit = f.get("digit")
                if not isinstance(digit, str) or digit not in _DIGITS:
                    raise BadField(f'"digit" must be one of 0-9 * # A-D, got {quote(digit)}')
                return MediaDtmf(digit)
            case "ERROR":
                return Invalid("peer_error", f"Asterisk says: {quote(f.get('error_text'))}")
            case _ if event in _QUIET:
                return None
        return Invalid("unknown_type", f"{quote(event)} is not a known event of chan_websocket")

    def _start(self, f: Fields, is_json: bool) -> MediaStart:
        if self.is_json is not None:
            raise BadField("a second MEDIA_START on one leg", "bad_order")
        name = f.get("format")
        if not isinstance(name, str) or name not in FORMATS:
            known = ", ".join(f"c({each})" for each in FORMATS)
            raise BadField(f"format {quote(name)} cannot be spoken; dial with one of {known}", "unsupported_codec")
        codec, rate_hz = FORMATS[name]
        variables = _variables(f.get("channel_variables"))
        channel_id = f.get("channel_id")
        call = variables.get(CALL_VARIABLE) or channel_id
        if not isinstance(call, str) or not CALL_NAME.fullmatch(call):
            where = CALL_VARIABLE if CALL_VARIABLE in variables else "channel_id"
            raise BadField(f"{where} must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, got {quote(call)}")
        ptime_ms = _whole(f, "ptime")
        if ptime_ms is not None and ptime_ms not in PTIMES_MS:
            raise BadField(f"ptime must be one of {', '.join(map(str, PTIMES_MS))}, got {quote(ptime_ms)}")
        for field in ("channel", "channel_id", "connection_id"):
            value = f.get(field)
            if isinstance(value, str):
                variables[field] = clean(value)
        self.is_json = is_json
        self._sample_bytes = 2 if codec == "pcm" else 1
        bulk_ms = self._lead_ms // _BULKS_IN_LEAD
        return MediaStart(call, str(channel_id or call), codec, rate_hz, variables, ptime_ms, self._lead_ms, bulk_ms)

    # ---------------------------------------------------------- server → media leg

    def encode(self, message: ToMedia) -> Wire:
        """Encode one message for Asterisk.

        Raises RuntimeError before MEDIA_START, and ValueError for a mark whose name makes the message too long:
        Asterisk would drop it.
        """
        if type(message) is Frame:
            return message.payload, False
        if isinstance(message, MediaMark):
            return self.command("MARK_MEDIA", message.name)
        return self.command("FLUSH_MEDIA")

    def command(self, name: str, correlation_id: str | None = None) -> Wire:
        """Encode a control message. Raises like `encode`."""
        if self.is_json is None:
            raise RuntimeError("nothing can be sent to Asterisk before its MEDIA_START")
        if self.is_json:
            given = {} if correlation_id is None else {"correlation_id": correlation_id}
            payload = _to_json({"command": name, **given}).encode()
        else:
            payload = (name if correlation_id is None else f"{name} {correlation_id}").encode()
        if len(payload) > MAX_CONTROL_BYTES:
            raise ValueError(f"{name} has {len(payload)} bytes; Asterisk drops what has over {MAX_CONTROL_BYTES}")
        return payload, True


def _plain(text: str) -> tuple[str, dict[str, Any]]:
    """Split a plain line into its event and its `name:value` words. A word without a name is the correlation id."""
    event, *words = text.split()[:64] or [""]
    fields: dict[str, Any] = {}
    for word in words:
        name, colon, value = word.partition(":")
        if colon:
            fields.setdefault(name, value)
        else:
            fields.setdefault("correlation_id", word)
    return event, fields


def _variables(value: Any) -> dict[str, str]:
    """Channel variables as strings. Leading underscores mark inheritance in Asterisk and are not part of the name."""
    if not isinstance(value, dict):
        return {}
    return {clean(name.lstrip("_")): clean(item) for name, item in value.items() if isinstance(item, str)}


def _whole(f: Fields, field: str) -> int | None:
    """A count: a number in JSON, digits in a plain line; None for anything else."""
    value = f.get(field)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _flag(f: Fields, field: str) -> bool:
    return f.get(field) in (True, "true")
