"""ElevenLabs' streaming speech protocols `stream-input` and `multi-stream-input` (docs/protocol/elevenlabs.md).

Text comes in pieces, audio goes out in JSON with the characters that it speaks. On `stream-input` a connection speaks
one text and is closed. On `multi-stream-input` it has contexts, each a text of its own, named by the client.
"""

from __future__ import annotations

import base64
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from telephony_tts.wire.fields import BadField, Fields, Wire, clean, decode_text, parse_object, quote
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
    CloseSocket,
    Credential,
    Refused,
    Reply,
    Step,
    VendorEvent,
    VendorOptions,
    query_of,
    to_wire,
)

MAX_CONTEXTS = 5
"""How many contexts may have text and be open for more, as with the vendor."""
MAX_TEXT_CHARS = 40_000
SPEEDS = (0.5, 2.0)
DEFAULT_FORMAT = "mp3_44100_128"
_PCM_RATES_HZ = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
FORMATS: dict[str, tuple[str, str, int]] = {
    **{f"pcm_{rate_hz}": ("", "pcm", rate_hz) for rate_hz in _PCM_RATES_HZ},
    "ulaw_8000": ("", "ulaw", 8_000),
    "alaw_8000": ("", "alaw", 8_000),
    "mp3_22050_32": ("mp3", "pcm", 22_050),
    "mp3_24000_48": ("mp3", "pcm", 24_000),
    **{f"mp3_44100_{kbit_s}": ("mp3", "pcm", 44_100) for kbit_s in (32, 64, 96, 128, 192)},
    **{f"opus_48000_{kbit_s}": ("opus", "pcm", 48_000) for kbit_s in (32, 64, 96, 128, 192)},
}
"""The container, the codec before it and the rate of each `output_format`."""
PATH = re.compile(r"/v1/text-to-speech/(?P<voice>[^/?#]+)/(?P<kind>stream-input|multi-stream-input)/?")
OWN_VOICE = re.compile(r"[A-Za-z0-9]{20}|None")
"""The vendor's ids of voices, and what pipecat sends when it was given none."""

_CUT_NUMBER = re.compile(r"[$€£¥]?\d[\d.,:]*[.,:] ")
"""A piece of the vendor's SDK that may go on with digits. The SDK puts a space behind each piece, and cuts "$42.50"."""

_UNNAMED = "default"
"""The context of messages that name none."""
_POLICY_VIOLATION = 1008
_MAX_TEXTLESS = 64
_REMEMBERED_CONTEXTS = 256
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_STATUS_NAMES = {"INVALID_AUTH": "invalid_api_key", "BUSY": "system_busy", "unknown_voice": "voice_not_found"}


def refuse(status: int, code: str, message: str) -> Refused:
    """The vendor's form of an HTTP refusal."""
    detail = {"status": _STATUS_NAMES.get(code, code.lower()), "message": message}
    return Refused(status, to_wire({"detail": detail})[0])


def open_stream(target: str) -> ElevenLabsStream | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    path = PATH.search(target.partition("?")[0])
    query = query_of(target)
    name = query.get("output_format", DEFAULT_FORMAT)
    if path is None or name not in FORMATS:
        return refuse(400, "output_format_not_allowed", f"{quote(name)}: expected one of {', '.join(FORMATS)}")
    container, codec, rate_hz = FORMATS[name]
    language = query.get("language_code", "")
    options = VendorOptions(
        codec=codec,
        rate_hz=rate_hz,
        container=container,
        voice=clean(unquote(path["voice"])),
        lang=language if len(language) <= 35 and _LANGUAGE.fullmatch(language) else None,
        call=query.get("call"),
        splits_words=True,
        parallel_turns=True,
    )
    return ElevenLabsStream(
        options,
        is_multi=path["kind"] == "multi-stream-input",
        is_auto=query.get("auto_mode", "").lower() == "true",
        keeps_time=query.get("sync_alignment", "").lower() == "true",
        is_ssml=query.get("enable_ssml_parsing", "").lower() == "true",
    )


