"""DashScope's streaming protocol of CosyVoice, `/api-ws/v1/inference` (docs/protocol/dashscope.md).

A task is a piece of speech with settings of its own: `run-task`, its text in `continue-task`, and `finish-task`. Tasks
follow each other on one socket, or run at the same time under their ids. Audio is binary, each message of it behind a
`result-generated` with the id of its task. A task ends with one `task-finished` or `task-failed`, and has no audio
behind it.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from telephony_tts.wire.fields import BadField, Fields, Wire, decode_text, parse_object, quote, require
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Flush,
    Invalid,
    SentenceSpoken,
    SpokenText,
    Text,
    TurnSent,
    WarningEvent,
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

MAX_MESSAGE_CHARS = 20_000
MAX_TASK_CHARS = 200_000
"""The vendor's own limits of text, as `count_chars` counts."""
TASK_IDLE_S = 23
"""The vendor fails a task that gets no message for so long."""
MAX_TASKS = 64
"""How many tasks of one connection may be unfinished."""
MAX_INSTRUCT_CHARS = 1_000

ACTIONS = ("run-task", "continue-task", "finish-task")
FORMATS = ("pcm", "wav", "mp3", "opus", "ulaw", "alaw")
"""`ulaw` and `alaw` are ours: the vendor has no format of telephones."""
RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
OWN_VOICE = re.compile(r"(?:lo+ng[a-z]*|libai)(?:_v[0-9]+)?")
"""The vendor's names for voices."""

_DEFAULT_RATE_HZ = 22_050
_ENCODED_RATES_HZ = {
    "mp3": {8_000: 16_000},
    "opus": {22_050: 24_000, 44_100: 48_000},
}
"""Rates that a format does not carry, and the next one that it does. A decoder reads the rate from the stream."""
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_N_REMEMBERED = 256
_LANGUAGE = re.compile(r"[a-zA-Z]{2,3}(-[a-zA-Z0-9]{2,8}){0,3}", re.ASCII)
_THROTTLED = ("rate_limited", "queue_full", "busy")
_WRONG = ("unknown_voice", "unsupported_text", "text_too_long", "format_unavailable")
_TIMED_OUT = ("CLIENT_ERROR", "request timeout: the task got no continue-task for too long")
_EMPTY: dict[str, Any] = {}


@dataclass(slots=True)
class _SpeechTask:
    """A task that has not ended. `turns` are those of its turns that have not been sent, `open_turn` takes its text.

    A task has more than one turn if others run at the same time: a turn whose text is all spoken gives way to another,
    and the text that comes later begins a new one.
    """

    id: str
    audio: tuple[str, int]
    """Format and rate in Hz, as the client named them."""
    settings: Configure
    turns: list[str] = field(default_factory=list)
    open_turn: str | None = None
    is_finishing: bool = False
    is_timed_out: bool = False
    has_header: bool = False
    n_chars: int = 0
    n_sentences: int = 0

    @property
    def takes_text(self) -> bool:
        return not self.is_finishing and not self.is_timed_out


def refuse(status: int, code: str, message: str) -> Refused:
    """The vendor's form of an HTTP refusal."""
    names = {400: "InvalidParameter", 401: "InvalidApiKey", 429: "Throttling", 503: "Throttling"}
    body = {"code": names.get(status, code), "message": message, "request_id": str(uuid.uuid4())}
    return Refused(status, to_wire(body)[0])


def open_inference(target: str) -> DashScopeTasks:
    """The dialect of a connection to `target`. Its tasks say all else."""
    return DashScopeTasks(VendorOptions(call=query_of(target).get("call")))


def count_chars(text: str) -> int:
    """The vendor's count of characters: a Chinese character counts as two, also in Japanese and Korean text."""
    return len(text) + (0 if text.isascii() else len(_HAN.findall(text)))


