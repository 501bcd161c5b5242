"""Every message of any leg of a call, as plain data.

The codecs of the dialects (`native.py`, `doors/*/codec.py`) turn bytes into these messages and back; the session knows
only the messages. Field names are those of the native protocol (PROTOCOL.md). Times are in the unit of their name's
suffix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# ---------------------------------------------------------------- bot leg → server


@dataclass(frozen=True, slots=True)
class Say:
    """A whole turn in one message. `text_type` is "text" or "ssml", None for what the call has. The audio of a
    `private` turn is not kept. `traceparent` is the bot's span that the turn belongs to."""

    text: str
    turn: str | None = None
    private: bool = False
    text_type: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a turn's text, as the bot produces it; `last` closes the turn. The first piece decides its
    `text_type`, its `traceparent` and whether it is `private`."""

    text: str
    turn: str | None = None
    last: bool = False
    private: bool = False
    text_type: str | None = None
    traceparent: str | None = None


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
    """Barge-in. Without `turn` every turn is cleared. `heard_ms` is the client's own measurement, if it has one."""

    turn: str | None = None
    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PauseSpeech:
    """Stop the speech at once, and keep what was not heard. `heard_ms` is the client's own measurement, if it has
    one."""

    heard_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeSpeech:
    """Go on with the speech that was paused."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Report when the speech of all text so far has been played."""

    name: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings for text that comes later; None leaves a setting unchanged.

    An empty `voice`, `lang` or `instruct`, or a `speed` of 0, is what the call began with. The native protocol has none
    of these.
    `inbound` is the form of the caller's audio on the bot leg: "none", "base64" or "binary". `inbound_codec` and
    `inbound_rate_hz` are its codec and rate, by default those of the media leg. `barge_in`, "on" or "off", decides
    whether the caller's voice interrupts: after `min_speech_ms` of speech, and not in the first `hold_off_ms` of the
    server's speech. The next four are those of `BargeInSettings`. `words`, "on" or "off": send the words of each
    sentence. After `caller_silent_ms` in which neither side spoke the bot gets `CallerSilent`; 0 is never. `dtmf`,
    "auto", "message" or "tones", is how the bot's tones get to the telephone. `answering_machine`, "on" or "off": tell
    the bot that a machine answers. `text_type` is "text", "ssml", or "auto": SSML if a turn begins with <speak>.
    `thinking` is "silent" or "spoken": what stands between <think> and </think>.
    `lexicon` maps what the bot writes to how it is spoken, in place of what was sent before.
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
    barge_in_action: str | None = None
    false_interruption_ms: int | None = None
    resume_after_ms: int | None = None
    step_back_ms: int | None = None
    words: str | None = None
    caller_silent_ms: int | None = None
    dtmf: str | None = None
    answering_machine: str | None = None
    text_type: str | None = None
    thinking: str | None = None
    lexicon: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Status:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    id: str | int | None = None


@dataclass(frozen=True, slots=True)
class SendDtmf:
    """Send these tones to the telephone side, behind the speech so far. A `w` is a pause."""

    digits: str


UNTIL_SPEECH = "until_speech"


@dataclass(frozen=True, slots=True)
class Play:
    """Play the sound `name` behind the text so far, or under the speech; `stop` ends sounds instead.
    `url` is an address in place of the name.

    `loop` is whether it begins again at its end, or `UNTIL_SPEECH`. None of `loop` and `gain_db`: as is usual there.
    """

    name: str | None = None
    turn: str | None = None
    under: bool = False
    loop: bool | str | None = None
    gain_db: float | None = None
    stop: bool = False
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Start or stop the recording of the call. `action` is "start" or "stop"."""

    action: str


@dataclass(frozen=True, slots=True)
class Close:
    """Finish speaking, then close; `now` clears first."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class Invalid:
    """Input that a decoder cannot read. The server answers with a non-fatal error event."""

    code: str
    message: str


# -------------------------------------------------------------- media leg → server


