"""Cartesia's streaming speech protocol `/tts/websocket` (docs/protocol/cartesia.md).

Every message names its context and brings a piece of its text, with the voice, the language and the audio format. What
lies between two flushes of a context is one turn of the call. A context ends once: with `done`, with `error`, or with
the client's `cancel`, which has no answer. Behind its end nothing of it is sent.
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from telephony_tts.wire.fields import BadField, Fields, Wire, decode_text, parse_object, quote
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Flush,
    Invalid,
    SpokenText,
    Text,
    TurnSent,
)
from telephony_tts.wire.vendor import (
    ChangeAudio,
    CloseSocket,
    Refused,
    Reply,
    Step,
    VendorEvent,
    VendorOptions,
    query_of,
    to_wire,
)

MAX_TEXT_CHARS = 50_000
MAX_ID_CHARS = 256
MAX_CONTEXTS = 1_000
"""How many contexts of a socket are remembered, those that are over among them."""

MAX_SENT_TURNS = 8

ENCODINGS = {"pcm_s16le": "pcm", "pcm_f32le": "pcm", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}
SILENCE = {"pcm_s16le": bytes(2), "pcm_f32le": bytes(4), "pcm_mulaw": b"\xff", "pcm_alaw": b"\xd5"}
"""A silent sample in each encoding."""
RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
G711_RATE_HZ = 8_000
OWN_VOICE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""The vendor's names for voices."""

_STATUS = {
    "unknown_voice": 404,
    "bad_field": 400,
    "text_too_long": 400,
    "unsupported_text": 400,
    "queue_full": 429,
    "rate_limited": 429,
}
_NEXT_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
"""A word between spaces. Kanji, kana and Chinese characters are one word each, as the vendor gives them."""


def refuse(status: int, code: str, message: str) -> Refused:
    """The vendor's form of an HTTP refusal."""
    request_id = str(uuid.uuid4())
    body = to_wire({"error_code": code.lower(), "title": code, "message": message, "request_id": request_id})[0]
    return Refused(status, body, headers=(("X-Request-Id", request_id),))


def open_contexts(target: str) -> CartesiaContexts:
    """The dialect of a connection to `target`. Its only option is `call`."""
    return CartesiaContexts(VendorOptions(call=query_of(target).get("call")))


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An `output_format`. `encoding` is the vendor's name."""

    encoding: str
    rate_hz: int

    def __str__(self) -> str:
        return f"{self.encoding} at {self.rate_hz} Hz"


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """What a message asks for. None: the message has no such field.

    `voice` and `lang` are empty, and `speed` is 0, for what the server begins a call with.
    """

    text: str
    more: bool
    flush: bool
    voice: str | None
    lang: str | None
    speed: float
    audio: AudioFormat | None
    timestamps: bool
    at_once: bool


@dataclass(slots=True)
class ContextSegment:
    """A piece of a context that is one turn of the call. A flush without text is a segment without a turn."""

    turn: str
    number: int
    is_open: bool = True
    is_sent: bool = False
    flushed: bool = False
    begins_s: float | None = None
    """Where its audio begins in that of the context."""


@dataclass(slots=True, eq=False)
class SpeechContext:
    """One `context_id`. `request` is its first message."""

    id: str
    request: ContextRequest | None = None
    audio: AudioFormat | None = None
    """Set before its first turn."""
    segments: deque[ContextSegment] = field(default_factory=deque)
    """Those that are not spoken to their end, and the flushes that wait for them."""
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_SENT_TURNS))
    """Its last turns whose audio was sent. The client may still be playing it."""
    n_flushes: int = 0
    length_s: float = 0.0
    """How long its audio is so far."""
    ends_in_space: bool = True
    is_complete: bool = False
    end: str = ""
    """How it ended: "done", "error" or "cancelled". Empty while it has not."""
    has_warned: bool = False

    @property
    def open_segment(self) -> ContextSegment | None:
        return self.segments[-1] if self.segments and self.segments[-1].is_open else None


