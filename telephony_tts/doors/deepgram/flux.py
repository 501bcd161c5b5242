"""Deepgram's turn-based speech protocol `/v2/speak`, called Flux (docs/protocol/deepgram.md).

A turn is a *speech* with an id: `Speak` messages up to a `Flush`. `SpeechStarted` comes before its audio,
`SpeechMetadata` behind it, and speeches follow each other without overlap. `Interrupt` stops all of them. The answer
`SpeechInterrupted` splits the text where the listener is: by the client's offset, else by our own knowledge.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from telephony_tts.doors.deepgram.codec import (
    failure,
    model_of,
    number,
    read_message,
    read_options,
    read_text,
    refuse,
    unknown_type,
    warning,
    warning_of,
)
from telephony_tts.wire.fields import MAX_MS, BadField, Fields, Wire, quote
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Invalid,
    SpokenText,
    Text,
    TurnSent,
    WarningEvent,
)
from telephony_tts.wire.vendor import CloseSocket, Refused, Reply, Step, VendorEvent, VendorOptions, query_of, to_wire

MAX_TEXT_CHARS = 100_000
SPEEDS = (0.5, 1.5)
SPEED_STEP = 0.05

_BYTES = {"pcm": 2, "ulaw": 1, "alaw": 1}
_REMEMBERED_SPEECHES = 32
"""How many speeches that were sent are kept for an Interrupt. Their listener may not have heard them yet."""


def open_flux(target: str) -> DeepgramFlux | Refused:
    """The dialect of a connection to `target`, or the refusal of its options."""
    query = query_of(target)
    if "speed" in query and (problem := _speed_problem(number(query["speed"]))) is not None:
        return refuse(400, problem[0], f"speed={quote(query['speed'])}: {problem[1]}")
    options = read_options(query)
    return options if isinstance(options, Refused) else DeepgramFlux(options)


def _speed_problem(speed: float) -> tuple[str, str] | None:
    """The vendor's code and a description if the speed is not one of its own."""
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        return "SPEED_OUT_OF_RANGE", f"'speed' must be between {SPEEDS[0]} and {SPEEDS[1]}"
    steps = speed / SPEED_STEP
    if abs(steps - round(steps)) > 1e-6:
        return "SPEED_INCREMENT_INVALID", f"'speed' must be provided in increments of {SPEED_STEP}"
    return None


@dataclass(slots=True)
class Speech:
    """One turn. `start_ms` is where its audio begins in the audio of the session, `audio_ms` how much there is so far.

    A speech is over when `SpeechMetadata` was sent.
    """

    id: str
    n_chars: int = 0
    n_billable: int = 0
    start_ms: int = 0
    audio_ms: float = 0.0
    is_started: bool = False
    is_flushed: bool = False
    is_over: bool = False


