"""Reads the options in the address of `/v1/stream` (PROTOCOL.md §3) into a frozen record, or `Invalid`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from telephony_tts.wire.fields import CALL_NAME, MAX_NAME_CHARS, BadField, clean, quote
from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.native import (
    AUDIO_FORMS,
    BARGE_IN_ACTIONS,
    CALLER_SILENT_MS,
    DTMF_WAYS,
    FALSE_INTERRUPTION_MS,
    MAX_HOLD_OFF_MS,
    MAX_RESUME_AFTER_MS,
    MAX_SPEED,
    MAX_STEP_BACK_MS,
    MIN_SPEECH_MS,
    MIN_SPEED,
    SWITCH,
    TEXT_TYPES,
    THINKING,
)

CODECS = ("ulaw", "alaw", "pcm")
RATES_HZ = (8000, 16000, 24000, 48000)
PTIMES_MS = (10, 20, 30, 40, 60)
PACES = ("realtime", "burst")
RECORD = ("on",)
MAX_LEAD_MS = 60_000
MAX_TOKEN_CHARS = 4096
MAX_OPTIONS = 64
_MAX_UNKNOWN_CHARS = 40
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
"""A plain decimal number. `float` alone would also read "nan", "1_0" and digits of other scripts."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a client. None means "not given": the defaults are in the server's configuration.

    `unknown` has the names of unknown options, shortened, in order and once each; the server warns about them.
    """

    codec: str | None = None
    rate_hz: int | None = None
    ptime_ms: int | None = None
    audio: str | None = None
    pace: str | None = None
    lead_ms: int | None = None
    voice: str | None = None
    lang: str | None = None
    speed: float | None = None
    text_type: str | None = None
    thinking: str | None = None
    call: str | None = None
    token: str | None = field(default=None, repr=False)  # a secret: not in the repr, which may be logged
    inbound: str | None = None
    barge_in: str | None = None
    min_speech_ms: int | None = None
    hold_off_ms: int | None = None
    barge_in_action: str | None = None
    false_interruption_ms: int | None = None
    resume_after_ms: int | None = None
    step_back_ms: int | None = None
    words: str | None = None
    caller_silent_ms: int | None = None
    dtmf: str | None = None
    answering_machine: str | None = None
    lexicon: str | None = None
    record: str | None = None
    unknown: tuple[str, ...] = ()


def parse_stream_query(path: str) -> StreamOptions | Invalid:
    """Read the options of a request target such as `/v1/stream?codec=alaw&lead_ms=60`. Never raises.

    The last of a repeated option counts. `+` is a space, as in HTML forms; write a plus as `%2B`.
    """
    query = path.partition("?")[2].partition("#")[0]
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_OPTIONS)
    except ValueError:
        return Invalid("bad_option", f"more than {MAX_OPTIONS} options in the address")
    given: dict[str, Any] = {}
    unknown: dict[str, None] = {}
    for name, raw in pairs:
        option = _OPTIONS.get(name)
        if option is None:
            unknown[clean(name)[:_MAX_UNKNOWN_CHARS]] = None
            continue
        attribute, read = option
        try:
            given[attribute] = read(clean(raw))
        except BadField as error:
            # Kept, not returned: a later value of the same option replaces it.
            shown = "(not shown)" if name == "token" else quote(raw)
            given[attribute] = Invalid("bad_option", f"{name}={shown}: expected {error}")
    for value in given.values():
        if isinstance(value, Invalid):
            return value
    return StreamOptions(**given, unknown=tuple(unknown))


def token_in(path: str) -> str | None:
    """The token of a request target, even if its other options are invalid."""
    options = parse_stream_query(path)
    if not isinstance(options, Invalid):
        return options.token
    try:
        pairs = parse_qsl(path.partition("?")[2].partition("#")[0], max_num_fields=MAX_OPTIONS)
    except ValueError:
        return None
    return next((clean(raw) for name, raw in reversed(pairs) if name == "token"), None)


def _choice(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if raw not in allowed:
            raise BadField(f"one of {', '.join(allowed)}")
        return raw

    return read


def _number(allowed: tuple[int, ...]) -> Callable[[str], int]:
    names = {str(value): value for value in allowed}

    def read(raw: str) -> int:
        if raw not in names:
            raise BadField(f"one of {', '.join(names)}")
        return names[raw]

    return read


def _milliseconds(least: int, most: int) -> Callable[[str], int]:
    def read(raw: str) -> int:
        if raw.isascii() and raw.isdecimal() and len(raw) <= 6 and least <= int(raw) <= most:
            return int(raw)
        raise BadField(f"a whole number of milliseconds from {least} to {most}")

    return read


def _off_or(read: Callable[[str], int]) -> Callable[[str], int]:
    def read_or_zero(raw: str) -> int:
        try:
            return 0 if raw == "0" else read(raw)
        except BadField as error:
            raise BadField(f"0, or {error}") from None

    return read_or_zero


def _decimal(least: float, most: float) -> Callable[[str], float]:
    def read(raw: str) -> float:
        if _DECIMAL.fullmatch(raw) and least <= float(raw) <= most:
            return float(raw)
        raise BadField(f"a number from {least} to {most}")

    return read


def _name(most: int) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if not 1 <= len(raw) <= most or not raw.isprintable():
            raise BadField(f"1 to {most} printable characters")
        return raw

    return read


def _call(raw: str) -> str:
    if not CALL_NAME.fullmatch(raw):
        raise BadField("1 to 128 of the characters A-Z a-z 0-9 _ . : -")
    return raw


def _token(raw: str) -> str:
    if len(raw) > MAX_TOKEN_CHARS:
        raise BadField(f"at most {MAX_TOKEN_CHARS} characters")
    return raw


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "codec": ("codec", _choice(CODECS)),
    "rate": ("rate_hz", _number(RATES_HZ)),
    "ptime_ms": ("ptime_ms", _number(PTIMES_MS)),
    "audio": ("audio", _choice(AUDIO_FORMS)),
    "pace": ("pace", _choice(PACES)),
    "lead_ms": ("lead_ms", _milliseconds(0, MAX_LEAD_MS)),
    "voice": ("voice", _name(MAX_NAME_CHARS)),
    "lang": ("lang", _name(35)),
    "speed": ("speed", _decimal(MIN_SPEED, MAX_SPEED)),
    "text_type": ("text_type", _choice(TEXT_TYPES)),
    "thinking": ("thinking", _choice(THINKING)),
    "call": ("call", _call),
    "token": ("token", _token),
    "inbound": ("inbound", _choice(AUDIO_FORMS)),
    "barge_in": ("barge_in", _choice(SWITCH)),
    "min_speech_ms": ("min_speech_ms", _milliseconds(*MIN_SPEECH_MS)),
    "hold_off_ms": ("hold_off_ms", _milliseconds(0, MAX_HOLD_OFF_MS)),
    "barge_in_action": ("barge_in_action", _choice(BARGE_IN_ACTIONS)),
    "false_interruption_ms": ("false_interruption_ms", _milliseconds(*FALSE_INTERRUPTION_MS)),
    "resume_after_ms": ("resume_after_ms", _milliseconds(0, MAX_RESUME_AFTER_MS)),
    "step_back_ms": ("step_back_ms", _milliseconds(0, MAX_STEP_BACK_MS)),
    "words": ("words", _choice(SWITCH)),
    "caller_silent_ms": ("caller_silent_ms", _off_or(_milliseconds(*CALLER_SILENT_MS))),
    "dtmf": ("dtmf", _choice(DTMF_WAYS)),
    "answering_machine": ("answering_machine", _choice(SWITCH)),
    "lexicon": ("lexicon", _name(MAX_NAME_CHARS)),
    "record": ("record", _choice(RECORD)),
}
