"""Log lines with their call and turn, as JSON (one object per line) or as text for people.

    log = logs.get(__name__).bind(call="CA12")
    log.info("turn_done", turn="t7", audio_ms=1980, said=logs.speech(text))

A logger whose lines a peer can cause is `limited`, so that no peer can fill the log.

An event is a word, and its facts are fields. The text that callers hear is private: it goes into a field through
`speech()`, and only its length is written unless `log.spoken_text` is set.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns

AUDIT = "telephony_tts.audit"
"""The logger of the lines that say who used the server. They are written at every level."""


class LogConfig(Protocol):
    """The part of the configuration's `log` section that is needed here."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def spoken_text(self) -> bool: ...


class SpokenText:
    """Text that was or will be spoken. A formatter writes it only with `spoken_text`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<speech of {len(self.text)} characters>"


def speech(text: str) -> SpokenText:
    """Wrap spoken text for a log field. It is logged as {"chars": n}; with `spoken_text` it also has "text"."""
    return SpokenText(text)


class LineLimit:
    """A limit on the lines that peers cause: `n_at_once`, then `n_per_s` a second. Several loggers may share it.

    Lines with a traceback have a limit of their own. So a flood of other lines cannot hide an internal error, and an
    internal error that a peer can repeat cannot fill the log. Debug lines are not limited.
    """

    def __init__(self, n_at_once: int, n_per_s: float, clock: Callable[[], int] = monotonic_ns) -> None:
        self._lines = _Allowance(n_at_once, n_per_s, clock)
        self._faults = _Allowance(_FAULTS_AT_ONCE, _FAULTS_PER_S, clock)

    @classmethod
    def of_call(cls, clock: Callable[[], int] = monotonic_ns) -> LineLimit:
        """The limit of a call. A turn a second that is interrupted by voice, with a warning, is five lines a second. A
        `clear` ends up to 32 queued turns at once."""
        return cls(60, 5, clock)

    @classmethod
    def outside_calls(cls, clock: Callable[[], int] = monotonic_ns) -> LineLimit:
        """The limit shared by all connections that do not belong to a call."""
        return cls(20, 1, clock)

    @property
    def n_left_out(self) -> int:
        """The number of lines left out so far."""
        return self._lines.n_left_out + self._faults.n_left_out

    def admit(self, is_fault: bool) -> int | None:
        """None if a line may not be written, else the number of lines left out since the last one."""
        return (self._faults if is_fault else self._lines).take()


_FAULTS_AT_ONCE = 20
_FAULTS_PER_S = 0.1


class _Allowance:
    """A token bucket: each line takes a share of it, and time fills it."""

    def __init__(self, n_at_once: int, n_per_s: float, clock: Callable[[], int]) -> None:
        self._line_ns = round(NS_PER_S / n_per_s)
        self._capacity_ns = self._saved_ns = n_at_once * self._line_ns
        self._clock = clock
        self._since_ns = clock()
        self.n_left_out = 0
        self._n_reported = 0

    def take(self) -> int | None:
        now_ns = self._clock()
        self._saved_ns = min(self._capacity_ns, self._saved_ns + now_ns - self._since_ns)
        self._since_ns = now_ns
        if self._saved_ns < self._line_ns:
            self.n_left_out += 1
            return None
        self._saved_ns -= self._line_ns
        n_unreported, self._n_reported = self.n_left_out - self._n_reported, self.n_left_out
        return n_unreported


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that takes fields as keyword arguments and has bound fields for all its lines.

    Lines beyond its `limit` are left out. The next line that is written has their number in `left_out`.
    """

    def __init__(self, logger: logging.Logger, bound: Mapping[str, object], limit: LineLimit | None = None) -> None:
        super().__init__(logger, bound)
        self.bound = bound
        self.limit = limit

    def bind(self, **fields: object) -> EventLogger:
        """A logger that adds these fields to every line, usually `call` or `turn`."""
        return EventLogger(self.logger, {**self.bound, **fields}, self.limit)

    def limited(self, limit: LineLimit) -> EventLogger:
        """The same logger with a limit, for lines that peers cause."""
        return EventLogger(self.logger, self.bound, limit)

    def summary(self, event: str, **fields: Any) -> None:
        """Write the last line about a call or another object with a limit. This line is never left out.

        Its field `lines_left_out` has the number of lines that were, if any.
        """
        n_left_out = 0 if self.limit is None else self.limit.n_left_out
        EventLogger(self.logger, self.bound).info(event, **fields, lines_left_out=n_left_out or None)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.limit is not None and level > logging.DEBUG and self.isEnabledFor(level):
            n_left_out = self.limit.admit(bool(kwargs.get("exc_info")))
            if n_left_out is None:
                return
            if n_left_out:
                kwargs["left_out"] = n_left_out
        # The record must name the line of the caller, not of this method.
        super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        of_logging = {name: kwargs.pop(name) for name in ("exc_info", "stack_info", "stacklevel") if name in kwargs}
        # All fields are in one attribute: fields called "name" or "args" would collide with attributes of LogRecord.
        return msg, {**of_logging, "extra": {"fields": {**self.bound, **kwargs.pop("extra", {}), **kwargs}}}