@dataclass(frozen=True, slots=True)
class MediaStart:
    """The media leg has started. `call` is the peer's name for the call, `stream` its name for this leg.

    `ptime_ms` and `lead_ms` are settings of the leg, None for those of the server. `bulk_ms`: frames of so much audio
    are sent together. `whole_sentences`: the leg collects frames up to the mark that ends a sentence. `ahead_ms`:
    speech is synthesised at least so far ahead. `caller_format` is the codec and the rate of the caller's audio, None
    for those of the speech.
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
    caller_format: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class MediaAudio:
    """The caller's audio, in the leg's codec. `timestamp_ms` is the peer's media clock, if it has one."""

    payload: bytes
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MediaMark:
    """A mark: sent to the peer for a place in its playout, and received when playout has reached that place.

    Some platforms also echo marks when they clear; the session, not the codec, distinguishes these. `ends_sentence` is
    for a peer that takes whole sentences, `ends_turn` for a peer that must know where speech ends. A mark that was
    received may tell how long ago playout passed its place, in `ago_ms`.
    """

    name: str
    ends_sentence: bool = False
    ends_turn: bool = False
    ago_ms: int = 0


@dataclass(frozen=True, slots=True)
class MediaDtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class MediaStop:
    reason: str = "hangup"


@dataclass(frozen=True, slots=True)
class MediaHold:
    """The telephone is on hold from now on, or not any more: while it is, it plays nothing."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class MediaFlow:
    """Whether the peer's buffer has room. The server holds frames back while it is full."""

    is_open: bool


@dataclass(frozen=True, slots=True)
class MediaBuffered:
    """How many frames the peer reports as not yet played. A paused peer plays nothing."""

    n_frames: int
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class MediaPlayback:
    """A report about a file of speech: it plays, was played, or cannot be played. With `again`, every file without a
    report must be sent again. Without a file it is about all the speech that the peer has."""

    state: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class MediaBegun:
    """The peer begins to play `n_samples` before the mark `mark`, which it has not echoed yet."""

    mark: str
    n_samples: int


@dataclass(frozen=True, slots=True)
class MediaLost:
    """The peer has stopped playing. It will play the rest later, from the place that `MediaBegun` gives."""


@dataclass(frozen=True, slots=True)
class MediaMarksLost:
    """The peer's reports of marks cannot be relied on any more."""


# ---------------------------------------------------------------- server → bot leg


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
    experiment: str | None = None
    arm: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """Sent with the first frame of a turn. `first_audio_ms`: from the complete first sentence to now."""

    turn: str
    first_audio_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SentenceSpoken:
    """The place of a sentence in the turn's audio, known after its synthesis. `engines`: who spoke it, in order, on a
    server whose engines can replace one another."""

    turn: str
    index: int
    text: str
    start_ms: int
    end_ms: int
    engines: list[str] | None = None


