"""What the engine is told to do, whether it runs in threads or in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.errors import EngineError


@dataclass(frozen=True, slots=True)
class Submit:
    """A new utterance: `key` names it from now on. `deadline_ns`: when its listener hears silence, 0 for now."""

    key: int
    voice: str
    request: Request
    deadline_ns: int = 0
    follows: bool = False
    """Its listener has heard what came before it."""


@dataclass(frozen=True, slots=True)
class Push:
    """More text of an utterance that grows."""

    key: int
    text: str
    last: bool


@dataclass(frozen=True, slots=True)
class Took:
    """The listener has taken so much of what was made."""

    key: int
    n_samples: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants the utterance any more. It is answered with `Ended`, like any end."""

    key: int


Order = Submit | Push | Took | Cancel


@dataclass(frozen=True, slots=True)
class Began:
    """The utterance has a slot: from this moment, on the monotonic clock, it is being computed."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more comes of the utterance, and nothing is held for it. `error`: why it is not whole."""

    error: EngineError | None = None


Event = Began | Chunk | Ended
Told = Callable[[int, Event], None]
"""Hears an utterance's key and what happened to it, in order."""