class CartesiaContexts:
    """One connection."""

    def __init__(self, options: VendorOptions) -> None:
        self.options = options
        self.needs_alignment = False
        self._audio = AudioFormat("pcm_s16le", options.rate_hz)
        self._contexts: OrderedDict[str, SpeechContext] = OrderedDict()
        self._turns: dict[str, SpeechContext] = {}
        """The contexts of the turns that are being spoken or wait for it."""
        self._opening: SpeechContext | None = None
        """The context whose voice is being set. An error without a turn is about it."""
        self._n_turns = 0

    def headers(self) -> Iterable[tuple[str, str]]:
        return (("X-Request-Id", str(uuid.uuid4())),)

    def greeting(self) -> Iterable[Wire]:
        return ()

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        message = _message(data, is_text)
        if isinstance(message, Invalid):
            yield _refusal(None, message.code, message.message)
            return
        try:
            context_id = message.name("context_id", MAX_ID_CHARS) or str(uuid.uuid4())
        except BadField as error:
            yield _refusal(None, error.invalid.code, error.invalid.message)
            return
        context = self._contexts.get(context_id)
        if context is None:
            if message.get("cancel") is True:
                return
            context = self._contexts[context_id] = SpeechContext(context_id)
            yield from map(Reply, self._forget_oldest())
        try:
            if message.flag("cancel"):
                yield from self._stop(context, "cancelled")
                return
            request = _read(message)
        except BadField as error:
            yield from self._fail(context, error.invalid.code, error.invalid.message)
            return
        if context.end:
            yield from self._too_late(context, request)
        elif (changed := _changed_field(context.request, request)) is not None:
            what = f'"{changed}" may not change within a context; use a new context_id'
            yield from self._fail(context, "bad_field", what)
        else:
            context.request = context.request or replace(request, text="")  # the text is in the turn
            yield from self._push(context, request)

    def _forget_oldest(self) -> Iterable[Wire]:
        """Forget contexts beyond the limit that have nothing left to speak. One that was still open ends here."""
        while len(self._contexts) > MAX_CONTEXTS:
            oldest = next((each for each in self._contexts.values() if not each.segments), None)
            if oldest is None:
                return
            del self._contexts[oldest.id]
            if not oldest.end:
                oldest.end = "done"
                yield _message_of(oldest, "done", done=True)

    def _push(self, context: SpeechContext, request: ContextRequest) -> Iterable[Step]:
        text = request.text
        if context.is_complete:
            if text.strip():
                what = 'the context was ended with "continue": false; its text is complete'
                yield from self._fail(context, "context_closed", what)
            return
        is_last = not request.more
        if text.strip() or (text and not is_last and context.open_segment is not None):
            yield from self._say(context, text, request)
            if context.end:
                return
        segment = context.open_segment
        context.is_complete = is_last
        if request.flush:
            context.n_flushes += 1
            if segment is None:
                context.segments.append(ContextSegment("", context.n_flushes, is_open=False, is_sent=True))
            context.segments[-1].flushed = True
        if segment is not None and (request.flush or is_last):
            segment.is_open = False
            yield End(segment.turn)
        elif segment is not None and request.at_once and text.strip():
            yield Flush(segment.turn)
        yield from map(Reply, self._settle(context))

    def _say(self, context: SpeechContext, text: str, request: ContextRequest) -> Iterable[Step]:
        """Send the text to the open turn of the context, or to a new one."""
        if request.at_once and not context.ends_in_space and not text[0].isspace():
            text = f" {text}"  # each message is a sentence: its client has cut it, and left out the space
        context.ends_in_space = text[-1].isspace()
        while True:
            segment = context.open_segment
            if segment is None:
                yield from self._prepare(context)
                if context.end:
                    return
                self._n_turns += 1
                segment = ContextSegment(str(self._n_turns), context.n_flushes + 1)
                context.segments.append(segment)
                self._turns[segment.turn] = context
            yield Text(text, segment.turn)
            if context.end or segment.is_open:
                return
            # The turn had given way to the turn of another context, so this text begins a new one.

    def _prepare(self, context: SpeechContext) -> Iterable[Step]:
        """Set the voice and the audio format for a turn of the context."""
        request = context.request
        assert request is not None
        wanted = context.audio = context.audio or request.audio or self._audio
        if wanted != self._audio:
            if self._turns and self.options.call is None:
                what = f"this connection carries {self._audio} while a context is spoken, not {wanted}: use the same "
                what += "output_format in all contexts, or a connection for each format"
                yield from self._fail(context, "bad_field", what)
                return
            self._audio = wanted
            self.options = replace(self.options, codec=ENCODINGS[wanted.encoding], rate_hz=wanted.rate_hz)
            yield ChangeAudio(self.options.codec, self.options.rate_hz)
        self.needs_alignment = self.needs_alignment or request.timestamps
        self._opening = context
        yield Configure(voice=request.voice or "", lang=request.lang or "", speed=request.speed)
        self._opening = None

    def _too_late(self, context: SpeechContext, request: ContextRequest) -> Iterable[Step]:
        """A message for a context that is over. Of a cancelled one nothing may be sent."""
        if request.text.strip() and context.end != "cancelled" and not context.has_warned:
            context.has_warned = True
            what = "the context is over; use a new context_id"
            yield _refusal(context.id, "context_closed", what)

    def _fail(self, context: SpeechContext, code: str, message: str) -> Iterable[Step]:
        """A message that cannot be served ends its context."""
        if context.end:
            return
        yield _refusal(context.id, code, message)
        yield from self._stop(context, "error")

    def _stop(self, context: SpeechContext, end: str) -> Iterable[Step]:
        """End a context now. Its last turn is cleared first, so that no turn of it begins in between."""
        turns = self._turns_of(context)
        self._over(context, end)
        yield from map(Clear, turns)

    def _turns_of(self, context: SpeechContext) -> list[str]:
        """The turns of a context that its client may still have to play, the last one first."""
        waiting = [segment.turn for segment in reversed(context.segments) if segment.turn in self._turns]
        return [*waiting, *reversed(context.sent)]

    def _over(self, context: SpeechContext, end: str) -> None:
        context.end = context.end or end
        for segment in context.segments:
            self._turns.pop(segment.turn, None)
        context.segments.clear()
        context.sent.clear()

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        context = self._turns.get(turn)
        if context is None:
            return
        segment = next(each for each in context.segments if each.turn == turn)
        if segment.begins_s is None:
            segment.begins_s = context.length_s
        if payload:
            length_s = len(payload) / (2 if self.options.codec == "pcm" else 1) / self.options.rate_hz
            context.length_s += length_s
            if self.options.call is None:
                payload = self._encoded(payload)
            else:
                # It is silence, in the format of the context that began last.
                assert context.audio is not None
                payload = SILENCE[context.audio.encoding] * round(length_s * context.audio.rate_hz)
            data = base64.b64encode(payload).decode()
            yield _message_of(context, "chunk", data=data, step_time=0.0, flush_id=segment.number)
        if spoken is None or context.request is None or not context.request.timestamps:
            return
        words = list(_words(spoken, segment.begins_s))
        if words:
            names, starts, ends = zip(*words, strict=True)
            context.length_s = max(context.length_s, ends[-1])
            times = {"words": list(names), "start": list(starts), "end": list(ends)}
            yield _message_of(context, "timestamps", word_timestamps=times, flush_id=segment.number)

    def _encoded(self, payload: bytes) -> bytes:
        if self._audio.encoding != "pcm_f32le" or self.options.codec != "pcm":
            return payload
        n_samples = len(payload) // 2
        samples = struct.unpack(f"<{n_samples}h", payload)
        return struct.pack(f"<{n_samples}f", *(sample / 32768 for sample in samples))

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket | Clear]:
        match event:
            case TurnSent(turn):
                if (context := self._turns.pop(turn, None)) is not None:
                    context.sent.append(turn)
                    for segment in context.segments:
                        if segment.turn == turn:
                            segment.is_sent, segment.is_open = True, False
                    yield from self._settle(context)
            case Cleared(turn=turn):
                if (context := self._turns.get(turn)) is not None:
                    self._over(context, "done")  # the caller interrupted, not the client
                    yield _message_of(context, "done", done=True)
            case ErrorEvent(code="turn_closed", about=str(turn)):
                if (context := self._turns.get(turn)) is not None and context.open_segment is not None:
                    context.open_segment.is_open = False
            case ErrorEvent():
                context = self._turns.get(event.turn or event.about or "") or self._opening
                if context is not None and not context.end:
                    turns = self._turns_of(context)
                    self._over(context, "error")
                    yield from (Clear(turn) for turn in turns if turn != event.turn)
                    status = _STATUS.get(event.code, 503 if event.retryable else 500)
                    yield _error(context.id, status, event.code, event.message)

    def _settle(self, context: SpeechContext) -> Iterable[Wire]:
        """`flush_done` for each flush whose text has all been sent, in order, and `done` behind the last."""
        while context.segments and context.segments[0].is_sent:
            segment = context.segments.popleft()
            if segment.flushed:
                yield _message_of(context, "flush_done", flush_done=True, flush_id=segment.number)
        if context.is_complete and not context.segments and not context.end:
            context.end = "done"
            yield _message_of(context, "done", done=True)


