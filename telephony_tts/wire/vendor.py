"""What the dialects of other vendors have in common: text in, audio and events out, on one WebSocket.

A bot that was written for another vendor's speech service connects here with only its address changed. A dialect is a
pure state machine of one connection: it turns the client's messages into steps, and our events into messages of the
vendor. `transport/vendor_leg.py` drives it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl

from telephony_tts.wire.fields import Wire, clean
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    ErrorEvent,
    FromBot,
    SentenceSpoken,
    SpokenText,
    TurnSent,
    WarningEvent,
)

MAX_OPTIONS = 64

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this to the client now. `refused` says why its message was refused, for the log."""

    wire: Wire
    refused: str = ""


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """Close the connection with this WebSocket code. Audio that was not sent yet is dropped."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Credential:
    """A key in a message, for clients that could not send it in a header. A wrong one closes the connection."""

    key: str


@dataclass(frozen=True, slots=True)
class ChangeAudio:
    """The format of the audio from now on, for dialects whose client names it in a message, before any text."""

    codec: str
    rate_hz: int
    container: str = ""


Step = FromBot | Reply | CloseSocket | Credential | ChangeAudio
"""What a client's message asks for. Messages of `wire.messages` go to the session."""

VendorEvent = TurnSent | Cleared | ErrorEvent | WarningEvent | SentenceSpoken
"""Our events that a dialect gets.

Each turn has exactly one of TurnSent, Cleared, and ErrorEvent with its `turn`. A turn that was sent ahead may still
have Cleared after TurnSent, until its listener has heard it.
"""


@dataclass(frozen=True, slots=True)
class VendorOptions:
    """What a client asked for in its handshake. None: the server decides.

    `codec` is one of "pcm" (16 bit, little-endian), "ulaw" and "alaw". `container` names the format of a stream that is
    not plain samples, such as "mp3" or "wav"; the audio is "pcm" before it. `voice` is the client's name for the voice.
    `call` joins the call of a media leg. With `splits_words` the text that comes with audio ends where the audio ends,
    even inside a word. With `parallel_turns` the client may stop playing a turn without telling us. With `whole_pieces`
    it takes one message of audio for each piece of text that it sends.
    """

    codec: str = "pcm"
    rate_hz: int = 24_000
    container: str = ""
    voice: str | None = None
    lang: str | None = None
    speed: float | None = None
    call: str | None = None
    splits_words: bool = False
    parallel_turns: bool = False
    whole_pieces: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The vendor's answer to a handshake that cannot be served."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class VendorDialect(Protocol):
    """One connection in a vendor's protocol. Nothing here raises for what a client sends."""

    options: VendorOptions
    needs_alignment: bool
    """Whether `audio` gets the characters that it speaks. To find them costs time."""

    def headers(self) -> Iterable[tuple[str, str]]:
        """Headers of the answer to the handshake."""

    def greeting(self) -> Iterable[Wire]:
        """What the client gets before anything else."""

    def decode(self, data: bytes, is_text: bool) -> Iterable[Step]:
        """The steps of one message, in order. Steps run one by one: events that a step causes come before the next."""

    def audio(self, turn: str, payload: bytes, spoken: SpokenText | None) -> Iterable[Wire]:
        """Audio of a turn, in the codec of `options`. With a container `payload` may be empty."""

    def event(self, event: VendorEvent) -> Iterable[Wire | CloseSocket | Clear]:
        """An event of the call. `Clear` is for a turn that shall not be spoken because of it."""


def to_wire(message: Mapping[str, Any]) -> Wire:
    """A JSON object as a text message."""
    return clean(_to_json(message)).encode(), True


def query_of(target: str) -> dict[str, str]:
    """The options in a request target. The last of a repeated option counts; with too many, all are dropped."""
    try:
        query = target.partition("?")[2].partition("#")[0]
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_OPTIONS)
    except ValueError:
        return {}
    return {clean(name): clean(value) for name, value in pairs}
