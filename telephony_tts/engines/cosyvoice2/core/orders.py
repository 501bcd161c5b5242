"""Orders to the core and events from it, the same for an engine in threads and for one in its own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.errors import EngineError


@dataclass(frozen=True, slots=True)
class SubmitUtterance:
    """A new utterance. `key` names it in all later orders and events."""

    key: int
    voice: str
    request: Request
    deadline_ns: int = 0
    """When the listener hears silence if no audio has come, on the monotonic clock. 0 is now."""
    follows: bool = False
    """Whether an earlier sentence of its turn has been heard."""
    can_wait: bool = False
    """Whether it is for a file and not for a caller."""


@dataclass(frozen=True, slots=True)
class PushText:
    """More text of an utterance that is still being written."""

    key: int
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class AudioTaken:
    """The listener has taken this much more of the audio."""

    key: int
    n_samples: int


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Stop the utterance. The answer is `UtteranceEnded`, as for any end."""

    key: int


Order = SubmitUtterance | PushText | AudioTaken | CancelOrder


@dataclass(frozen=True, slots=True)
class UtteranceBegan:
    """The utterance got a slot at `at_ns` on the monotonic clock and is being computed."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    """No more audio comes, and nothing is held for the utterance. `error`: why it is incomplete."""

    error: EngineError | None = None


Event = UtteranceBegan | Chunk | UtteranceEnded
EventSink = Callable[[int, Event], None]
"""Receives an utterance's key and its events, in order."""