# ------------------------------------------------------------------ messages


def _message(data: bytes, is_text: bool) -> Fields | Invalid:
    if not is_text:
        return Invalid("binary_not_expected", "expected JSON text, got a binary message")
    text = decode_text(data)
    if isinstance(text, Invalid):
        return text
    message = parse_object(text)
    return message if isinstance(message, Invalid) else Fields(message)


def _read(message: Fields) -> ContextRequest:
    """Raises BadField."""
    delay_ms = message.number("max_buffer_delay_ms", 0, 60_000)
    return ContextRequest(
        text=message.text("transcript", MAX_TEXT_CHARS, "text_too_long") or "",
        more=message.flag("continue"),
        flush=message.flag("flush"),
        voice=_voice(message),
        lang=_language(message),
        speed=_speed(message),
        audio=_audio_format(message),
        timestamps=message.flag("add_timestamps"),
        at_once=delay_ms == 0,
    )


def _voice(message: Fields) -> str | None:
    """The name of the voice. Empty, the default, for a voice that is given by its numbers."""
    if isinstance(message.get("voice"), str):
        return message.name("voice")
    if message.get("voice") is None:
        return message.name("voice_id")
    voice = message.inner("voice")
    if voice.choice("mode", ("id", "embedding")) == "embedding":
        return ""
    return voice.name("id") or ""


