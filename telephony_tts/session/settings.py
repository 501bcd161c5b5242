"""The settings of a call, and the sections of the configuration that they come from.

`telephony_tts.app.config` reads the sections `speech`, `barge_in`, `caller`, `dtmf` and `limits` straight into the
classes here, so each setting and its allowed values are declared once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from telephony_tts.runtime.schema import Between, OneOf, Spelt
from telephony_tts.session.lexicons import CallLexicon
from telephony_tts.wire.native import DTMF_WAYS, THINKING

Count = Annotated[int, Between(1, 1e9)]
Milliseconds = Annotated[int, Between(0, 600_000)]
IdleSeconds = Annotated[int, Between(0, 86_400)]
LANGUAGE = Spelt(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*", "a language code such as zh, en, ja or zh-TW")
MOST_PTIME_MS = 60
LEAST_SILENT_MS = 100
"""A shorter time would only flood the bot with events."""

UNPACED_MS = 24 * 3600 * 1000
"""The lead of a call that is not paced: more than any call lasts."""


@dataclass(frozen=True, slots=True)
class SpeechSettings:
    """The section `speech`: what a call starts with. The bot may change most of it.

    `voice` None is the default engine's first voice. `lead_ms` is how far ahead of real time frames are sent,
    `ahead_ms` how far ahead of the playout speech is synthesised. `pace` "burst" sends whatever is ready at once, for
    peers that buffer. `text_mode` "interleaved" lets an engine begin a sentence while the bot still writes it;
    "sentence" waits for its end. `text_type` is what the bot writes: "auto" is SSML if a turn begins with <speak>, and
    plain text otherwise. `thinking` "silent" leaves out what stands between <think> and </think>. The bot is asked to
    pause when more than `pause_chars` wait, and to resume at `resume_chars`.
    """

    voice: str | None = None
    lang: Annotated[str | None, LANGUAGE] = None
    speed: Annotated[float, Between(0.5, 2.0)] = 1.0
    codec: Annotated[str, OneOf(("ulaw", "alaw", "pcm"))] = "ulaw"
    rate_hz: Annotated[int, OneOf((8_000, 16_000, 24_000, 48_000))] = 8_000
    ptime_ms: Annotated[int, OneOf((10, 20, 30, 40, MOST_PTIME_MS))] = 20
    pace: Annotated[str, OneOf(("realtime", "burst"))] = "realtime"
    lead_ms: Milliseconds = 200
    ahead_ms: Milliseconds = 2_000
    first_clause_chars: Annotated[int, Between(0, 1_000)] = 24
    text_timeout_ms: Annotated[int, Between(1, 600_000)] = 500
    text_mode: Annotated[str, OneOf(("sentence", "interleaved"))] = "sentence"
    text_type: Annotated[str, OneOf(("auto", "text", "ssml"))] = "auto"
    thinking: Annotated[str, OneOf(THINKING)] = "silent"
    detect_language: bool = True
    pause_chars: Count = 2_000
    resume_chars: Annotated[int, Between(0, 1e9)] = 500

    def conflicts(self) -> Iterator[str]:
        if self.codec != "pcm" and self.rate_hz != 8_000:
            yield f"rate_hz: {self.rate_hz} does not go with codec {self.codec}; G.711 is 8000 Hz"
        if self.ahead_ms < self.lead_ms:
            yield f"ahead_ms: {self.ahead_ms} is less than lead_ms ({self.lead_ms}); audio must exist before it is sent"
        if self.resume_chars >= self.pause_chars:
            yield f"resume_chars: {self.resume_chars} is not below pause_chars ({self.pause_chars})"


@dataclass(frozen=True, slots=True)
class BargeInSettings:
    """The section `barge_in`: what the caller's voice does. A bot may choose otherwise for its call.

    Speech begins after `min_speech_ms` of voice and ends after `silence_ms` without. Nothing is interrupted for
    `hold_off_ms` after we begin to speak, nor after an interruption. Audio below `floor_dbov` is line noise:
    -45 dBov is -38.8 dBm0.

    `action` "pause" only pauses the speech. A caller who speaks for `false_interruption_ms` interrupts it after all.
    Otherwise it goes on when the caller was silent for `resume_after_ms` (at least `silence_ms`), from the last word
    boundary that was heard, and `step_back_ms` before that.
    """

    enabled: bool = False
    min_speech_ms: Annotated[int, Between(64, 2_000)] = 200
    hold_off_ms: Annotated[int, Between(0, 10_000)] = 500
    silence_ms: Annotated[int, Between(100, 10_000)] = 500
    floor_dbov: Annotated[float, Between(-90, -10)] = -45.0
    action: Annotated[str, OneOf(("clear", "pause"))] = "clear"
    false_interruption_ms: Annotated[int, Between(100, 60_000)] = 1_500
    resume_after_ms: Annotated[int, Between(0, 60_000)] = 800
    step_back_ms: Annotated[int, Between(0, 2_000)] = 0


@dataclass(frozen=True, slots=True)
class CallerSettings:
    """The section `caller`: what the bot is told of the caller. A bot may choose otherwise for its call.

    After `silent_ms` in which neither side spoke the bot is told, and again at each multiple of it; 0 is never.
    `answering_machine`: the bot is told that a machine answers. After `no_audio_ms` without the caller's audio the bot
    is warned, if speech is played; 0 is never.
    """

    silent_ms: Milliseconds = 0
    answering_machine: bool = False
    no_audio_ms: Milliseconds = 5_000

    def conflicts(self) -> Iterator[str]:
        if 0 < self.silent_ms < LEAST_SILENT_MS:
            yield f"silent_ms: {self.silent_ms} is neither 0 nor at least {LEAST_SILENT_MS}"


@dataclass(frozen=True, slots=True)
class DtmfSettings:
    """The section `dtmf`: how the bot's tones get to the telephone.

    `by` "message" is the platform's own way, "tones" puts them into the audio, "auto" does that where the platform has
    no message. Each tone lasts `on_ms`, with `off_ms` of silence behind it. Receivers need 40 ms of both (Q.24), but
    a PBX was seen to miss one of many hundred tones that are shorter than 45 ms.
    """

    by: Annotated[str, OneOf(DTMF_WAYS)] = "auto"
    on_ms: Annotated[int, Between(50, 500)] = 100
    off_ms: Annotated[int, Between(40, 500)] = 100


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call may use: the part of the section `limits` that a session enforces.

    0 means no limit for `text_chars_per_s`, `idle_s` and `turn_idle_s`.
    """

    queued_turns: Count = 32
    turn_chars: Count = 4_000
    text_chars_per_s: Annotated[int, Between(0, 1e9)] = 2_000
    idle_s: IdleSeconds = 3_600
    turn_idle_s: IdleSeconds = 30


