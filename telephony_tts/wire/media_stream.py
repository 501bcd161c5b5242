"""Media streams of JSON text, as most carriers have them: one state machine, and a table of keys for each carrier.

The carrier is the WebSocket client. Its numbers arrive as strings or integers, and the order of keys does not matter.
Audio is base64 in JSON. A carrier's module has its table, and its codec overrides what a table cannot say.
"""

from __future__ import annotations

import json
import re
from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from telephony_tts.wire.fields import (
    CALL_NAME,
    MAX_MARK_CHARS,
    MAX_MS,
    BadField,
    Fields,
    Wire,
    clean,
    decode_text,
    parse_object,
    quote,
    require,
)
from telephony_tts.wire.messages import (
    Frame,
    FromMedia,
    Invalid,
    MediaAudio,
    MediaClear,
    MediaDtmf,
    MediaMark,
    MediaStart,
    MediaStop,
    ToMedia,
)

NO_AUDIO = MediaAudio(b"")
"""Every media message decodes to this while the caller's audio is not wanted."""

DIGITS = "0123456789*#ABCD"


@cache
def _certainly_media(event: str) -> re.Pattern[bytes]:
    """What a media message begins with, if the field `event` says what a message is.

    Matches only if a full parse of a well-formed message would find `event`: "media" at the top level: before it there
    are only flat string or number fields without escapes, none of them `event`. Everything else goes to the full parse.
    Possessive quantifiers (`*+`), so a hostile message costs one pass.
    """
    pattern = rb"""[ \t\r\n]*\{[ \t\r\n]*
    (?: "(?!EVENT") [^"\\]*+ "[ \t\r\n]*:[ \t\r\n]* (?: "[^"\\]*+" | [0-9]++ ) [ \t\r\n]*,[ \t\r\n]* )*+
    "EVENT"[ \t\r\n]*:[ \t\r\n]*"media"[ \t\r\n]*[,}]"""
    return re.compile(pattern.replace(b"EVENT", event.encode()), re.VERBOSE)


# Matches only the usual form of the caller's audio, in which a full parse would find these two values: flat fields
# without escapes, none of them twice. Reading it takes half the time.
_PLAIN_PAIR = rb"""(?: "(?!event"|media") \w++ ":[ ]? (?: "[ !\#-\[\]-~]*+" | 0 | [1-9][0-9]{0,14}+ ) )"""
_PLAIN_AUDIO = re.compile(
    rb"""\{"event":[ ]?"media",[ ]? (?: """ + _PLAIN_PAIR + rb""",[ ]? )*+ "media":[ ]?\{
    "track":[ ]?"inbound(?:_track)?",[ ]? "chunk":[ ]?"[0-9]{1,15}+",[ ]?
    "timestamp":[ ]?"([0-9]{1,7}+)",[ ]? "payload":[ ]?"([A-Za-z0-9+/]*+={0,2})" \}
    (?: ,[ ]?""" + _PLAIN_PAIR + rb""" )*+ \}""",
    re.VERBOSE,
)
_RATE = re.compile(r"; *rate=([0-9]{4,5})")

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """What a carrier calls things. `formats` are the encodings that it names, in lower case: each has our codec and its
    rates, of which the first is the default. The first format is that of a `start` that names none. `facts` are fields
    of `start` that become parameters of the call."""

    carrier: str
    stream: str
    call: str
    parameters: str
    media_format: str
    rate: str
    formats: Mapping[str, tuple[str, tuple[int, ...]]]
    facts: tuple[str, ...] = ()
    mark: str = "mark"
    ignored: tuple[str, ...] = ("connected",)
    event: str = "event"
    """The field that says what a message is."""

    @property
    def rates_hz(self) -> tuple[int, ...]:
        """The rates of all formats."""
        return tuple(sorted({rate_hz for _, rates_hz in self.formats.values() for rate_hz in rates_hz}))

    @property
    def events(self) -> tuple[str, ...]:
        return (*self.ignored, "start", "media", "dtmf", self.mark, "stop")


