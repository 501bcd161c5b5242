"""Deepgram's streaming speech protocol `/v1/speak` (docs/protocol/deepgram.md), and what `/v2/speak` shares with it.

Text in `Speak` messages, `Flush` after each piece that must be spoken to its end, `Clear` for an interruption. Audio
is binary. Each Flush gets one `Flushed`, in order, behind the last audio of its text. After `Cleared` there is neither
audio nor a `Flushed` of what came before it.
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Iterable, Mapping

from telephony_tts.wire.fields import BadField, Fields, Wire, decode_text, parse_object, quote
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    End,
    ErrorEvent,
    Invalid,
    SpokenText,
    Text,
    TurnSent,
    WarningEvent,
)
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, VendorEvent, VendorOptions, query_of, to_wire

MAX_TEXT_CHARS = 2_000
"""The vendor's own limit for one message of `/v1/speak`."""

CODECS = {"linear16": "pcm", "mulaw": "ulaw", "alaw": "alaw"}
RATES_HZ = {
    "linear16": (8_000, 16_000, 24_000, 32_000, 44_100, 48_000),
    "mulaw": (8_000,),
    "alaw": (8_000,),
}
OWN_VOICE = re.compile(r"(aura|aura-2|flux)-[a-z]+-(?P<lang>[a-z]{2})")
"""The vendor's names for voices."""

CLOSE_CODES = {"MESSAGE-0000": 1003, "DATA-0000": 1008, "BIG-0000": 1009, "BIG-0001": 1009, "NET-0000": 1011}
"""The vendor's error codes, and the WebSocket codes that go with them."""

_SPEEDS = (0.7, 1.5)
_QUIET = frozenset({"no_active_turn", "empty_text", "turn_ended", "turn_timeout"})
"""Warnings about turns, which these protocols do not name."""


def refuse(status: int, code: str, message: str) -> Refused:
    """The vendor's form of an HTTP refusal."""
    if code == "unknown_voice":
        code, message = "Bad Request", f"Bad Request: No such model/language/tier combination found. {message}"
    request_id = str(uuid.uuid4())
    body, _ = to_wire({"err_code": code, "err_msg": message, "request_id": request_id})
    header = "".join(char if " " <= char <= "~" else "?" for char in message[:200])
    return Refused(status, body, headers=(("dg-request-id", request_id), ("dg-error", header)))


def open_speak(target: str) -> DeepgramSpeak | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    query = query_of(target)
    speed = query.get("speed")
    if speed is not None and not _SPEEDS[0] <= number(speed) <= _SPEEDS[1]:
        expected = f"expected a number from {_SPEEDS[0]} to {_SPEEDS[1]}"
        return refuse(400, "INVALID_QUERY_PARAMETER", f"speed={quote(speed)}: {expected}")
    options = read_options(query)
    return options if isinstance(options, Refused) else DeepgramSpeak(options)


def read_options(query: Mapping[str, str]) -> VendorOptions | Refused:
    """What both paths have in common. The caller has checked the speed."""
    encoding = query.get("encoding", "linear16")
    if encoding not in CODECS:
        expected = f"expected one of {', '.join(CODECS)} (a WebSocket carries no other encoding)"
        return refuse(400, "UNSUPPORTED_AUDIO_FORMAT", f"encoding={quote(encoding)}: {expected}")
    rates = RATES_HZ[encoding]
    default = "24000" if encoding == "linear16" else "8000"
    rate = query.get("sample_rate", default)
    if rate not in map(str, rates):
        expected = f"expected one of {', '.join(map(str, rates))} with encoding={encoding}"
        return refuse(400, "UNSUPPORTED_AUDIO_FORMAT", f"sample_rate={quote(rate)}: {expected}")
    model = query.get("model")
    known = OWN_VOICE.fullmatch(model or "")
    return VendorOptions(
        codec=CODECS[encoding],
        rate_hz=int(rate),
        voice=model,
        # Most bots never chose "en": it is the default. Our own detection of the language does better then.
        lang=known["lang"] if known is not None and known["lang"] != "en" else None,
        speed=None if "speed" not in query else number(query["speed"]),
        call=query.get("call"),
    )


def number(text: str) -> float:
    """The value of a plain decimal number; 0 for anything else, which no option allows."""
    return float(text) if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", text, re.ASCII) else 0.0


def read_message(data: bytes, is_text: bool) -> Fields | Invalid:
    """The fields of a client's message. The code of `Invalid` is one of `CLOSE_CODES`."""
    if not is_text:
        return Invalid("MESSAGE-0000", "expected JSON text, got a binary message")
    text = decode_text(data)
    message = parse_object(text) if isinstance(text, str) else text
    return Invalid("MESSAGE-0000", message.message) if isinstance(message, Invalid) else Fields(message)


