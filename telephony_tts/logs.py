"""Log lines with the call and turn they belong to, as JSON (one object per line) or for the eye.

    log = logs.get(__name__).bind(call="CA12")
    log.info("turn_done", turn="t7", audio_ms=1980, said=logs.speech(text))

An event is a word, facts are fields. What callers hear is private: a text goes into a field through `speech()`,
and unless `log.spoken_text` is set only its length is written.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO


class LogConfig(Protocol):
    """The `log` section of the configuration, as far as it is needed here."""

    @property
    def level(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def spoken_text(self) -> bool: ...


class Speech:
    """Text that was or will be spoken. Only a formatter that was told to may look inside."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<speech of {len(self.text)} characters>"


def speech(text: str) -> Speech:
    """Wrap spoken text for a log field: logged as {"chars": n}, and with {"text": ...} only where that is allowed."""
    return Speech(text)


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that takes fields as keyword arguments and carries some of them along."""

    def __init__(self, logger: logging.Logger, bound: Mapping[str, object]) -> None:
        super().__init__(logger, bound)
        self.bound = bound

    def bind(self, **fields: object) -> EventLogger:
        """A logger whose every line has these fields as well, usually `call` or `turn`."""
        return EventLogger(self.logger, {**self.bound, **fields})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        of_logging = {name: kwargs.pop(name) for name in ("exc_info", "stack_info", "stacklevel") if name in kwargs}
        # One attribute for all fields: as attributes of their own, "name" or "args" would collide with LogRecord's.
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
            # A field may not pass itself off as the line's own.
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
        # ASCII escapes carry lone surrogates and every script through any stream, and a line break cannot be forged.
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


def setup(settings: LogConfig, stream: TextIO | None = None) -> None:
    """Send all log lines of the process to `stream` (standard error by default). A second call replaces the first."""
    formatter = JsonFormatter if settings.format == "json" else TextFormatter
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.name = "telephony_tts"
    handler.setFormatter(formatter(spoken_text=settings.spoken_text))
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == handler.name]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    root.setLevel(level)
    # The library tells of every connection, so of every probe of /readyz, at info level; and at debug level it writes
    # every frame, and with it what is spoken and the bearer tokens.
    of_library = max(level, logging.WARNING)
    if level == logging.DEBUG:
        of_library = logging.DEBUG if settings.spoken_text else logging.INFO
    logging.getLogger("websockets").setLevel(of_library)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "fields", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Our fields and those a library gave through `extra`; call and turn first, absent ones left out."""
    found: dict[str, object] = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    found |= getattr(record, "fields", {})
    found = {"call": None, "turn": None, **found}
    return {name: value for name, value in found.items() if value is not None}


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object, spoken_text: bool) -> object:
    """`value` as JSON can carry it, whatever it is."""
    if isinstance(value, Speech):
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
    except Exception as error:  # a field's own __str__ failing must not cost the line
        return f"<{type(value).__name__}: str() raised {type(error).__name__}>"


def _word(value: object) -> str:
    """A value in a text line: bare if it is one printable word, else quoted, so that no value can look like another."""
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    shown = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