class MediaStreamCodec:
    """The codec of one media leg. It learns `stream`, the peer's name of the leg, from the peer's `start`."""

    keys: ClassVar[StreamKeys]

    def __init__(self) -> None:
        self.stream: str | None = None
        self._sample_bytes = 1
        self._certainly_media = _certainly_media(self.keys.event)
        self._reads_plain = type(self)._audio is MediaStreamCodec._audio and self.keys.event == "event"
        self._media_head = b""
        self._mark_head = self._mark_tail = ""
        self._clear = b""

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: str | bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`.

        Without `want_audio` a media message is recognised by its first bytes and becomes `NO_AUDIO`; its payload is
        not read.
        """
        if not is_text:
            what = f"{self.keys.carrier} media streams carry JSON text, not binary messages"
            return Invalid("binary_not_expected", what)
        if not want_audio and self.stream is not None and isinstance(data, bytes) and self._certainly_media.match(data):
            return NO_AUDIO
        if want_audio and self._reads_plain and self.stream is not None and isinstance(data, bytes):
            plain = _PLAIN_AUDIO.fullmatch(data)
            if plain is not None:
                try:
                    audio = a2b_base64(plain[2], strict_mode=True)
                except ValueError:
                    audio = None
                if audio is not None and not len(audio) % self._sample_bytes:
                    return MediaAudio(audio, int(plain[1]))
        text = decode_text(data)
        if isinstance(text, Invalid):
            return text
        message = parse_object(text)
        if isinstance(message, Invalid):
            return message
        try:
            return self._event(Fields(message), want_audio)
        except BadField as error:
            return error.invalid

    def _event(self, f: Fields, want_audio: bool) -> FromMedia | None:
        event = f.get(self.keys.event)
        if event == "media" and self.stream is not None:
            return self._audio(f.inner("media")) if want_audio else NO_AUDIO
        if event == "start":
            return self._start(f)
        events = self.keys.events
        if event not in events:
            known = f"known events: {', '.join(events)}"
            return Invalid("unknown_type", f'"{self.keys.event}" {quote(event)} is not known; {known}')
        if event in self.keys.ignored:
            return None
        if self.stream is None:
            raise BadField(f'"{event}" came before "start"', "bad_order")
        if event == "dtmf":
            return MediaDtmf(_digit(f.inner("dtmf")))
        if event == self.keys.mark:
            name = self._mark_fields(f).name("name", MAX_MARK_CHARS, printable=False)
            return MediaMark(require("name", name, f"a string of 1 to {MAX_MARK_CHARS} characters"))
        return MediaStop()

    def _start(self, f: Fields) -> MediaStart:
        if self.stream is not None:
            raise BadField('a second "start" on one stream', "bad_order")
        keys, start = self.keys, f.inner("start")
        call = require(keys.call, start.name(keys.call), "the call's name")
        if not CALL_NAME.fullmatch(call):
            raise BadField(f'"{keys.call}" must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, got {quote(call)}')
        stream = require(keys.stream, start.name(keys.stream) or f.name(keys.stream), "the stream's name")
        codec, rate_hz = self._format(start)
        given = {fact: start.get(fact) for fact in keys.facts}
        parameters = scalars(given) | scalars(self._custom_parameters(f, start))
        message = self._started(call, stream, codec, rate_hz, parameters)
        self.stream = stream
        self._sample_bytes = 2 if codec == "pcm" else 1
        self._begin(_to_json(stream), message)
        return message

    def _format(self, start: Fields) -> tuple[str, int]:
        """(codec, rate) of the audio that the peer sends."""
        keys = self.keys
        encoding, rate = None, None
        if start.get(keys.media_format) is not None:
            media_format = start.inner(keys.media_format)
            encoding, rate = media_format.get("encoding"), media_format.get(keys.rate)
        if encoding is None:
            name, told = next(iter(keys.formats)), None
        else:
            name = encoding.partition(";")[0].strip().lower() if isinstance(encoding, str) else ""
            told = _RATE.search(encoding) if isinstance(encoding, str) else None
        codec, rates_hz = keys.formats.get(name, ("", ()))
        if rate is None:
            rate = told[1] if told else self._default_rate_hz(rates_hz)
        known = {str(rate_hz): rate_hz for rate_hz in rates_hz}
        if not codec or isinstance(rate, bool) or str(rate) not in known:
            allowed = "; ".join(f"{each} at {_rates(rates)} Hz" for each, (_, rates) in keys.formats.items())
            got = f"{quote(encoding)} at {quote(rate)}"
            raise BadField(f'"{keys.media_format}" must be {allowed}; got {got}', "unsupported_codec")
        return codec, known[str(rate)]

    def _default_rate_hz(self, rates_hz: tuple[int, ...]) -> int | None:
        """The rate of a `start` that names none."""
        return rates_hz[0] if rates_hz else None

    def _custom_parameters(self, _f: Fields, start: Fields) -> Any:
        return start.get(self.keys.parameters)

    def _started(self, call: str, stream: str, codec: str, rate_hz: int, parameters: dict[str, str]) -> MediaStart:
        return MediaStart(call, stream, codec, rate_hz, parameters)

    def _mark_fields(self, f: Fields) -> Fields:
        """The object that names a mark."""
        return f.inner("mark")

    def _audio(self, media: Fields) -> MediaAudio | None:
        if media.get("track") not in ("inbound", "inbound_track", None):
            return None  # the server's own speech, sent back by the carrier
        payload = media.get("payload")
        if not isinstance(payload, str):
            raise BadField(f'"payload" must be base64 in a string, got {quote(payload)}')
        try:
            audio = a2b_base64(payload, strict_mode=True)
        except ValueError as error:
            raise BadField(f'"payload" is not base64: {error}') from None
        if len(audio) % self._sample_bytes:
            raise BadField(f'"payload" has {len(audio)} bytes, which is not a whole number of samples of 2 bytes')
        return MediaAudio(audio, whole(media.get("timestamp")))

    # ---------------------------------------------------------- server → media leg

    def _begin(self, stream: str, start: MediaStart) -> None:
        """Prepare what is sent to the peer. `stream` is the leg's name as JSON."""
        head = f'"{self.keys.stream}":{stream}'
        self._media_head = f'{{"event":"media",{head},"media":{{"payload":"'.encode()
        self._mark_head, self._mark_tail = f'{{"event":"mark",{head},"mark":{{"name":', "}}"
        self._clear = f'{{"event":"clear",{head}}}'.encode()

    def encode(self, message: ToMedia) -> Wire:
        """Encode one message for the carrier. Raises RuntimeError before `start`, which names the stream."""
        if self.stream is None:
            raise RuntimeError(f'nothing can be sent to {self.keys.carrier} before its "start"')
        if type(message) is Frame:
            return self._media_head + b2a_base64(message.payload, newline=False) + b'"}}', True
        if isinstance(message, MediaMark):
            return (self._mark_head + clean(_to_json(message.name)) + self._mark_tail).encode(), True
        assert isinstance(message, MediaClear)
        return self._clear, True


def swapped(samples: bytes) -> bytes:
    """16-bit samples in the other byte order."""
    words = array("h", samples)
    words.byteswap()
    return words.tobytes()


def scalars(value: Any) -> dict[str, str]:
    """The fields of an object as strings. A field that is not a scalar is left out: carriers have no form for it."""
    if not isinstance(value, dict):
        return {}
    return {
        clean(name): clean(v) if isinstance(v, str) else json.dumps(v)
        for name, v in value.items()
        if isinstance(v, str | int | float)
    }


def whole(value: Any) -> int | None:
    """A count or a time in milliseconds, from a string of digits or a number; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(MAX_MS)):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MS else None


def _digit(dtmf: Fields) -> str:
    digit = dtmf.get("digit")
    if isinstance(digit, str) and len(digit) == 1 and digit in DIGITS:
        return digit
    raise BadField(f'"digit" must be one of 0-9 * # A-D, got {quote(digit)}')


def _rates(rates_hz: tuple[int, ...]) -> str:
    return ", ".join(map(str, rates_hz))
