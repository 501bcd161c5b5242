"""Genesys Cloud's AudioHook, version 2, and its Audio Connector; Genesys is the client (docs/protocol/genesys.md).

Binary messages are audio, μ-law or 16-bit little-endian at 8 kHz. Each text is one JSON object with a sequence number
of its sender, and with the last number of the other side. The codec numbers what it sends in the order in which it is
asked to encode.
"""

from __future__ import annotations

import json
import re
from typing import Any

from telephony_tts.wire.fields import (
    CALL_NAME,
    MAX_EXACT_INT,
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
    MediaDtmf,
    MediaMark,
    MediaPlayback,
    MediaStart,
    MediaStop,
    ToMedia,
)
from telephony_tts.wire.native_media import DIGITS, NO_AUDIO, parameters

VERSION = "2"
RATE_HZ = 8000
FORMATS = {"PCMU": "ulaw", "L16": "pcm"}
"""Genesys's names of the formats, and ours."""

PACKET_MS = 200
"""The length of a message of speech: 1600 bytes of μ-law. Genesys answers more messages with the error 429."""

LEAD_MS = 400
"""How much speech Genesys has in advance: two packets."""

MAX_AUDIO_BYTES = 64_000
NO_CONVERSATION = "00000000-0000-0000-0000-000000000000"
"""The conversation of a probe, with which Genesys tests the connection: it only opens and closes."""

CALL_VARIABLE = "call"
"""The input variable with which an Architect flow may name the call."""

CLOSE_REASONS = ("end", "error", "disconnect", "reconnect")
"""Why Genesys closes a session."""

QUIET_TYPES = ("discarded", "paused", "resumed", "pause", "resume", "reconnect")
"""Messages that need no action: the media clock comes with each message."""

TYPES = ("open", "close", "ping", "update", "dtmf", "playback_started", "playback_completed", "error", *QUIET_TYPES)

_DURATION = re.compile(r"PT(?:([0-9]{1,3})H)?(?:([0-9]{1,5})M)?(?:([0-9]{1,8})(?:\.([0-9]{1,9}))?S)?", re.ASCII)
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class GenesysCodec:
    """The codec of one media leg. `call` is the call's name if the address has it."""

    def __init__(self, call: str | None = None) -> None:
        self._call = call
        self._id = ""
        self._seq = 0
        self._client_seq = 0
        self._media: dict[str, Any] | None = None
        self._n_channels = self._channel = 0
        self._position_ms = 0.0
        self._replies: list[tuple[str, dict[str, Any]]] = []
        self.is_open = False
        """An `open` has come."""
        self.is_broken = False
        """The peer has broken the protocol and was told so. Only its `close` is read from now on."""
        self.is_closed = False
        """The session is closed on both sides: nothing may be sent any more."""

    # ---------------------------------------------------------- media leg → server

    def decode(self, data: bytes, want_audio: bool = True, is_text: bool = True) -> FromMedia | None:
        """Read one WebSocket message; None if it needs no action. Never raises: an unreadable message is `Invalid`.

        Send what `replies` returns before anything else is encoded.
        """
        try:
            if not is_text:
                return None if self.is_broken else self._audio(data, want_audio)
            text = decode_text(data)
            if isinstance(text, Invalid):
                return text
            message = parse_object(text)
            return message if isinstance(message, Invalid) else self._message(Fields(message))
        except BadField as error:
            return error.invalid

    def replies(self) -> list[Wire]:
        """The answers to what was decoded, which must be sent now."""
        pending, self._replies = self._replies, []
        return [self.message(kind, fields) for kind, fields in pending]

    def _audio(self, data: bytes, want_audio: bool) -> MediaAudio:
        if self._media is None:
            raise BadField('audio came before "open"', "bad_order")
        sample_bytes = 2 if self._media["format"] == "L16" else 1
        if len(data) % (sample_bytes * self._n_channels):
            raise BadField(f"{len(data)} bytes are not a whole number of samples of {self._n_channels} channels")
        at_ms = int(self._position_ms)
        self._position_ms = min(MAX_MS, self._position_ms + len(data) / sample_bytes / self._n_channels / 8)
        if not want_audio:
            return NO_AUDIO
        if self._n_channels > 1:
            view = memoryview(data).cast("H" if sample_bytes == 2 else "B")
            data = view[self._channel :: self._n_channels].tobytes()
        return MediaAudio(data, at_ms)

    def _message(self, f: Fields) -> FromMedia | None:
        kind = f.get("type")
        if self.is_broken:
            return self._close(f) if kind == "close" else None
        version = f.get("version")
        if version != VERSION:
            raise BadField(f'"version" must be "{VERSION}", got {quote(version)}')
        session = require("id", f.name("id"), "the session's name")
        self._id = self._id or session
        seq = require("seq", f.whole("seq", MAX_EXACT_INT), "a whole number")
        if seq != self._client_seq + 1:
            return self._broken(f'"seq" is {seq}; expected {self._client_seq + 1}')
        self._client_seq = seq
        server_seq = f.whole("serverseq", MAX_EXACT_INT) or 0
        if server_seq > self._seq:
            return self._broken(f'"serverseq" is {server_seq}; the last message had {self._seq}')
        if session != self._id:
            return self._broken(f'"id" is {quote(session)}; this session is {quote(self._id)}')
        if (position_ms := duration_ms(f.get("position"))) is not None:
            self._position_ms = position_ms
        return self._event(kind, f)

    def _event(self, kind: Any, f: Fields) -> FromMedia | None:
        if kind not in TYPES:
            return Invalid("unknown_type", f'"type" {quote(kind)} is not known; known types: {", ".join(TYPES)}')
        if kind == "open":
            try:
                return self._open(f)
            except BadField as error:
                return self._broken(error.invalid.message, error.invalid.code)
        if kind == "ping":
            self._replies.append(("pong", {}))
            return None
        if kind == "close":
            return self._close(f)
        if not self.is_open:
            raise BadField(f'"{kind}" came before "open"', "bad_order")
        match kind:
            case "dtmf":
                digit = f.inner("parameters").choice("digit", DIGITS)
                return MediaDtmf(require("digit", digit, f"one of {DIGITS}"))
            case "playback_started":
                return MediaPlayback("playing")
            case "playback_completed":
                return MediaPlayback("played")
            case "update":
                self._replies.append(("updated", {}))
            case "error":
                about = f.inner("parameters")
                return Invalid("peer_error", f"Genesys says {quote(about.get('code'))}: {quote(about.get('message'))}")
        return None

    def _open(self, f: Fields) -> FromMedia | None:
        if self.is_open:
            raise BadField('a second "open" on one leg', "bad_order")
        given = f.inner("parameters")
        conversation = given.name("conversationId")
        self._media = _choose(given.get("media"))
        channels = self._media["channels"]
        self._n_channels, self._channel = len(channels), channels.index("external")
        if conversation == NO_CONVERSATION:
            self.is_open = True
            self._replies.append(self._opened())
            return None
        about = _parameters(given)
        call = self._call or about.get(CALL_VARIABLE) or conversation
        if not isinstance(call, str) or not CALL_NAME.fullmatch(call):
            raise BadField(f"the call's name must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, got {quote(call)}")
        self.is_open = True
        codec = FORMATS[self._media["format"]]
        return MediaStart(call, self._id, codec, RATE_HZ, about, 20, LEAD_MS, PACKET_MS)

    def _close(self, f: Fields) -> MediaStop:
        given = f.get("parameters")
        reason = given.get("reason") if isinstance(given, dict) else None
        self._replies.append(("closed", {}))
        self.is_closed = True
        return MediaStop(reason if reason in CLOSE_REASONS else "hangup")

    def _broken(self, why: str, code: str = "bad_order") -> Invalid:
        self.is_broken = True
        self._replies.append(("disconnect", {"reason": "error", "info": why}))
        return Invalid(code, why)

    def _opened(self) -> tuple[str, dict[str, Any]]:
        assert self._media is not None
        return "opened", {"startPaused": False, "media": [self._media]}

    # ---------------------------------------------------------- server → media leg

    def opened(self) -> Wire:
        """The answer to `open`: from now on Genesys sends the caller's audio."""
        return self.message(*self._opened())

    def disconnect(self, reason: str, info: str = "") -> Wire:
        """Ask Genesys to close the session. It answers with `close`."""
        return self.message("disconnect", {"reason": reason, **({"info": info} if info else {})})

    def encode(self, message: ToMedia) -> Wire | None:
        """Encode one message for Genesys, which has no marks: None."""
        if type(message) is Frame:
            return message.payload, False
        if isinstance(message, MediaMark):
            return None
        return self.message("event", {"entities": [{"type": "barge_in", "data": {}}]})

    def message(self, kind: str, fields: dict[str, Any]) -> Wire:
        """Encode one message with the next sequence number."""
        self._seq += 1
        head = {"version": VERSION, "type": kind, "id": self._id, "seq": self._seq, "clientseq": self._client_seq}
        return clean(_to_json({**head, "parameters": fields})).encode(), True