@dataclass(frozen=True, slots=True)
class WordsSpoken:
    """The words of a sentence, known after its synthesis: `text`, `start_ms` and `end_ms` in the turn's audio, and
    `from` and `to`, the word's place in the bot's text of the turn.

    `basis` is "engine" if the engine gave the times, and "estimate" if the words are spread evenly.
    """

    turn: str
    index: int
    words: list[dict[str, str | int]]
    basis: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The speech is paused. What was heard of the turn that was audible, as in `Cleared`. `reason` is "bot",
    "barge_in" or "hold"."""

    turn: str
    heard_text: str
    heard_chars: int
    heard_ms: int
    basis: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The speech of the turn goes on from `from_ms` of its audio."""

    turn: str
    from_ms: int


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The end of a mark: `state` is "played" or "cleared", exactly one of them for each mark."""

    name: str
    state: str
    turn: str | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The turn was interrupted. `heard_text` is a prefix of the bot's own text and `unheard_text` the rest.

    `basis` is the source of the position: "marks" (reports of the peer), "clock" (the server's schedule) or "client"
    (the bot sent heard_ms). `latency` is as in `Done`; it has only the figures that were known by then.
    """

    turn: str
    heard_text: str
    heard_chars: int
    heard_ms: int
    unheard_text: str
    basis: str
    reason: str
    latency: dict[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A piece of a turn's text, as the bot wrote it, and the audio that speaks it.

    `start` is its offset in the turn's text. `times_ms` has when each character begins and when the last one ends, in
    milliseconds of the turn's audio, so there is one time more than there are characters.
    """

    text: str
    start: int
    times_ms: tuple[float, ...]
    ends_ms: tuple[float, ...] = ()
    """When each character ends. (): where the next one begins."""

    @property
    def spans_ms(self) -> list[tuple[float, float]]:
        """Begin and end of each character."""
        return list(zip(self.times_ms, self.ends_ms or self.times_ms[1:], strict=False))


@dataclass(frozen=True, slots=True)
class TurnSent:
    """The last frame of the turn has been sent. Only for peers that play each turn separately."""

    turn: str


@dataclass(frozen=True, slots=True)
class Done:
    """The turn was played to its end. Latencies are in milliseconds, None if they do not apply. `engines`: who spoke,
    as in `SentenceSpoken`."""

    turn: str
    audio_ms: int
    chars: int
    underruns: int
    latency: dict[str, float | None]
    engines: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Back-pressure on text: the bot must hold its text until `resume`. Text that was sent is kept."""

    buffered_chars: int


@dataclass(frozen=True, slots=True)
class Resume:
    buffered_chars: int


@dataclass(frozen=True, slots=True)
class WarningEvent:
    code: str
    message: str
    turn: str | None = None
    lost_events: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error. With `turn` it is the last event of that turn, and the heard fields and `latency` are set.

    `about` names a turn that the error concerns but does not end. `fatal` announces a close.
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
    latency: dict[str, float | None] | None = None


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
    """The media leg has started; the parameters are the peer's."""

    call: str
    stream: str
    codec: str
    rate_hz: int
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class Dtmf:
    digit: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The telephone was put on hold, or taken back: `state` is "started" or "ended"."""

    state: str


@dataclass(frozen=True, slots=True)
class CallerSpeech:
    """`state` is "speaking" or "silent", since `at_ms` of the peer's media clock, if it has one.

    With "silent": how long the caller spoke, and whether that interrupted the server's speech.
    """

    state: str
    at_ms: int | None = None
    spoken_ms: int | None = None
    interrupted: bool | None = None


@dataclass(frozen=True, slots=True)
class CallerSilent:
    """Nobody has spoken for `ms`, a multiple of the bot's `caller_silent_ms`."""

    ms: int


@dataclass(frozen=True, slots=True)
class AnsweringMachineHeard:
    """A machine has answered, probably. `cause` is "greeting" (it speaks for `greeting_ms` without a pause) or "beep".

    The beep ended at `beep_at_ms` of the peer's media clock, or of the caller's audio if the peer has no clock.
    """

    cause: str
    greeting_ms: int | None = None
    beep_at_ms: int | None = None
    beep_ms: int | None = None
    beep_hz: int | None = None


@dataclass(frozen=True, slots=True)
class RecordingChanged:
    """The recording of the call has "started" or "ended", by `state`. `file` is the name of its WAV file.

    With "ended": why, and how long the recording is.
    """

    state: str
    file: str
    reason: str | None = None
    length_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Hangup:
    reason: str


@dataclass(frozen=True, slots=True)
class InboundAudio:
    """The caller's audio for the bot, in the media leg's codec."""

    payload: bytes
    timestamp_ms: int
    form: str = "base64"
    """ "base64" or "binary"."""


# -------------------------------------------------------------- server → media leg


@dataclass(frozen=True, slots=True)
class Frame:
    """One ptime of encoded audio of `turn`. `late_ns` is how late it was sent by its schedule, for metrics."""

    payload: bytes
    late_ns: int = 0
    turn: str = ""


@dataclass(frozen=True, slots=True)
class MediaClear:
    """Empty the peer's playout buffer."""


@dataclass(frozen=True, slots=True)
class MediaTones:
    """Send these tones to the telephone now, each of `on_ms` with `off_ms` of silence behind it; `w` is a pause of
    500 ms. Only for a peer that can."""

    digits: str
    on_ms: int = 100
    off_ms: int = 100


FromBot = (
    Say | Text | End | Flush | Clear | PauseSpeech | ResumeSpeech | Mark | Configure | Status | Ping | SendDtmf | Play
    | Record | Close | Invalid
)
FromMedia = (
    MediaStart | MediaAudio | MediaMark | MediaDtmf | MediaStop | MediaHold | MediaFlow | MediaBuffered | MediaPlayback
    | MediaBegun | MediaLost | MediaMarksLost | Invalid
)
ToBot = (
    Ready | Started | SentenceSpoken | WordsSpoken | MarkReached | Cleared | Paused | Resumed | TurnSent | Done | Pause
    | Resume | WarningEvent | ErrorEvent | Pong | StatusReport | CallStarted | Dtmf | Hold | CallerSpeech | CallerSilent
    | AnsweringMachineHeard | RecordingChanged | Hangup | InboundAudio
)
ToMedia = Frame | MediaMark | MediaClear | MediaTones
