"""FreeSWITCH's mod_audio_stream and mod_audio_fork (docs/protocol/freeswitch.md).

Binary messages are the caller's audio, s16 little-endian. Neither module plays audio: it writes speech into a file and
raises an event. The client of FreeSWITCH's event socket plays the file and reports with `REPORTS`, through `send_text`
of the module. Messages to that client are JSON, which the module passes on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from telephony_tts.wire.fields import CALL_NAME, BadField, Fields, Wire, clean, decode_text, parse_object, quote
from telephony_tts.wire.messages import (
    FromMedia,
    Invalid,
    MediaAudio,
    MediaDtmf,
    MediaPlayback,
    MediaStart,
    MediaTones,
)
from telephony_tts.wire.native_media import DIGITS, NO_AUDIO, parameters

FORK_PROTOCOL = "audio.drachtio.org"
"""The subprotocol of mod_audio_fork; mod_audio_stream has none."""

CALL_HEADER = "X-Call"
"""The header of STREAM_EXTRA_HEADERS that may name the call."""

CALLER_HEADERS = {"X-From": "from", "X-To": "to"}
"""Other headers, and their names among the call's parameters."""

CALL_FIELDS = ("call", "uuid", "callSid")
"""The fields of the metadata that may name the call, in this order."""

RATES_HZ = (8000, 16000)
LEAD_MS = 60_000
"""The session sends speech without pacing: the leg decides when to send a file."""

AHEAD_MS = 8_000
"""Speech is synthesised at least so far ahead. FreeSWITCH loses 40 ms of the caller at the beginning and end of each
file, and only sentences that are ready can share a file. A turn of ten seconds becomes two files."""

REPORTS = ("playing", "played", "failed", "again", "dtmf")
"""The reports of the client that plays, in the field `esl`."""

MAX_FILE_BYTES = 480_000
"""The most PCM in one file: 640 kB as base64, which the modules accept. A longer sentence becomes two files."""


class FreeSwitchCodec:
    """The codec of one media leg. `call`, `rate_hz` and `caller` come from the handshake."""

    def __init__(
        self,
        is_fork: bool,
        call: str | None = None,
        rate_hz: int | None = None,
        caller: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.is_fork = is_fork
        self._caller = caller
        self._call = call
        self._rate_hz = rate_hz
        self.start: MediaStart | None = None

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`.

        The first message of a leg gives its MediaStart. It is the metadata, or any message if the handshake has named
        the call.
        """
        try:
            if not is_text:
                return self._audio(data, want_audio)
            text = decode_text(data)
            if isinstance(text, Invalid):
                return text
            if self.start is None:
                return self._metadata(text)
            message = parse_object(text)
            # The module also sends text of other programs, for example when it stops: ignore it.
            return self._report(Fields(message)) if isinstance(message, dict) and "esl" in message else None
        except BadField as error:
            return error.invalid

    def begin(self, metadata: dict[str, Any] | None = None) -> MediaStart:
        """Start the leg with what is known. Raises BadField if that is not enough."""
        given = {**self._caller, **(metadata or {})}
        fields = Fields(given)
        call = self._call or next((given[name] for name in CALL_FIELDS if given.get(name) is not None), None)
        if not isinstance(call, str) or not CALL_NAME.fullmatch(call):
            raise BadField(
                "the call needs a name of 1 to 128 of the characters A-Z a-z 0-9 _ . : -, as metadata "
                f'{{"call":"NAME"}} or as {CALL_HEADER} in STREAM_EXTRA_HEADERS; got {quote(call)}'
            )
        rate_hz = fields.get("rate_hz") or fields.get("sampleRate") or self._rate_hz or 8000
        if rate_hz not in RATES_HZ:
            rates = " or ".join(map(str, RATES_HZ))
            raise BadField(f"the sample rate must be {rates}, got {quote(rate_hz)}", "unsupported_codec")
        flat = {name: value for name, value in given.items() if isinstance(value, str | int | float)}
        self.start = MediaStart(
            call, call, "pcm", int(rate_hz), parameters(flat), 20, LEAD_MS, whole_sentences=True, ahead_ms=AHEAD_MS
        )
        return self.start

    def _metadata(self, text: str) -> MediaStart | Invalid:
        message = parse_object(text)
        if isinstance(message, dict) and "esl" in message:
            raise BadField("a report came before the leg had started", "bad_order")
        if self._call is None and isinstance(message, Invalid):
            return message
        return self.begin(message if isinstance(message, dict) else {"metadata": clean(text[:1024])})

    def _audio(self, data: bytes, want_audio: bool) -> MediaAudio | MediaStart:
        if self.start is None:
            return self.begin()
        if len(data) % 2:
            raise BadField(f"{len(data)} bytes are not a whole number of samples of 2 bytes")
        return MediaAudio(data) if want_audio else NO_AUDIO

    def _report(self, f: Fields) -> FromMedia:
        what = f.get("esl")
        if what not in REPORTS:
            return Invalid("unknown_type", f'"esl" {quote(what)} is not known; known are {", ".join(REPORTS)}')
        if what == "dtmf":
            digit = f.get("digit")
            if not isinstance(digit, str) or len(digit) != 1 or digit not in DIGITS:
                raise BadField(f'"digit" must be one of {DIGITS}, got {quote(digit)}')
            return MediaDtmf(digit)
        if what == "again":
            return MediaPlayback("again")
        return MediaPlayback(str(what), f.name("file") or "")

    # ---------------------------------------------------------- server → media leg

    def file(self, name: str, pcm: bytes) -> Wire:
        """Speech to play as one file. The module puts `name` (as "id") into its event."""
        assert self.start is not None
        kind, form, audio = ("playAudio", "audioContentType", "audioContent") if self.is_fork else (
            "streamAudio", "audioDataType", "audioData",
        )  # fmt: skip
        head = f'{{"type":"{kind}","data":{{"{form}":"raw","sampleRate":{self.start.rate_hz},"id":"{name}","{audio}":"'
        return b"".join((head.encode(), base64.b64encode(pcm), b'"}}')), True

    def clear(self, before: int) -> Wire:
        """Do not play files before the number `before`, and stop the one that plays."""
        return _control({"tts": "clear", "before": before})

    def hello(self, next_number: int = 1) -> Wire:
        """Claim the call: the same FreeSWITCH may have calls of other programs.

        Sent again during a call, it has the number of the next file. A bridge that does not know the call then asks
        for the files that it has missed.
        """
        return _control({"tts": "hello"} if next_number == 1 else {"tts": "hello", "next": next_number})

    def tones(self, message: MediaTones) -> Wire:
        """Tones for the telephone."""
        return _control({"tts": "dtmf", "digits": message.digits, "on_ms": message.on_ms, "off_ms": message.off_ms})

    def hang_up(self) -> Wire:
        """The server has ended the call."""
        return _control({"tts": "hangup"})


def _control(data: dict[str, Any]) -> Wire:
    """The form that both modules pass on, as the body of their event ::json."""
    return json.dumps({"type": "json", "data": data}, separators=(",", ":")).encode(), True
