"""What happened on a recorded call, as rows of JSON. Times are milliseconds since the recording began.

    {"ms":1240,"by":"bot","type":"say","turn":"t1","text":"Good morning."}
    {"ms":1241,"by":"server","type":"started","turn":"t1","first_audio_ms":1.2,"heard_ms":1241}

`by` says who: "bot" and "peer" (the telephone side) for messages that came, "server" for events and for the recording
itself. Messages and events have the names and fields of PROTOCOL.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any, NamedTuple

from telephony_tts.wire import messages as m
from telephony_tts.wire.native import EVENT_TYPES

VERSION = 1
BOT, PEER, SERVER = "bot", "peer", "server"

_BOT_TYPES = {m.SendDtmf: "dtmf", m.Configure: "config"}
_PEER_TYPES: dict[type, str] = {
    m.MediaStart: "start", m.MediaMark: "mark", m.MediaStop: "stop", m.MediaPlayback: "playback", m.MediaBegun: "begun",
    m.MediaLost: "lost", m.MediaMarksLost: "marks_lost",
}  # fmt: skip
_PEER_MESSAGES = (*_PEER_TYPES, m.MediaAudio, m.MediaDtmf, m.MediaHold, m.MediaFlow, m.MediaBuffered)
_NOT_TOLD = (m.InboundAudio, m.Pong, m.StatusReport, m.Ready, m.TurnSent, m.Ping, m.Status, m.MediaDtmf, m.MediaHold,
             m.MediaFlow, m.MediaBuffered)  # fmt: skip
"""Messages that say nothing about the call. A MediaDtmf and a MediaHold come again as events."""
_PRIVATE = frozenset({"text", "heard_text", "unheard_text", "words", "message"})
"""Fields that hold the text of a turn, or may quote it."""
_LEFT_OUT = frozenset({"parameters"})
"""Fields that a peer fills with anything, such as its tokens."""

_FIELD_NAMES: dict[type[Any], tuple[str, ...]] = {}

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class Row(NamedTuple):
    """A row before it is written. `what` is a message, or the type of a row of the recording itself."""

    ms: int
    by: str
    what: object
    is_private: bool = False
    more: dict[str, Any] | None = None
    line: bytes = b""
    """The row as it is written, once it was made: the recorder counts its length."""

    @property
    def n_bytes(self) -> int:
        """The length of its line. A row about the recording itself, which has no line yet, is shorter than this."""
        return len(self.line) or 500


def row_of(message: object, ms: int, *, is_private: bool = False, **more: Any) -> Row | None:
    """The row of a message or an event; None if it does not belong on a timeline."""
    kind = type(message)
    if kind in _NOT_TOLD:
        return None
    by = SERVER if kind in EVENT_TYPES else PEER if kind in _PEER_MESSAGES else BOT
    return Row(ms, by, message, is_private, more or None)


def line_of(row: Row) -> bytes:
    """The row as a line. Text of a private turn is not in it, only its length."""
    if row.line:
        return row.line
    told: dict[str, Any] = {"ms": row.ms, "by": row.by}
    if isinstance(row.what, str):
        told["type"] = row.what
    else:
        kind: type[Any] = type(row.what)
        told["type"] = EVENT_TYPES.get(kind) or _PEER_TYPES.get(kind) or _bot_type(kind)
        for name in _names(kind):
            value = getattr(row.what, name)
            if value is None or name in _LEFT_OUT or (name == "private" and not value):
                continue
            if row.is_private and name in _PRIVATE:
                if isinstance(value, str):
                    told[f"{name}_chars"] = len(value)
            else:
                told[name] = _finite(value)
    if row.more is not None:
        told |= row.more
    # A lone surrogate has no UTF-8. Decoders replace them, so this is for text that no decoder has seen.
    return _to_json(told).encode("utf-8", "replace") + b"\n"


def _bot_type(kind: type) -> str:
    for known, name in _BOT_TYPES.items():
        if kind is known:
            return name
    return kind.__name__.removesuffix("Speech").lower()


def _names(kind: type[Any]) -> tuple[str, ...]:
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind))
    return _FIELD_NAMES[kind]


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