@dataclass(slots=True, eq=False)
class _Context:
    """A text of the client. It is one turn of ours, or several if a turn ended by itself while the client paused."""

    id: str
    speed: float | None = None
    has_text: bool = False
    ended: bool = False
    """The client has announced that no more text comes."""
    was_flushed: bool = False
    """The last message was a flush without text. With it clients announce the end of a text that is to be spoken."""
    last: str = ""
    """The last character of the text."""
    turn: str | None = None
    """The turn that takes text."""
    live: list[str] = field(default_factory=list)
    """The turns whose audio has not all been sent."""
    base_ms: float = 0.0
    """The audio of the turns that were sent."""
    end_ms: float = 0.0
    """How much of the context's audio has its characters sent."""


class ElevenLabsStream:
    """One connection. With `is_auto` each piece of text is a whole sentence or phrase, which is spoken at once. With
    `keeps_time` the times of characters count from the beginning of the context, else from the end of the characters
    before. With `is_ssml` the text is SSML; the characters that are aligned are those without tags."""

    needs_alignment = True

    def __init__(
        self, options: VendorOptions, *, is_multi: bool, is_auto: bool, keeps_time: bool, is_ssml: bool = False
    ) -> None:
        self.options = options
        self._text_type = "ssml" if is_ssml else None
        self._is_multi = is_multi
        self._is_auto = is_auto
        self._keeps_time = keeps_time
        self._contexts: OrderedDict[str, _Context] = OrderedDict()
        self._of_turn: dict[str, _Context] = {}
        self._over: OrderedDict[str, bool] = OrderedDict()
        """Contexts that have ended, and whether the client was told so. Late text for them is not spoken."""
        self._n_turns = 0
        self._speed: float | None = None
        """The speed that the session was told."""
        self._refused: str | None = None
        """The turn whose text was refused because it had ended by itself."""
        self._closing = False
        self._lacks_space = False
        """The space behind the last piece was left out, because the piece may be the beginning of a number."""

    def headers(self) -> Iterable[tuple[str, str]]:
        return ()

    def greeting(self) -> Iterable[Wire]:
        return ()

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        if self._closing:
            return
        try:
            message = _message(data, is_text)
            key = message.text("xi_api_key", MAX_TEXT_CHARS) or message.text("authorization", MAX_TEXT_CHARS)
            name = (message.name("context_id") or _UNNAMED) if self._is_multi else _UNNAMED
            text = message.text("text", MAX_TEXT_CHARS, "text_too_long")
            flush, close = message.flag("flush"), self._is_multi and message.flag("close_context")
            close_socket = self._is_multi and message.flag("close_socket")
        except BadField as error:
            yield from self._refusal(error.invalid.code, error.invalid.message)
            return
        if key:
            yield Credential(key.removeprefix("Bearer ").strip())
        if close_socket:
            self._closing = True
            if not self._contexts:
                yield CloseSocket(1000, "closed")
            for context in list(self._contexts.values()):
                yield from self._end(context)
            return
        if not self._is_multi and text == "":
            context = self._contexts.get(name) or self._opened(name)
            self._closing = True
            self.options = replace(self.options, whole_pieces=False)  # now it reads all the time
            yield from self._end(context)
            return
        if not self._is_multi and text == " " and _begins_sdk(message):
            self.options = replace(self.options, whole_pieces=True)
        elif self.options.whole_pieces and text:
            text = self._mended(text)
        yield from self._take(name, message, text or "", flush)
        if close and (open_context := self._contexts.get(name)) is not None:
            yield from self._close(open_context, ends=open_context.was_flushed or bool(text and text.strip()))

    def _mended(self, text: str) -> str:
        """A piece of the SDK, without the space inside a number that the SDK has put there."""
        if self._lacks_space and not text[0].isdigit():
            text = f" {text}"
        self._lacks_space = _CUT_NUMBER.fullmatch(text) is not None
        return text[:-1] if self._lacks_space else text

    def _take(self, name: str, message: Fields, text: str, flush: bool) -> Iterable[Step]:
        """The text of a message, its settings, and its flush."""
        is_blank = not text.strip()
        context = self._contexts.get(name)
        settings = message.get("voice_settings")
        begins = (text != "" and is_blank) or isinstance(settings, dict)
        if context is None:
            if is_blank and not begins:
                return  # a flush, a close or a sign of life for a context that is not there
            if name in self._over and not begins:
                if not self._over[name]:
                    self._over[name] = True
                    yield self._too_late(name)
                return
            context = self._opened(name)
        if isinstance(settings, dict):
            context.speed = _speed(settings.get("speed"))
        if context.ended:
            if not is_blank:
                yield self._too_late(name)
            return
        if not is_blank or (text and context.has_text):
            context.was_flushed = False
            yield from self._say(context, text)
        elif flush:
            context.was_flushed = True
        if context.turn is not None and (flush or (self._is_auto and not is_blank)):
            yield Flush(context.turn)

    def _say(self, context: _Context, text: str) -> Iterable[Step]:
        if not context.has_text:
            if sum(each.has_text and not each.ended for each in self._contexts.values()) >= MAX_CONTEXTS:
                message = f"more than {MAX_CONTEXTS} contexts are open on this connection; close one first"
                yield from self._refusal("max_active_conversations", message)
                return
            context.has_text = True
        if self._is_auto:
            if context.last and not context.last.isspace() and not text[0].isspace():
                text = f" {text}"
            if not text[-1].isspace():
                # A client knows by the space that a word is complete, and otherwise leaves out the last one.
                text += " "
        context.last = text[-1]
        yield from self._begin(context)
        assert context.turn is not None
        yield Text(text, context.turn, text_type=self._text_type)
        if self._refused == context.turn:
            context.turn = None
            yield from self._begin(context)
            yield Text(text, context.turn, text_type=self._text_type)

    def _begin(self, context: _Context) -> Iterable[Step]:
        """Begin a turn of ours for the context, unless it has one."""
        if context.turn is not None:
            return
        if context.speed != self._speed:
            self._speed = context.speed
            yield Configure(speed=1.0 if context.speed is None else context.speed)
        self._n_turns += 1
        context.turn = str(self._n_turns)
        context.live.append(context.turn)
        self._of_turn[context.turn] = context

    def _close(self, context: _Context, *, ends: bool) -> Iterable[Step]:
        """The client closes a context: behind its last word if it `ends`, else at once."""
        if ends and not context.ended:
            yield from self._end(context)
            return
        self._forget(context)
        for turn in context.live:
            yield Clear(turn)
        yield Reply(self._final(context))

    def _end(self, context: _Context) -> Iterable[Step]:
        """No more text comes for a context. It is over when all of it has been spoken."""
        if context.ended:
            return
        context.ended = True
        if context.turn is not None:
            if not context.last.isspace():
                yield Text(" ", context.turn)
            yield End(context.turn)
        elif not context.live:
            yield from (
                wire if isinstance(wire, CloseSocket) else Reply(wire) for wire in self._finals(context)
            )  # it had no text, or all of it was spoken before

    def _opened(self, name: str) -> _Context:
        self._over.pop(name, None)
        context = self._contexts[name] = _Context(name)
        textless = [each for each in self._contexts.values() if not each.has_text]
        if len(textless) > _MAX_TEXTLESS:
            del self._contexts[textless[0].id]
        return context

    def _forget(self, context: _Context) -> None:
        if self._contexts.get(context.id) is context:
            del self._contexts[context.id]
        for turn in context.live:
            self._of_turn.pop(turn, None)
        self._over[context.id] = False
        if len(self._over) > _REMEMBERED_CONTEXTS:
            self._over.popitem(last=False)

    def _refusal(self, code: str, message: str) -> Iterable[Step]:
        """The vendor's answer to a message that it does not take: an error, and the end of the connection."""
        self._closing = True
        yield Reply(self._error(code, message))
        yield CloseSocket(_POLICY_VIOLATION, message)

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        context = self._of_turn.get(turn)
        if context is None:
            return
        alignment = None
        if spoken is not None and spoken.text:
            from_ms = 0 if self._keeps_time else round(context.end_ms)
            before_ms, context.end_ms = context.base_ms, context.base_ms + spoken.times_ms[-1]
            spans_ms = [(round(before_ms + begin), round(before_ms + end)) for begin, end in spoken.spans_ms]
            alignment = _alignment(spoken.text, [(begin - from_ms, end - from_ms) for begin, end in spans_ms])
        message: dict[str, Any] = {
            "audio": base64.b64encode(payload).decode(),
            "alignment": alignment,
            "normalizedAlignment": alignment,
        }
        yield to_wire({**message, "contextId": context.id} if self._is_multi else {**message, "isFinal": None})

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket]:
        match event:
            case TurnSent(turn):
                yield from self._turn_over(turn)
            case Cleared(turn):  # by the caller's voice: what the client clears is forgotten before
                if (context := self._of_turn.get(turn)) is not None:
                    self._drop(context, turn)
                    if not context.live:
                        yield from self._finals(context)
            case ErrorEvent(code="turn_closed", about=str(turn)):
                self._refused = turn
            case ErrorEvent(turn=str(turn)):
                if (context := self._of_turn.get(turn)) is not None:
                    self._drop(context, turn)
                    yield self._error(event.code, event.message, context.id)
                    if not self._is_multi:
                        yield CloseSocket(1011, event.message)
                    elif not context.live:
                        yield from self._finals(context)
            case ErrorEvent(about=str(turn)):
                if (context := self._of_turn.get(turn)) is not None:
                    yield self._error(event.code, event.message, context.id)
            case ErrorEvent(fatal=False):
                self._closing = True
                yield self._error(event.code, event.message)
                yield CloseSocket(_POLICY_VIOLATION, event.message)

    def _turn_over(self, turn: str) -> Iterable[Wire | CloseSocket]:
        context = self._of_turn.pop(turn, None)
        if context is None:
            return
        context.live.remove(turn)
        context.base_ms = context.end_ms
        if context.turn == turn:
            context.turn = None
        if context.ended and not context.live:
            yield from self._finals(context)

    def _drop(self, context: _Context, turn: str) -> None:
        """A turn was not spoken to its end, so nothing more of its context is to be spoken."""
        self._of_turn.pop(turn, None)
        context.live.remove(turn)
        context.turn = None
        context.ended = True

    def _finals(self, context: _Context) -> Iterable[Wire | CloseSocket]:
        """The context is over, and with it maybe the connection."""
        self._forget(context)
        yield self._final(context)
        if self._closing and not self._contexts:
            yield CloseSocket(1000, "closed")

    def _final(self, context: _Context) -> Wire:
        message = {"contextId": context.id} if self._is_multi else {"audio": None}
        return to_wire({**message, "isFinal": True})

    def _too_late(self, name: str) -> Reply:
        message = f"context {quote(name)} is closed; its text is not spoken"
        return Reply(self._error("context_closed", message, name), refused=message)

    def _error(self, code: str, message: str, name: str | None = None) -> Wire:
        of_context = {"contextId": name} if name is not None and self._is_multi else {}
        return to_wire({"message": message, "error": code, "code": _POLICY_VIOLATION, **of_context})