def read_text(message: Fields, most: int, too_long: str) -> str | Invalid:
    """The text of `Speak`. With more than `most` characters the code of `Invalid` is `too_long`."""
    try:
        text = message.text("text", most, too_long)
        if text is None:
            raise BadField('"text" is missing; expected a string')
    except BadField as error:
        code = error.invalid.code if error.invalid.code == too_long else "DATA-0000"
        return Invalid(code, error.invalid.message)
    return text


def unknown_type(message: Fields, expected: str) -> Invalid:
    return Invalid("DATA-0000", f"unknown type {quote(message.get('type'))}; expected {expected}")


def failure(invalid: Invalid) -> CloseSocket:
    return CloseSocket(CLOSE_CODES[invalid.code], f"{invalid.code}: {invalid.message}")


def warning(code: str, description: str) -> Wire:
    return to_wire({"type": "Warning", "code": code.upper(), "description": description})


def warning_of(event: ErrorEvent | WarningEvent) -> Iterable[Wire]:
    """The warning for an event that leaves the connection open. None for what a client of the vendor cannot place."""
    if event.code not in _QUIET:
        yield warning(event.code, event.message)


def model_of(options: VendorOptions) -> tuple[str, str]:
    """The name and the identifier of the model, as greetings tell them."""
    name = options.voice or "default"
    return name, str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


class DeepgramSpeak:
    """One connection to `/v1/speak`. The text between two Flush messages is one turn, named by its number."""

    needs_alignment = False

    def __init__(self, options: VendorOptions) -> None:
        self.options = options
        self.request_id = str(uuid.uuid4())
        self._n_turn = 0
        self._has_text = False
        self._n_replies = 0
        self._flushes: deque[str | None] = deque()
        """The turns of Flush messages that have no answer yet. None: nothing is left to be sent for it."""
        self._closing = False

    def headers(self) -> Iterable[tuple[str, str]]:
        return (("dg-request-id", self.request_id),)

    def greeting(self) -> Iterable[Wire]:
        name, model_uuid = model_of(self.options)
        yield to_wire(
            {"type": "Metadata", "request_id": self.request_id, "model_name": name, "model_version": "1",
             "model_uuid": model_uuid}
        )  # fmt: skip

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        if self._closing:
            return
        message = read_message(data, is_text)
        if isinstance(message, Invalid):
            yield failure(message)
            return
        match message.get("type"):
            case "Speak":
                text = read_text(message, MAX_TEXT_CHARS, "BIG-0001")
                if isinstance(text, Invalid):
                    yield failure(text)
                elif text:
                    self._has_text = True
                    yield Text(text, str(self._n_turn))
            case "Flush":
                yield from self._flush()
            case "Clear":
                self._flushes.clear()
                self._next_turn()
                yield Clear()
                yield Reply(self._answer("Cleared"))
            case "Close":
                self._closing = True
                yield from self._flush()
                if not self._flushes:
                    yield CloseSocket(1000, "closed")
            case _:
                yield failure(unknown_type(message, "Speak, Flush, Clear or Close"))

    def _flush(self) -> Iterable[Step]:
        if self._has_text:
            turn = str(self._n_turn)
            self._flushes.append(turn)
            self._next_turn()
            yield End(turn)
        elif not self._closing:
            self._flushes.append(None)
        yield from map(Reply, self._answers())

    def _next_turn(self) -> None:
        self._n_turn += 1
        self._has_text = False

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        yield payload, False

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket]:
        match event:
            case TurnSent(turn) | Cleared(turn):
                yield from self._ended(turn)
            case ErrorEvent(fatal=False):
                yield from warning_of(event)
                if event.turn is not None:
                    yield from self._ended(event.turn)
            case WarningEvent():
                yield from warning_of(event)

    def _ended(self, ended: str) -> Iterable[Wire | CloseSocket]:
        """Nothing more of a turn will be sent."""
        if ended == str(self._n_turn):
            self._next_turn()  # it ended by itself, so a Flush that comes now has nothing to wait for
        for at, turn in enumerate(self._flushes):
            if turn == ended:
                self._flushes[at] = None
        yield from self._answers()
        if self._closing and not self._flushes:
            yield CloseSocket(1000, "closed")

    def _answers(self) -> Iterable[Wire]:
        """`Flushed` for each Flush whose text has all been sent, in order."""
        while self._flushes and self._flushes[0] is None:
            self._flushes.popleft()
            yield self._answer("Flushed")

    def _answer(self, kind: str) -> Wire:
        self._n_replies += 1
        return to_wire({"type": kind, "sequence_id": self._n_replies - 1})
