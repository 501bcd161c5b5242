"""All that can be said on any leg of a call, as plain data.

Dialect codecs (`native.py`, `twilio.py`) turn bytes into these and back; the session knows nothing else.
Field names are the native protocol's (PROTOCOL.md); times are in the unit their name ends with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# ---------------------------------------------------------------- bot leg → us


@dataclass(frozen=True, slots=True)
class Say:
    """A whole turn in one message."""

    text: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a turn as the bot produces it; `last` closes the turn."""

    text: str
    turn: str | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """No more text for the turn."""

    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak what is buffered now, without closing the turn."""

    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """Barge-in. Without `turn` everything is cleared. `heard_ms` is the client's own measure, if it has one."""

    turn: str | None = None
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Report when the speech of all text so far has been played."""

    name: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings for text that comes after; None leaves a setting as it is.

    `inbound` is how the bot leg wants the caller's audio: "none", "base64" or "binary"; `inbound_codec` and
    `inbound_rate_hz` in what, by default as the media leg has it. `barge_in` is "on" or "off": whether the caller's
    voice interrupts, from `min_speech_ms` of speech on and not within `hold_off_ms` of our beginning to speak.
    """

    voice: str | None = None
    lang: str | None = None
    speed: float | None = None
    seed: int | None = None
    instruct: str | None = None
    inbound: str | None = None
    inbound_codec: str | None = None
    inbound_rate_hz: int | None = None
    barge_in: str | None = None
    min_speech_ms: int | None = None
    hold_off_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    id: str | int | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Finish speaking, then close; `now` clears first."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class Invalid:
    """What a decoder makes of input it cannot read; answered by a non-fatal error event."""

    code: str
    message: str


# -------------------------------------------------------------- media leg → us


@dataclass(frozen=True, slots=True)
class MediaStart:
    """The telephone side is there. `call` is its name for the call, `stream` its name for this leg.

    `ptime_ms` and `lead_ms` are the leg's own, None where it takes the server's. `bulk_ms`: it takes frames together
    that make up so much. `whole_sentences`: it gathers frames up to the mark that ends a sentence. `ahead_ms`: it wants
    speech to be made at least so far ahead.
    """

    call: str
    stream: str
    codec: str
    rate_hz: int
    parameters: dict[str, str] = field(default_factory=dict)
    ptime_ms: int | None = None
    lead_ms: int | None = None
    bulk_ms: int = 0
    whole_sentences: bool = False
    ahead_ms: int = 0


@dataclass(frozen=True, slots=True)
class MediaAudio:
    """The caller's audio, in the leg's codec. `timestamp_ms` is the peer's media clock where it has one."""

    payload: bytes
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MediaMark:
    """A mark: sent to the peer to be placed in its playout, and received when it came back.

    Twilio also echoes marks when it clears; the session, not the codec, tells the two apart. `ends_sentence` is for a
    peer that takes whole sentences, `ends_turn` for one that must be told where speech ends.
    """

    name: str
    ends_sentence: bool = False
    ends_turn: bool = False


@dataclass(frozen=True, slots=True)
class MediaDtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class MediaStop:
    reason: str = "hangup"


@dataclass(frozen=True, slots=True)
class MediaFlow:
    """Whether the peer's buffer has room; frames wait here while it has none."""

    is_open: bool


@dataclass(frozen=True, slots=True)
class MediaBuffered:
    """What the peer holds and has not played, on its own account. While it is paused it plays nothing."""

    n_frames: int
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class MediaPlayback:
    """A file of speech at a peer that plays files: it has begun, has ended, cannot be played, or (`again`) whatever was
    not reported is to be sent once more."""

    state: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class MediaBegun:
    """The peer begins to play at a place that is `n_samples` before the mark `mark`, which has not come back yet."""

    mark: str
    n_samples: int


@dataclass(frozen=True, slots=True)
class MediaLost:
    """The peer has stopped playing. What it had and has not reported will be played later, from a place that
    `MediaBegun` tells."""


