"""What a session is told once, when its call begins."""

from __future__ import annotations

from dataclasses import dataclass

UNPACED_MS = 24 * 3600 * 1000
"""The lead of a call that is not paced: more than any call lasts."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one bot may ask of one call; 0 means none for `idle_s`, `turn_idle_s`, `text_chars_per_s`."""

    turn_chars: int = 4000
    queued_turns: int = 32
    text_chars_per_s: int = 2000
    pause_chars: int = 2000
    resume_chars: int = 500
    idle_s: int = 3600
    turn_idle_s: int = 30
    pending_marks: int = 256


@dataclass(frozen=True, slots=True)
class BargeIn:
    """Whether the caller's voice interrupts, and which of it counts.

    `min_speech_ms` of speech are a beginning, `silence_ms` without any its end. For `hold_off_ms` after we have begun
    to speak, also again after an interruption, nothing is interrupted. What is below `floor_dbov` is line noise.
    """

    enabled: bool = False
    min_speech_ms: int = 200
    hold_off_ms: int = 500
    silence_ms: int = 500
    floor_dbov: float = -45.0


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How one call speaks.

    `lead_ms` is how far ahead of real time frames are sent, `ahead_ms` how far ahead of the playout speech is
    synthesised. Frames that make up `bulk_ms` are sent together, which is never more than `lead_ms`; 0: each when its
    own time has come. `text_mode` "interleaved" lets an engine begin a sentence while the bot still writes it;
    "sentence" waits for its end. `whole_sentences` is for a peer that plays sentence by sentence: each is made without
    a pause, its frames are its own, and marks tell where it begins and ends. `control_tokens` are signs for the engine,
    handed on as they stand in the text. `pace` "burst" sends whatever is ready at once, for peers that buffer.
    """

    session: str = "s"
    call: str = "call"
    codec: str = "ulaw"
    rate_hz: int = 8000
    ptime_ms: int = 20
    pace: str = "realtime"
    lead_ms: int = 200
    bulk_ms: int = 0
    ahead_ms: int = 2000
    fade_ms: int = 5
    fade_on_clear: bool = True
    voice: str | None = None
    lang: str | None = None
    speed: float = 1.0
    first_clause_chars: int = 24
    text_timeout_ms: int = 500
    text_mode: str = "sentence"
    whole_sentences: bool = False
    control_tokens: tuple[str, ...] = ()
    mark_timeout_ms: int = 2000
    engine_timeout_ms: int = 30_000
    barge_in: BargeIn = BargeIn()
    limits: Limits = Limits()

    @property
    def made_ahead_ms(self) -> int:
        """How far ahead speech is made: without a pace all of it."""
        return self.ahead_ms if self.pace == "realtime" else UNPACED_MS

    @property
    def n_together(self) -> int:
        """Frames that make up `bulk_ms`."""
        return max(1, self.bulk_ms // self.ptime_ms)
