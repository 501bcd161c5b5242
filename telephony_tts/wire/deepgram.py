"""Deepgram's streaming speech protocol `/v1/speak` (docs/protocol/deepgram.md).

Text in `Speak` messages, `Flush` after each piece that must be spoken to its end, `Clear` for an interruption. Audio
is binary. Each Flush gets one `Flushed`, in order, behind the last audio of its text. After `Cleared` there is neither
audio nor a `Flushed` of what came before it.
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Iterable

from telephony_tts.wire.fields import BadField, Fields, Wire, decode_text, parse_object, quote
from telephony_tts.wire.messages import Clear, End, Invalid, SpokenText, Text, TurnSent
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, VendorEvent, VendorOptions, query_of, to_wire

MAX_TEXT_CHARS = 2_000
"""The vendor's own limit for one message."""

CODECS = {"linear16": "pcm", "mulaw": "ulaw", "alaw": "alaw"}
RATES_HZ = {
    "linear16": (8_000, 16_000, 24_000, 32_000, 48_000),
    "mulaw": (8_000,),
    "alaw": (8_000,),
}
OWN_VOICE = re.compile(r"aura(-2)?-[a-z]+-(?P<lang>[a-z]{2})")
"""The vendor's names for voices."""


def refuse(status: int, code: str, message: str) -> Refused:
    """The vendor's form of an HTTP refusal."""
    request_id = str(uuid.uuid4())
    _, body = b"", to_wire({"err_code": code, "err_msg": message, "request_id": request_id})[0]
    return Refused(status, body, headers=(("dg-request-id", request_id), ("dg-error", message[:200])))


def open_speak(target: str) -> DeepgramSpeak | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    options = read_options(target)
    return options if isinstance(options, Refused) else DeepgramSpeak(options)


def read_options(target: str) -> VendorOptions | Refused:
    query = query_of(target)
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
    speed = query.get("speed")
    if speed is not None and not re.fullmatch(r"[0-9](\.[0-9]{1,3})?", speed):
        return refuse(400, "INVALID_QUERY_PARAMETER", f"speed={quote(speed)}: expected a number such as 1.1")
    return VendorOptions(
        codec=CODECS[encoding],
        rate_hz=int(rate),
        voice=query.get("model"),
        speed=None if speed is None else float(speed),
        call=query.get("call"),
    )


class DeepgramSpeak:
    """One connection. The text between two Flush messages is one turn, named by its number."""

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
        model = self.options.voice or "default"
        yield to_wire(
            {"type": "Metadata", "request_id": self.request_id, "model_name": model, "model_version": "1",
             "model_uuid": str(uuid.uuid5(uuid.NAMESPACE_DNS, model))}
        )

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        if self._closing:
            return
        message = _message(data, is_text)
        if isinstance(message, Invalid):
            yield CloseSocket(1003, f"MESSAGE-0000: {message.message}")
            return
        match message.get("type"):
            case "Speak":
                yield from self._speak(message)
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
            case unknown:
                expected = "expected Speak, Flush, Clear or Close"
                yield CloseSocket(1003, f"MESSAGE-0000: unknown type {quote(unknown)}; {expected}")

    def _speak(self, message: Fields) -> Iterable[Step]:
        try:
            text = message.text("text", MAX_TEXT_CHARS, "text_too_long")
            if text is None:
                raise BadField('"text" is missing; expected a string')
        except BadField as error:
            code = "DATA-0001" if error.invalid.code == "text_too_long" else "DATA-0000"
            yield CloseSocket(1008, f"{code}: {error.invalid.message}")
            return
        if text:
            self._has_text = True
            yield Text(text, str(self._n_turn))

    def _flush(self) -> Iterable[Step]:
        if self._has_text:
            self._flushes.append(str(self._n_turn))
            yield End(str(self._n_turn))
        elif not self._closing:
            self._flushes.append(None)
        self._next_turn()
        yield from map(Reply, self._answers())

    def _next_turn(self) -> None:
        self._n_turn += 1
        self._has_text = False

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        yield payload, False

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket]:
        if isinstance(event, TurnSent):
            if event.turn == str(self._n_turn):
                self._next_turn()  # it ended by itself, so a Flush that comes now has nothing to wait for
            for at, turn in enumerate(self._flushes):
                if turn == event.turn:
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


def _message(data: bytes, is_text: bool) -> Fields | Invalid:
    if not is_text:
        return Invalid("binary_not_expected", "expected JSON text, got a binary message")
    text = decode_text(data)
    if isinstance(text, Invalid):
        return text
    message = parse_object(text)
    return message if isinstance(message, Invalid) else Fields(message)