def duration_ms(value: Any) -> float | None:
    """A duration of ISO 8601 such as "PT1.5S", in milliseconds; None if it is none, or longer than a day."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None or value == "PT":
        return None
    hours, minutes, seconds, fraction = found.groups(default="0")
    whole_ms = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1000
    total_ms = whole_ms + int(fraction) * 1000 / 10 ** len(fraction)
    return total_ms if total_ms <= MAX_MS else None


def _choose(offered: Any) -> dict[str, Any]:
    """The first offer with only the caller's channel, else the first that has it beside others."""
    known = [offer for offer in offered if _is_known(offer)] if isinstance(offered, list) else []
    known.sort(key=lambda offer: len(offer["channels"]))  # keeps the order of offers with as many channels
    if not known:
        raise BadField(
            f'"media" must offer {" or ".join(FORMATS)} at {RATE_HZ} Hz with the channel external', "unsupported_codec"
        )
    chosen = known[0]
    return {"type": "audio", "format": chosen["format"], "channels": chosen["channels"], "rate": RATE_HZ}


def _is_known(offer: Any) -> bool:
    if not isinstance(offer, dict):
        return False
    form, channels = offer.get("format"), offer.get("channels")
    return (
        offer.get("type") == "audio"
        and isinstance(form, str)
        and form in FORMATS
        and offer.get("rate") == RATE_HZ
        and isinstance(channels, list)
        and sorted(map(str, channels)) in (["external"], ["external", "internal"])
    )


def _parameters(given: Fields) -> dict[str, str]:
    """The parameters of the call: who takes part, and above them the input variables of the flow."""
    participant = given.get("participant")
    who = participant if isinstance(participant, dict) else {}
    about = {name: given.get(name) for name in ("organizationId", "conversationId", "language")}
    about |= {name: who.get(name) for name in ("ani", "aniName", "dnis")}
    variables = given.get("inputVariables")
    about |= variables if isinstance(variables, dict) else {}
    return parameters({name: value for name, value in about.items() if isinstance(value, str | int | float)})