# ---------------------------------------------------------------- us → bot leg


@dataclass(frozen=True, slots=True)
class Ready:
    session: str
    call: str
    codec: str
    rate_hz: int
    ptime_ms: int
    pace: str
    lead_ms: int
    voice: str
    barge_in: str
    limits: dict[str, int]


@dataclass(frozen=True, slots=True)
class Started:
    """The first frame of the turn is sent with this. `first_audio_ms`: first sentence complete → now."""

    turn: str
    first_audio_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SentenceSpoken:
    """A sentence's place in the turn's audio, known once it is synthesised."""

    turn: str
    index: int
    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class MarkReached:
    """`state` is "played" or "cleared", never both, never neither."""

    name: str
    state: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The turn was interrupted. `heard_text` is a prefix of the bot's own text and `unheard_text` the rest.

    `basis` tells where the position comes from: "marks" (the peer reported), "clock" (our schedule) or
    "client" (the bot sent heard_ms).
    """

    turn: str
    heard_text: str
    heard_chars: int
    heard_ms: int
    unheard_text: str
    basis: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The turn was played to its end. Latencies are in milliseconds and None where they do not apply."""

    turn: str
    audio_ms: int
    chars: int
    underruns: int
    latency: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Text back-pressure: hold your text until `resume`; what was sent is kept."""

    buffered_chars: int


@dataclass(frozen=True, slots=True)
class Resume:
    buffered_chars: int


@dataclass(frozen=True, slots=True)
class WarningEvent:
    code: str
    message: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """With `turn`: that turn is over, this is its terminal event, and the heard fields are set.

    `about` names a turn the error concerns without ending it. `fatal` announces a close.
    """

    code: str
    message: str
    fatal: bool = False
    turn: str | None = None
    about: str | None = None
    retryable: bool = False
    retry_after_ms: int | None = None
    heard_text: str | None = None
    heard_ms: int | None = None
    unheard_text: str | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    id: str | int | None = None


@dataclass(frozen=True, slots=True)
class StatusReport:
    call: str
    media: str
    speaking: str | None
    turns: list[dict[str, Any]]
    buffered_chars: int
    buffered_ms: int
    underruns: int


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The media leg is there: who is calling, in the peer's words."""

    call: str
    stream: str
    codec: str
    rate_hz: int
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class Dtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class CallerSpeech:
    """`state` is "speaking" or "silent". `at_ms` is where that began, on the peer's media clock if it has one.

    With "silent": how long the caller spoke, and whether that interrupted our speech.
    """

    state: str
    at_ms: int | None = None
    spoken_ms: int | None = None
    interrupted: bool | None = None


@dataclass(frozen=True, slots=True)
class Hangup:
    reason: str


@dataclass(frozen=True, slots=True)
class InboundAudio:
    """The caller's audio for the bot, in the media leg's codec."""

    payload: bytes
    timestamp_ms: int


# -------------------------------------------------------------- us → media leg


@dataclass(frozen=True, slots=True)
class Frame:
    """One ptime of encoded audio. `late_ns` is how long after its planned moment it left, for metrics."""

    payload: bytes
    late_ns: int = 0


@dataclass(frozen=True, slots=True)
class MediaClear:
    """Empty the peer's playout buffer."""


FromBot = Say | Text | End | Flush | Clear | Mark | Configure | Status | Ping | Close | Invalid
FromMedia = (
    MediaStart | MediaAudio | MediaMark | MediaDtmf | MediaStop | MediaFlow | MediaBuffered | MediaPlayback | MediaBegun
    | MediaLost | Invalid
)
ToBot = (
    Ready | Started | SentenceSpoken | MarkReached | Cleared | Done | Pause | Resume | WarningEvent | ErrorEvent | Pong
    | StatusReport | CallStarted | Dtmf | CallerSpeech | Hangup | InboundAudio
)
ToMedia = Frame | MediaMark | MediaClear
