"""What a session asks of the world besides sending messages."""

from __future__ import annotations

from dataclasses import dataclass

from telephony_tts.engines.api import Utterance
from telephony_tts.wire.messages import ToBot, ToMedia


@dataclass(frozen=True, slots=True)
class Synthesize:
    """Start the engine on this utterance and pull its first chunk."""

    utterance: Utterance


@dataclass(frozen=True, slots=True)
class FeedText:
    """More text of this utterance, for its `more`: the bot has written it while the beginning was being spoken."""

    utterance_id: str
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class Pull:
    """Take the next chunk of this utterance; the call is no longer too far ahead."""

    utterance_id: str


@dataclass(frozen=True, slots=True)
class CancelUtterance:
    """Close this utterance's generator; nothing it still yields is wanted, and no more text comes for it."""

    utterance_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The call is over for the bot leg: close it with this WebSocket code."""

    code: int
    reason: str


Effect = Synthesize | FeedText | Pull | CancelUtterance | Finish | ToBot | ToMedia
