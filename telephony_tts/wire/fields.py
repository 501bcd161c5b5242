"""Reads a peer's JSON one checked field at a time; shared by the codecs that use JSON.

A wrong field raises `BadField`, and the codec's `decode` turns it into `Invalid`. So no input of a peer leaves this
package as an exception. Messages say what was expected and echo at most 80 characters of the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from telephony_tts.wire.messages import Invalid

Wire = tuple[bytes, bool]
"""One WebSocket message: the payload, and whether it is a text frame."""

CALL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
"""A call's name on every leg (`fullmatch`): short and plain enough for a query string or a header."""

MAX_NAME_CHARS = 128
MAX_MARK_CHARS = 256
MAX_MS = 86_400_000  # one day: longer than any call, and safe in every later integer computation
MAX_EXACT_INT = 2**53 - 1  # JavaScript reads larger integers inexactly

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_ECHO_CHARS = 80
_T = TypeVar("_T")


class BadField(Exception):
    """A field is missing, of the wrong type or out of range. Never leaves this package."""

    def __init__(self, message: str, code: str = "bad_field") -> None:
        super().__init__(message)
        self.invalid = Invalid(code, message)


def clean(text: str) -> str:
    """Replace lone surrogates by U+FFFD: JSON can express them, UTF-8 cannot."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def traceparent(value: str) -> str | None:
    """The value if it is a `traceparent` of W3C Trace Context, else None. A later version may have more fields."""
    first, is_later = value[:55], value[:3] != "00-" and value[55:56] == "-"
    return first if _TRACEPARENT.fullmatch(first) and (len(value) == 55 or is_later) else None


def quote(value: object) -> str:
    """A peer's value for an error message: at most 80 printable characters on one line."""
    match value:
        case str():
            quoted = json.dumps(clean(value[:_MAX_ECHO_CHARS]), ensure_ascii=False)
            shown = "".join(c if c.isprintable() else "\ufffd" for c in quoted)
            return shown if len(shown) <= _MAX_ECHO_CHARS else shown[: _MAX_ECHO_CHARS - 2] + '…"'
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return "a number out of range" if abs(value) > MAX_EXACT_INT else repr(value)
        case list():
            return "a list"
        case _:
            return "an object"


def decode_text(data: str | bytes) -> str | Invalid:
    """The text of a text frame, without a leading byte order mark."""
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        return Invalid("bad_utf8", f"a text message must be UTF-8; byte {error.start} is not")


def parse_object(text: str) -> dict[str, Any] | Invalid:
    """A JSON object (RFC 8259: no NaN, no raw control characters in strings; the last of repeated keys counts)."""
    try:
        value = _JSON.decode(text)
    except json.JSONDecodeError as error:
        return Invalid("bad_json", f"not JSON: {error.msg} at character {error.pos}; expected one JSON object")
    except RecursionError:
        return Invalid("bad_json", "JSON is nested too deeply; expected one flat JSON object")
    except ValueError:
        return Invalid("bad_json", "JSON holds a number that cannot be read; expected one JSON object")
    if not isinstance(value, dict):
        return Invalid("bad_json", f"expected one JSON object, got {quote(value)}")
    return value


class Fields:
    """The fields of one message. `null` is the same as a missing field; unknown fields are ignored."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, field: str) -> Any:
        return self._values.get(field)

    def inner(self, field: str) -> Fields:
        """The fields of a required object within the message."""
        value = self._values.get(field)
        if not isinstance(value, dict):
            raise _wrong(field, "an object", value)
        return Fields(value)

    def text(self, field: str, most: int, code: str = "bad_field") -> str | None:
        """Text to be spoken or shown, at most `most` characters, without lone surrogates."""
        value = self._values.get(field)
        if value is None:
            return None
        if not isinstance(value, str):
            raise _wrong(field, "a string", value)
        if len(value) > most:
            raise BadField(f'"{field}" has {len(value)} characters; the limit is {most}', code)
        return clean(value)

    def name(self, field: str, most: int = MAX_NAME_CHARS, *, printable: bool = True) -> str | None:
        """A name that will be echoed exactly. Characters that cannot be echoed are an error; they are not replaced."""
        value = self._values.get(field)
        if value is None:
            return None
        echoes = isinstance(value, str) and (value.isprintable() if printable else not _LONE_SURROGATE.search(value))
        if echoes and 1 <= len(value) <= most:
            return str(value)
        kind = "printable characters" if printable else "characters"
        raise _wrong(field, f"a string of 1 to {most} {kind}", value)

    def flag(self, field: str) -> bool:
        value = self._values.get(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise _wrong(field, "true or false", value)

    def whole(self, field: str, most: int) -> int | None:
        """A whole number from 0 to `most`."""
        value = self._values.get(field)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return value
        raise _wrong(field, f"a whole number from 0 to {most}", value)

    def number(self, field: str, least: float, most: float) -> float | None:
        value = self._values.get(field)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        raise _wrong(field, f"a number from {least} to {most}", value)

    def choice(self, field: str, allowed: Sequence[str]) -> str | None:
        value = self._values.get(field)
        if value is None:
            return None
        if isinstance(value, str) and value in allowed:
            return value
        raise _wrong(field, f"one of {', '.join(allowed)}", value)


def require(field: str, value: _T | None, expected: str) -> _T:
    """The value of a required field."""
    if value is None:
        raise BadField(f'"{field}" is missing; expected {expected}')
    return value


def _wrong(field: str, expected: str, value: object) -> BadField:
    if value is None:
        return BadField(f'"{field}" is missing; expected {expected}')
    return BadField(f'"{field}" must be {expected}, got {quote(value)}')


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
