"""What a fleet knows of a replica. One kind is the engine's real core, the other is quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

TOKEN_NS = 40_000_000
"""A speech token is 40 ms of audio."""
WORD_TOKENS = 10
"""Speech tokens of a word of the text, which are 0.4 s."""

AudioSink = Callable[[int, int], None]
"""Gets an utterance's key and the nanoseconds of audio that were made."""
EndSink = Callable[[int], None]
"""Gets the key of an utterance that has ended: nothing is held for it any more."""


class Replica(Protocol):
    """An engine replica on the simulated clock. After `kill` it computes and tells nothing."""

    is_pulled: bool
    """Whether it makes audio only when it is pulled, and not ahead by itself."""

    @property
    def busy_ns(self) -> int:
        """How long it has computed."""

    @property
    def n_live(self) -> int:
        """Utterances that it holds."""

    def submit(self, key: int, n_words: int, voice: str, deadline_ns: int, follows: bool) -> None:
        """Begin an utterance now."""

    def take(self, key: int, sound_ns: int) -> None:
        """The listener has taken this much more of the utterance's audio."""

    def pull(self, key: int) -> None:
        """There is room for more audio of this utterance."""

    def cancel(self, key: int) -> None:
        """Stop an utterance. An unknown key has no effect."""

    def kill(self) -> None:
        """It is gone, with all its utterances."""

    def load(self) -> float:
        """As `EngineStats.load`."""


def load_of(n_submitted: int, cost: float) -> float:
    """`CosyVoice2Engine.stats` for one lane: what the utterances and one more need, in seconds for a second."""
    return (n_submitted + 1) * cost if n_submitted else 0.0