def changed_start(now: BargeInSettings, before: BargeInSettings, after: BargeInSettings) -> BargeInSettings:
    """The settings of a call that started with `before`, and is to have started with `after`: what was changed since
    then stays."""
    names = [item.name for item in fields(BargeInSettings)]
    return replace(now, **{name: getattr(after, name) for name in names if getattr(now, name) == getattr(before, name)})


@dataclass(frozen=True, slots=True)
class TurnVoice:
    """The voice settings of a turn, fixed when it begins."""

    voice: str | None
    lang: str | None
    speed: float
    seed: int | None
    instruct: str | None
    lexicon: CallLexicon | None = None


@dataclass(frozen=True, slots=True)
class SessionSettings(SpeechSettings):
    """How one call speaks: the section `speech`, and what belongs to this call and its media leg.

    Frames that make up `bulk_ms` are sent together, and `bulk_ms` is never more than `lead_ms`; 0 sends each frame at
    its own time. `whole_sentences` is for a peer that plays sentence by sentence: a sentence is made without a pause
    and fills frames of its own, and marks tell where it begins and ends. `separate_turns` is for a peer that keeps a
    buffer for each turn, as clients of other vendors' protocols do: `TurnSent` follows the last frame of a turn, and a
    clear of one turn takes back no frames of another.
    With `parallel_turns` such a peer may stop playing a turn without telling us: each turn is paced for itself, and one
    that has all its text is no longer paced when another waits behind it. `patience_ms` is how much later than a call's
    the deadlines of its utterances are: a file can wait, a caller cannot. Late audio puts no silence into a file.
    `control_tokens` are passed to the engine as they stand in the text. `lexicon` has the lexicons of the server, None
    without any.
    """

    session: str = "s"
    call: str = "call"
    bulk_ms: int = 0
    fade_ms: int = 5
    fade_on_clear: bool = True
    words: bool = False
    whole_sentences: bool = False
    separate_turns: bool = False
    parallel_turns: bool = False
    patience_ms: int = 0
    control_tokens: tuple[str, ...] = ()
    lexicon: CallLexicon | None = None
    mark_timeout_ms: int = 2000
    engine_timeout_ms: int = 30_000
    pending_marks: int = 256
    barge_in: BargeInSettings = BargeInSettings()
    caller: CallerSettings = CallerSettings()
    dtmf: DtmfSettings = DtmfSettings()
    limits: CallLimits = CallLimits()

    @classmethod
    def of(cls, speech: SpeechSettings, **others: Any) -> SessionSettings:
        """The settings of the section `speech`, with `others`."""
        return cls(**{item.name: getattr(speech, item.name) for item in fields(SpeechSettings)}, **others)

    @property
    def made_ahead_ms(self) -> int:
        """How far ahead speech is synthesised: without a pace all of it."""
        return self.ahead_ms if self.pace == "realtime" else UNPACED_MS

    @property
    def frames_per_bulk(self) -> int:
        """How many frames are sent together."""
        return max(1, self.bulk_ms // self.ptime_ms)