class DashScopeTasks:
    """One connection and its tasks. Turns have names of their own, because a client may use the id of a task again."""

    needs_alignment = False

    def __init__(self, options: VendorOptions) -> None:
        self.options = options
        self._audio: tuple[str, int] | None = None
        self._tasks: dict[str, _SpeechTask] = {}
        self._ended: deque[str] = deque(maxlen=_N_REMEMBERED)
        """Ids of tasks that have ended. Their late messages are no mistake."""
        self._by_turn: dict[str, _SpeechTask] = {}
        self._n_turns = 0
        self._settings: Configure | None = None
        """What the next turn will be spoken with."""
        self._refusal: ErrorEvent | None = None
        """The error that came while a step was being done."""

    def headers(self) -> Iterable[tuple[str, str]]:
        return ()

    def greeting(self) -> Iterable[Wire]:
        return ()

    # --------------------------------------------------------- client → server

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        self._refusal = None
        message = _message(data, is_text)
        if isinstance(message, Invalid):
            yield _refuse_message("", "InvalidParameter", message.message)
            return
        task_id = ""
        try:
            header = message.inner("header")
            task_id = require("task_id", header.name("task_id"), "the id of the task")
            action = require("action", header.choice("action", ACTIONS), f"one of {', '.join(ACTIONS)}")
            payload = Fields({}) if message.get("payload") is None else message.inner("payload")
            if action == "run-task":
                yield from self._run(task_id, header, payload)
            elif (task := self._tasks.get(task_id)) is not None:
                inputs = Fields({}) if payload.get("input") is None else payload.inner("input")
                yield from self._continue(task, inputs) if action == "continue-task" else self._finish(task, inputs)
            elif task_id not in self._ended:
                raise BadField(f"{action}: no task with this id is running; send run-task first")
        except BadField as error:
            yield from self._fail(task_id, "InvalidParameter", error.invalid.message)

    def _run(self, task_id: str, header: Fields, payload: Fields) -> Iterator[Step]:
        if task_id in self._tasks:
            raise BadField("a task with this id is running; use a new task_id")
        if len(self._tasks) >= MAX_TASKS:
            yield _refuse_message(task_id, "Throttling", f"{MAX_TASKS} tasks of this connection are unfinished")
            return
        task = _read_task(task_id, header, payload)
        if task.audio != self._audio:
            if self._tasks:
                raise BadField("format and sample_rate must be those of the tasks that still run on this connection")
            self._audio = task.audio
            step = _change_audio(*task.audio)
            self.options = replace(self.options, codec=step.codec, rate_hz=step.rate_hz, container=step.container)
            yield step
            if (refusal := self._take_refusal()) is not None:
                self._audio = None
                yield _refuse_message(task_id, *_reason(refusal))
                return
        self._tasks[task_id] = task
        yield from self._begin_turn(task)
        if self._is_running(task):
            yield Reply(_event(task_id, "task-started"))
        text = Fields({}) if payload.get("input") is None else payload.inner("input")
        if self._is_running(task):
            yield from self._continue(task, text)

    def _continue(self, task: _SpeechTask, inputs: Fields) -> Iterator[Step]:
        text = inputs.text("text", MAX_MESSAGE_CHARS)
        is_flush = inputs.flag("flush")
        if not task.takes_text:
            return
        if text:
            n_chars = count_chars(text)
            task.n_chars += n_chars
            if n_chars > MAX_MESSAGE_CHARS or task.n_chars > MAX_TASK_CHARS:
                raise BadField(
                    f'"text" has {n_chars} characters and the task {task.n_chars}; the limits are {MAX_MESSAGE_CHARS} '
                    f"and {MAX_TASK_CHARS}, and a Chinese character counts as two"
                )
            yield from self._speak(task, text)
        if is_flush and task.open_turn is not None:
            yield Flush(task.open_turn)

    def _speak(self, task: _SpeechTask, text: str) -> Iterator[Step]:
        """Give text to the open turn. A turn that has given way takes no more, so the text begins the next one."""
        for _ in range(2):
            if task.open_turn is None:
                yield from self._begin_turn(task)
            turn = task.open_turn
            if turn is None:
                return
            yield Text(text, turn)
            if (refusal := self._take_refusal()) is None:
                return
            if refusal.code != "turn_closed":
                yield from self._fail(task.id, *_reason(refusal))
                return
            task.open_turn = None

    def _begin_turn(self, task: _SpeechTask) -> Iterator[Step]:
        """Begin a turn, which may wait for its text, with the settings of the task. `_fail` if that cannot be."""
        if self._settings != task.settings:
            self._settings = None
            yield task.settings
            if (refusal := self._take_refusal()) is not None:
                yield from self._fail(task.id, *_reason(refusal))
                return
            self._settings = task.settings
        self._n_turns += 1
        task.open_turn = turn = str(self._n_turns)
        task.turns.append(turn)
        self._by_turn[turn] = task
        yield Text("", turn)

    def _finish(self, task: _SpeechTask, inputs: Fields) -> Iterator[Step]:
        if inputs.choice("directive", ("cancel",)) is not None:
            yield from map(Clear, self._forget(task))
            yield Reply(_finished(task))
        elif task.takes_text:
            task.is_finishing = True
            if task.open_turn is not None:
                yield End(task.open_turn)
            elif not task.turns:
                self._forget(task)
                yield Reply(_finished(task))

    def _fail(self, task_id: str, code: str, message: str) -> Iterator[Step]:
        """Fail a task, which may never have begun."""
        task = self._tasks.get(task_id)
        if task is not None:
            yield from map(Clear, self._forget(task))
        yield _refuse_message(task_id, code, message)

    def _take_refusal(self) -> ErrorEvent | None:
        """Why the step that was just done could not be done. None if it was."""
        refusal, self._refusal = self._refusal, None
        return refusal

    def _is_running(self, task: _SpeechTask) -> bool:
        return self._tasks.get(task.id) is task

    def _forget(self, task: _SpeechTask) -> list[str]:
        """The task is over. Returns the turns that have not been sent: what comes of them has no receiver now."""
        del self._tasks[task.id]
        self._ended.append(task.id)
        for turn in task.turns:
            del self._by_turn[turn]
        return task.turns

    # --------------------------------------------------------- server → client

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        task = self._by_turn.get(turn)
        if task is None or not payload:
            return
        if task.audio[0] == "wav" and not task.has_header:
            task.has_header = True
            payload = _wav_header(self.options.rate_hz) + payload
        yield _result(task, {"type": "sentence-synthesis"})
        yield payload, False

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket | Clear]:
        if event.turn is None:
            if isinstance(event, ErrorEvent):
                if event.fatal:
                    for task in [*self._tasks.values()]:
                        self._forget(task)
                        yield _failed(task.id, *_reason(event))
                self._refusal = event
            return
        found = self._by_turn.get(event.turn)
        if found is None:
            return
        match event:
            case SentenceSpoken(_, _, text):
                words = {"type": "sentence-end", "original_text": text}
                yield _result(found, words, usage={"characters": found.n_chars})
                found.n_sentences += 1
            case TurnSent(turn):
                found.turns.remove(turn)
                del self._by_turn[turn]
                if found.open_turn == turn:
                    found.open_turn = None
                if not found.turns and not found.takes_text:
                    self._forget(found)
                    yield _failed(found.id, *_TIMED_OUT) if found.is_timed_out else _finished(found)
            case Cleared():
                # Not by the client: the caller has interrupted, or has hung up. A client may wait for the end.
                self._forget(found)
                yield _finished(
                    found, type="interrupted", reason=event.reason, heard_text=event.heard_text, heard_ms=event.heard_ms
                )
            case ErrorEvent():
                yield from (Clear(turn) for turn in self._forget(found) if turn != event.turn)
                yield _failed(found.id, *_reason(event))
            case WarningEvent("turn_timeout") if found.takes_text:
                found.is_timed_out = True  # what it has is spoken to its end