def _alignment(text: str, spans_ms: list[tuple[int, int]]) -> dict[str, Any]:
    """Characters and times, under the names of each published form."""
    starts_ms = [start for start, _ in spans_ms]
    durations_ms = [end - start for start, end in spans_ms]
    return {
        "chars": list(text),
        "charStartTimesMs": starts_ms,
        "charDurationsMs": durations_ms,
        "charsStartTimesMs": starts_ms,
        "charsDurationsMs": durations_ms,
    }


def _begins_sdk(message: Fields) -> bool:
    """Whether the message is the first of the vendor's SDK (`convert_realtime`). It takes one message of audio for each
    piece of text, until the text is complete. Other clients read all the time, and do not begin with both fields."""
    return message.get("try_trigger_generation") is True and isinstance(message.get("generation_config"), dict)


def _speed(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(min(max(value, SPEEDS[0]), SPEEDS[1]))
    return None


def _message(data: bytes, is_text: bool) -> Fields:
    """The fields of a message. Raises BadField."""
    if not is_text:
        raise BadField("expected JSON text, got a binary message", "binary_not_expected")
    text = decode_text(data)
    message = text if isinstance(text, Invalid) else parse_object(text)
    if isinstance(message, Invalid):
        raise BadField(message.message, message.code)
    return Fields(message)