def _language(message: Fields) -> str | None:
    """The language without its region, which no voice of ours depends on."""
    language = message.name("language", 32)
    return None if language is None else re.split("[-_]", language)[0].lower()


def _speed(message: Fields) -> float:
    if message.get("generation_config") is None:
        return 0.0
    return message.inner("generation_config").number("speed", 0.5, 2.0) or 0.0


def _audio_format(message: Fields) -> AudioFormat | None:
    if message.get("output_format") is None:
        return None
    wanted = message.inner("output_format")
    wanted.choice("container", ("raw",))
    encoding = wanted.choice("encoding", tuple(ENCODINGS)) or "pcm_s16le"
    rate_hz = wanted.get("sample_rate")
    rates = RATES_HZ if ENCODINGS[encoding] == "pcm" else (G711_RATE_HZ,)
    if isinstance(rate_hz, bool) or rate_hz not in rates:
        expected = f"one of {', '.join(map(str, rates))} with {encoding}"
        raise BadField(f'"sample_rate" must be {expected}, got {quote(rate_hz)}')
    return AudioFormat(encoding, int(rate_hz))


def _changed_field(first: ContextRequest | None, later: ContextRequest) -> str | None:
    """The field that a later message of a context changes and may not."""
    if first is None:
        return None
    for name, before, now in (
        ("voice", first.voice, later.voice),
        ("language", first.lang, later.lang),
        ("output_format", first.audio, later.audio),
    ):
        if now is not None and now != before:
            return name
    return None


def _words(spoken: SpokenText, begins_s: float) -> Iterator[tuple[str, float, float]]:
    """Each word with the seconds of its beginning and its end."""
    spans_ms = spoken.spans_ms
    for word in _NEXT_WORD.finditer(spoken.text):
        start_ms, end_ms = spans_ms[word.start()][0], spans_ms[word.end() - 1][1]
        yield word[0], round(begins_s + start_ms / 1000, 4), round(begins_s + end_ms / 1000, 4)


def _message_of(context: SpeechContext, kind: str, *, done: bool = False, **fields: Any) -> Wire:
    return to_wire({"type": kind, "context_id": context.id, "status_code": 206, "done": done, **fields})


def _refusal(context_id: str | None, code: str, message: str) -> Reply:
    """The answer to a message that cannot be used."""
    return Reply(_error(context_id, 400, code, message), refused=message)


def _error(context_id: str | None, status: int, code: str, message: str) -> Wire:
    """The vendor's error, with the fields of its older and its newer versions."""
    return to_wire(
        {"type": "error", "context_id": context_id, "status_code": status, "done": True, "error": message,
         "title": code.replace("_", " ").capitalize(), "message": message, "error_code": code}
    )  # fmt: skip