def get(name: str) -> EventLogger:
    return EventLogger(logging.getLogger(name), {})


class JsonFormatter(logging.Formatter):
    """One JSON object per line in ASCII: ts, level, event, logger, call, turn, then the other fields, then error."""

    def __init__(self, *, spoken_text: bool = False) -> None:
        super().__init__()
        self._spoken_text = spoken_text

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        for name, value in _fields(record).items():
            # A field must not replace a key of the line itself.
            line[f"field_{name}" if name in line else name] = _plain(value, self._spoken_text)
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, trace = record.exc_info
            line["error"] = {
                "type": kind.__name__,
                "message": _text(error),
                "traceback": "".join(traceback.format_exception(kind, error, trace)),
            }
        if record.stack_info:
            line["stack"] = record.stack_info
        # ASCII escapes pass through any stream, also lone surrogates, and no value can forge a line break.
        return json.dumps(line, ensure_ascii=True)


class TextFormatter(logging.Formatter):
    """`12:00:01.250 info  turn_done call=CA12 turn=t7 audio_ms=1980`, then the traceback if there is one."""

    def __init__(self, *, spoken_text: bool = False) -> None:
        super().__init__()
        self._spoken_text = spoken_text

    def format(self, record: logging.LogRecord) -> str:
        words = [_timestamp(record)[11:23], f"{record.levelname.lower():<7}", _word(record.getMessage())]
        for name, value in _fields(record).items():
            words.append(f"{name}={_word(_plain(value, self._spoken_text))}")
        line = " ".join(words)
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            line += "\n" + trace.encode("utf-8", "backslashreplace").decode()
        return line


def setup(settings: LogConfig, stream: TextIO | None = None, **fields: object) -> None:
    """Send all log lines of the process to `stream` (standard error by default), each with `fields`. A second call
    replaces the first."""
    formatter = JsonFormatter if settings.format == "json" else TextFormatter
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.name = "telephony_tts"
    handler.setFormatter(formatter(spoken_text=settings.spoken_text))
    if fields:

        def add_fields(record: logging.LogRecord) -> bool:
            vars(record).update(fields)
            return True

        handler.addFilter(add_fields)
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == handler.name]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    root.setLevel(level)
    logging.getLogger(AUDIT).setLevel(logging.INFO)
    # At info level websockets logs every connection, also every probe of /readyz. At debug level it logs every frame,
    # with spoken text and bearer tokens.
    of_library = max(level, logging.WARNING)
    if level == logging.DEBUG:
        of_library = logging.DEBUG if settings.spoken_text else logging.INFO
    logging.getLogger("websockets").setLevel(of_library)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "fields", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Our fields and those that a library gave through `extra`: call and turn first, without absent ones."""
    found: dict[str, object] = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    found |= getattr(record, "fields", {})
    found = {"call": None, "turn": None, **found}
    return {name: value for name, value in found.items() if value is not None}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object, spoken_text: bool) -> object:
    """Any value in a form that JSON can represent."""
    if isinstance(value, SpokenText):
        chars = len(value.text)
        return {"chars": chars, "text": value.text} if spoken_text else {"chars": chars}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {_text(name): _plain(item, spoken_text) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, spoken_text) for item in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # a failing __str__ of a field must not lose the line
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"


def _word(value: object) -> str:
    """A value in a text line: bare if it is one printable word, else quoted, so that no two values look the same."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    shown = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
