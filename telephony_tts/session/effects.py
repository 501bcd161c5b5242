"""What a session asks its driver to do, besides sending messages."""

from __future__ import annotations

from dataclasses import dataclass

from telephony_tts.engines.api import Utterance
from telephony_tts.session.bed import Bed
from telephony_tts.wire.messages import ToBot, ToMedia


@dataclass(frozen=True, slots=True)
class Synthesize:
    """Start the engine on this utterance, and pull its first chunk."""

    utterance: Utterance


@dataclass(frozen=True, slots=True)
class FeedText:
    """More text for the `more` of this utterance. The bot wrote it while the beginning was being spoken."""

    utterance_id: str
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class Pull:
    """Pull the next chunk of this utterance: the call is no longer too far ahead."""

    utterance_id: str


@dataclass(frozen=True, slots=True)
class CancelSynthesis:
    """Close this utterance's generator. Its audio is no longer wanted, and no more text comes for it."""

    utterance_id: str


@dataclass(frozen=True, slots=True)
class LoadBed:
    """Load the sound of this bed at this rate, and pass it to `Session.bed_loaded`, or the error to `bed_failed`."""

    bed: Bed
    rate_hz: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over. Close the bot leg with this WebSocket code."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnderrunEnded:
    """The caller has heard `ms` of silence in the turn, because the engine was late. For metrics."""

    turn: str
    ms: float


Effect = Synthesize | FeedText | Pull | CancelSynthesis | LoadBed | Finish | UnderrunEnded | ToBot | ToMedia