class DeepgramFlux:
    """One connection to `/v2/speak`. A speech's id is the name of its turn in the session."""

    needs_alignment = False

    def __init__(self, options: VendorOptions) -> None:
        self.options = options
        self.request_id = str(uuid.uuid4())
        self._bytes_per_ms = _BYTES[options.codec] * options.rate_hz / 1000
        self._speeches: dict[str, Speech] = {}
        """In their order: those that are not over, and before them the last ones that are."""
        self._open: Speech | None = None
        """The speech that `Speak` adds to."""
        self._cleared: dict[str, Cleared] | None = None
        """While an Interrupt is carried out: what it has ended, by speech."""
        self._applied: dict[str, float] = {} if options.speed is None else {"speed": options.speed}
        self._session_ms = 0
        """The audio of all speeches that are over. After an Interrupt: what the listener has heard."""
        self._interrupted_ms = -1
        self._n_chars = 0
        self._n_billable = 0
        self._closing = False

    def headers(self) -> Iterable[tuple[str, str]]:
        return (("dg-request-id", self.request_id),)

    def greeting(self) -> Iterable[Wire]:
        name, model_uuid = model_of(self.options)
        yield to_wire(
            {"type": "Connected", "request_id": self.request_id, "model_name": name, "model_version": "1",
             "model_uuids": [model_uuid]}
        )  # fmt: skip

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        if self._closing:
            return
        message = read_message(data, is_text)
        if isinstance(message, Invalid):
            yield from _fail(message)
            return
        match message.get("type"):
            case "Speak":
                yield from self._speak(message)
            case "Flush":
                if self._open is None:
                    yield Reply(warning("NO_ACTIVE_SPEECH", "no speech is open; the Flush was ignored"))
                else:
                    speech, self._open = self._open, None
                    speech.is_flushed = True
                    yield End(speech.id)
            case "Interrupt":
                yield from self._interrupt(message)
            case "Configure":
                yield from self._configure(message)
            case "Close":
                self._closing = True
                if self._open is not None:
                    yield End(self._open.id)
                    self._open = None
                for wire in self._closed():
                    yield wire if isinstance(wire, CloseSocket) else Reply(wire)
            case _:
                yield from _fail(unknown_type(message, "Speak, Flush, Interrupt, Configure or Close"))

    def _speak(self, message: Fields) -> Iterable[Step]:
        text = read_text(message, MAX_TEXT_CHARS, "BIG-0000")
        if isinstance(text, Invalid):
            yield from _fail(text)
            return
        if not text:
            return
        speech = self._open
        if speech is None:
            speech = self._open = Speech(f"dg_sp_{uuid.uuid4().hex[:12]}")
            self._speeches[speech.id] = speech
            yield from map(Reply, self._started())
        n_billable = sum(char.isprintable() or char.isspace() for char in text)
        speech.n_chars += len(text)
        speech.n_billable += n_billable
        self._n_chars += len(text)
        self._n_billable += n_billable
        yield Text(text, speech.id)

    def _interrupt(self, message: Fields) -> Iterable[Step]:
        try:
            offset_ms = self._offset_ms(message)
        except BadField as error:
            yield _bad_offset(error.invalid.message)
            return
        if offset_ms is not None and offset_ms <= self._interrupted_ms:
            problem = f"playback_offset {offset_ms} is not beyond {self._interrupted_ms}, where the last Interrupt was"
            yield _bad_offset(problem)
            return
        self._cleared, self._open = {}, None
        if offset_ms is None:
            yield Clear()
        else:
            # The last one first: otherwise audio of a later speech would move up when an earlier one is gone.
            for speech in reversed(list(self._speeches.values())):
                heard_ms = max(0, offset_ms - speech.start_ms) if speech.is_started else 0
                yield Clear(speech.id, min(heard_ms, MAX_MS))
        cleared, self._cleared = self._cleared, None
        if cleared:
            yield Reply(self._interrupted(cleared, offset_ms))
        else:
            yield Reply(warning("NO_ACTIVE_SPEECH", "there is nothing to interrupt; the Interrupt was ignored"))
        self._speeches.clear()

    def _offset_ms(self, message: Fields) -> int | None:
        """The place of the client's listener in the audio of the session. None if we know it better, or must."""
        if message.get("playback_offset") is None or self.options.call is not None:
            return None
        offset = message.inner("playback_offset")
        offset.choice("type", ("time_ms",))
        value = offset.number("value", 0, MAX_MS)
        if value is None:
            raise BadField('"value" is missing; expected milliseconds')
        return int(value)

    def _interrupted(self, cleared: dict[str, Cleared], offset_ms: int | None) -> Wire:
        """The answer to an Interrupt. It is about the first speech that was not heard to its end. Its remaining text
        includes that of the speeches behind it."""
        speeches = [speech for speech in self._speeches.values() if speech.id in cleared]
        unheard = [speech for speech in speeches if not speech.is_over or cleared[speech.id].unheard_text.strip()]
        told = unheard or speeches[-1:]
        speech, first = told[0], cleared[told[0].id]
        played_ms = speech.start_ms + first.heard_ms if offset_ms is None else offset_ms
        self._session_ms = self._interrupted_ms = played_ms
        return to_wire(
            {"type": "SpeechInterrupted", "audio_played_ms": played_ms, "text_spoken": first.heard_text,
             "text_remaining": "".join(cleared[later.id].unheard_text for later in told), "metadata": _metadata(speech)}
        )  # fmt: skip

    def _configure(self, message: Fields) -> Iterable[Step]:
        speed = message.get("speed")
        if speed is not None:
            is_number = isinstance(speed, int | float) and not isinstance(speed, bool) and abs(speed) < MAX_MS
            problem = _speed_problem(float(speed) if is_number else 0.0)
            if problem is not None:
                value = {"value": speed} if is_number else {}
                yield Reply(
                    to_wire(
                        {"type": "ConfigureFailure", "code": problem[0], "field": "speed", **value,
                         "description": problem[1]}
                    ),
                    refused=problem[1],
                )  # fmt: skip
                return
            self._applied["speed"] = float(speed)
            yield Configure(speed=float(speed))
        yield Reply(to_wire({"type": "ConfigureSuccess", "applied": dict(self._applied)}))

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        if (speech := self._speeches.get(turn)) is not None:
            speech.audio_ms += len(payload) / self._bytes_per_ms
        yield payload, False

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket]:
        match event:
            case TurnSent(turn) if turn in self._speeches:
                if not self._speeches[turn].audio_ms:
                    yield warning("NO_SYNTHESIZABLE_TEXT", "the text of the speech has nothing that can be spoken")
                yield from self._over(self._speeches[turn])
            case Cleared(turn) if self._cleared is not None:
                self._cleared[turn] = event
            case Cleared(turn) if turn in self._speeches and not self._speeches[turn].is_over:
                # Not by the client's wish: it does not know yet, and still waits for the end of the speech.
                yield self._interrupted({turn: event}, None)
                yield from self._over(self._speeches[turn], is_cut=True)
            case ErrorEvent(fatal=True):
                yield _error(Invalid("NET-0004" if event.code == "idle" else "NET-0000", event.message))
            case ErrorEvent():
                yield from warning_of(event)
                if event.turn in self._speeches:
                    yield from self._over(self._speeches[event.turn])
            case WarningEvent():
                yield from warning_of(event)

    def _started(self) -> Iterable[Wire]:
        """`SpeechStarted` for the first speech that is not over, once."""
        speech = next((speech for speech in self._speeches.values() if not speech.is_over), None)
        if speech is not None and not speech.is_started:
            speech.is_started = True
            speech.start_ms = self._session_ms
            yield to_wire({"type": "SpeechStarted", "speech_id": speech.id})

    def _over(self, speech: Speech, *, is_cut: bool = False) -> Iterable[Wire | CloseSocket]:
        """All of a speech was sent. With `is_cut` the session's time stands where the listener is."""
        speech.is_over = True
        if speech is self._open:
            self._open = None
        if not is_cut:
            self._session_ms += round(speech.audio_ms)
        if speech.is_flushed:
            yield to_wire({"type": "Flushed", "speech_id": speech.id})
        yield to_wire({"type": "SpeechMetadata", **_metadata(speech)})
        over = [each.id for each in self._speeches.values() if each.is_over]
        for speech_id in over[:-_REMEMBERED_SPEECHES]:
            del self._speeches[speech_id]
        yield from self._started()
        yield from self._closed()

    def _closed(self) -> Iterable[Wire | CloseSocket]:
        """The end of the connection, if the client wants it and everything was sent."""
        if self._closing and all(speech.is_over for speech in self._speeches.values()):
            yield to_wire(
                {"type": "SessionMetadata", "total_audio_duration_ms": self._session_ms,
                 "total_input_character_count": self._n_chars, "total_billable_character_count": self._n_billable}
            )  # fmt: skip
            yield CloseSocket(1000, "closed")


def _metadata(speech: Speech) -> dict[str, Any]:
    return {
        "speech_id": speech.id,
        "audio_duration_ms": round(speech.audio_ms),
        "input_character_count": speech.n_chars,
        "billable_character_count": speech.n_billable,
        "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
    }


def _bad_offset(problem: str) -> Reply:
    return Reply(warning("INVALID_INTERRUPT_OFFSET", f"{problem}; the Interrupt was ignored"), refused=problem)


def _error(invalid: Invalid) -> Wire:
    return to_wire({"type": "Error", "code": invalid.code, "description": invalid.message})


def _fail(invalid: Invalid) -> Iterable[Step]:
    """An error of this protocol is always followed by a close."""
    yield Reply(_error(invalid))
    yield failure(invalid)
