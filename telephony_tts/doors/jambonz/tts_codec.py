"""The protocol of a custom streaming voice for jambonz, `/jambonz/tts` (docs/protocol/jambonz-tts.md).

jambonz connects for a call, and the server speaks first. `stream` brings text, `flush` ends a turn, `stop` is an
interruption and the end of the connection. There is no answer to them: the audio is all that jambonz waits for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from telephony_tts.wire.fields import BadField, Fields, Wire, decode_text, parse_object, quote, require
from telephony_tts.wire.messages import Clear, Cleared, End, ErrorEvent, Invalid, SpokenText, Text, TurnSent
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, VendorEvent, VendorOptions, query_of, to_wire

MAX_TEXT_CHARS = 10_000
RATES_HZ = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OWN_VOICE = re.compile("default")
"""jambonz has no voices of its own: it sends the name that its operator typed."""

_NO_SPACES = re.compile(r"[\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef]")
"""Letters and punctuation of scripts that put no space between words."""


def refuse(status: int, code: str, message: str) -> Refused:
    """An HTTP refusal. jambonz shows its operator only the status."""
    return Refused(status, to_wire({"type": "error", "error": message, "code": code.lower()})[0])


def open_tts(target: str) -> JambonzVoice | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    query = query_of(target)
    rate = query.get("sampleRate") or query.get("sample_rate") or "8000"
    if rate not in map(str, RATES_HZ):
        return refuse(400, "BAD_REQUEST", f"sampleRate={quote(rate)}: expected one of {', '.join(map(str, RATES_HZ))}")
    in_base64 = query.get("base64_encoding", "false").lower()
    if in_base64 not in ("true", "false"):
        return refuse(400, "BAD_REQUEST", f"base64_encoding={quote(in_base64)}: expected true or false")
    language = query.get("language")
    options = VendorOptions(
        codec="pcm",
        rate_hz=int(rate),
        voice=query.get("voice") or None,
        lang=re.split("[-_]", language)[0].lower() if language else None,
        call=query.get("call"),
    )
    return JambonzVoice(options, in_base64=in_base64 == "true")


class JambonzVoice:
    """One connection. The text between two flushes is one turn, named by its number."""

    needs_alignment = False

    def __init__(self, options: VendorOptions, *, in_base64: bool) -> None:
        self.options = options
        self._in_base64 = in_base64
        self._n_turn = 0
        self._has_text = False
        self._is_closed = False
        """The turn of the text was ended before its flush."""

    def headers(self) -> Iterable[tuple[str, str]]:
        return ()

    def greeting(self) -> Iterable[Wire]:
        yield to_wire(
            {"type": "connect", "data": {"sample_rate": self.options.rate_hz, "base64_encoding": self._in_base64}}
        )

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        try:
            message = _message(data, is_text)
            match message.get("type") or message.get("command"):
                case "stream":
                    text = require("text", message.text("text", MAX_TEXT_CHARS, "text_too_long"), "a string")
                    yield from self._stream(text)
                case "flush":
                    yield from self._flush()
                case "clear":
                    self._next_turn()
                    yield Clear()
                case "stop":
                    self._next_turn()
                    yield Clear()
                    yield CloseSocket(1000, "stopped")
                case "connect" | "keepalive":
                    pass
                case unknown:
                    expected = "expected stream, flush, clear, stop or keepalive"
                    raise BadField(f"unknown type {quote(unknown)}; {expected}", "unknown_type")
        except BadField as error:
            yield Reply(_error(error.invalid.message), refused=error.invalid.message)

    def _stream(self, text: str) -> Iterable[Step]:
        if not text.strip():
            return
        text = _spaced(text)
        self._has_text = True
        yield Text(text, str(self._n_turn))
        if self._is_closed:
            self._next_turn()
            self._has_text = True
            yield Text(text, str(self._n_turn))

    def _flush(self) -> Iterable[Step]:
        if self._has_text:
            turn = str(self._n_turn)
            self._next_turn()
            yield End(turn)

    def _next_turn(self) -> None:
        self._n_turn += 1
        self._has_text = self._is_closed = False

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        if self._in_base64:
            yield to_wire({"type": "data", "data": {"audio": base64.b64encode(payload).decode()}})
        else:
            yield payload, False

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket]:
        match event:
            case ErrorEvent(code="turn_closed", about=about):
                self._is_closed = about == str(self._n_turn)
            case ErrorEvent(message=message, turn=turn):
                self._ended(turn)
                yield _error(message)
            case TurnSent(turn=turn) | Cleared(turn=turn):
                self._ended(turn)

    def _ended(self, turn: str | None) -> None:
        """A turn is over, perhaps before its flush. Text that comes now belongs to another."""
        if turn == str(self._n_turn):
            self._next_turn()


def _spaced(text: str) -> str:
    """The text with one space behind it, as the reference bridge joins pieces. Chinese and Japanese need none."""
    text = text.strip(" ")
    return text if text[-1].isspace() or _NO_SPACES.match(text[-1]) else f"{text} "


def _message(data: bytes, is_text: bool) -> Fields:
    """Raises BadField."""
    if not is_text:
        raise BadField("expected JSON text, got a binary message", "binary_not_expected")
    text = decode_text(data)
    message = text if isinstance(text, Invalid) else parse_object(text)
    if isinstance(message, Invalid):
        raise BadField(message.message, message.code)
    return Fields(message)


def _error(message: str) -> Wire:
    return to_wire({"type": "error", "error": message})