def _message(data: bytes, is_text: bool) -> Fields | Invalid:
    if not is_text:
        return Invalid("binary_not_expected", "expected JSON text, got a binary message")
    text = decode_text(data)
    if isinstance(text, Invalid):
        return text
    message = parse_object(text)
    return message if isinstance(message, Invalid) else Fields(message)


def _read_task(task_id: str, header: Fields, payload: Fields) -> _SpeechTask:
    """The task of a run-task message. Raises BadField."""
    header.choice("streaming", ("duplex",))
    parameters = Fields({}) if payload.get("parameters") is None else payload.inner("parameters")
    text_type = parameters.get("text_type")
    if text_type is not None and (not isinstance(text_type, str) or text_type.lower() != "plaintext"):
        raise BadField(f'"text_type" must be PlainText, got {quote(text_type)}: SSML is not supported')
    name = parameters.get("format")
    if name is None or name == "Default":  # what the vendor's SDK sends if its user chose none
        name = "mp3"
    if name not in FORMATS:
        raise BadField(f'"format" must be one of {", ".join(FORMATS)}, got {quote(name)}')
    is_g711 = name in ("ulaw", "alaw")
    rates = (8_000,) if is_g711 else RATES_HZ
    rate = parameters.get("sample_rate") or (8_000 if is_g711 else _DEFAULT_RATE_HZ)
    if rate not in rates or isinstance(rate, bool):
        expected = ", ".join(map(str, rates))
        raise BadField(f'"sample_rate" must be one of {expected} with format {name}, got {quote(rate)}')
    speed = parameters.number("rate", 0.5, 2.0)
    seed = parameters.whole("seed", 65_535)
    settings = Configure(
        voice=parameters.name("voice") or "default",
        lang=_language(parameters.get("language_hints")),
        speed=1.0 if speed is None else speed,
        seed=seed or 0,
        instruct=parameters.text("instruction", MAX_INSTRUCT_CHARS) or "",
    )
    return _SpeechTask(task_id, (name, int(rate)), settings)


def _language(hints: object) -> str:
    """The first of the languages that the client expects, as the vendor does. Empty: the text decides."""
    if isinstance(hints, list) and hints and isinstance(hints[0], str) and _LANGUAGE.fullmatch(hints[0]):
        return hints[0].lower()
    return ""


def _change_audio(name: str, rate_hz: int) -> ChangeAudio:
    if name in ("ulaw", "alaw"):
        return ChangeAudio(name, rate_hz)
    if name in _ENCODED_RATES_HZ:
        return ChangeAudio("pcm", _ENCODED_RATES_HZ[name].get(rate_hz, rate_hz), name)
    return ChangeAudio("pcm", rate_hz)  # the header of wav is written here, once for each task


def _wav_header(rate_hz: int) -> bytes:
    """The header of a WAV file of 16 bit, mono, whose length is not known yet."""
    unknown = 0xFFFF_FFFF
    riff = struct.pack("<4sI4s", b"RIFF", unknown, b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    return riff + form + struct.pack("<4sI", b"data", unknown)


def _reason(error: ErrorEvent) -> tuple[str, str]:
    """The vendor's code for an error of ours, and its message."""
    if error.code in _THROTTLED:
        return "Throttling", error.message
    return "InvalidParameter" if error.code in _WRONG else "InternalError", error.message


def _event(task_id: str, event: str, payload: dict[str, Any] = _EMPTY, **header: str) -> Wire:
    return to_wire({"header": {"task_id": task_id, "event": event, **header, "attributes": {}}, "payload": payload})


def _result(task: _SpeechTask, output: dict[str, Any], **payload: Any) -> Wire:
    output = {"sentence": {"index": task.n_sentences, "words": []}, **output}
    return _event(task.id, "result-generated", {"output": output, **payload})


def _finished(task: _SpeechTask, **output: Any) -> Wire:
    output = {"sentence": {"words": []}, **output}
    return _event(task.id, "task-finished", {"output": output, "usage": {"characters": task.n_chars}})


def _failed(task_id: str, code: str, message: str) -> Wire:
    return _event(task_id, "task-failed", error_code=code, error_message=message)


def _refuse_message(task_id: str, code: str, message: str) -> Reply:
    return Reply(_failed(task_id, code, message), refused=f"{code}: {message}")
