"""What the server asks of a speech engine.

An engine is shared by all calls. An `Utterance` is one sentence of one call; `synthesize` turns it
into PCM chunks. Closing the generator is the cancel, so the promise is in the type: an
`AsyncGenerator`, not a mere iterator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
"""Mono signed 16-bit samples, shape [n_samples]."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker. `gain_db` lifts its audio to the house level before the telephone codec."""

    name: str
    engine: str
    languages: tuple[str, ...]
    sample_rate_hz: int
    gain_db: float = 0.0
    description: str = ""

    def speaks(self, lang: str) -> bool:
        """Whether one of the voice's languages is that of the tag `lang`, whatever the region."""
        wanted = lang.lower().replace("_", "-").split("-")[0]
        return any(own.lower().split("-")[0] == wanted for own in self.languages)


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence to speak.

    `text` is already normalised: what is to be said, in words. `deadline_ns` is the monotonic time at
    which the caller would hear silence; an engine with a queue serves the smallest first.
    """

    id: str
    text: str
    voice: str | None = None
    lang: str | None = None
    speed: float = 1.0
    seed: int | None = None
    instruct: str | None = None
    call: str = ""
    turn: str = ""
    deadline_ns: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """A word (a character in Chinese) of `Utterance.text[start_char:end_char]` and where it sounds.

    Samples count from the first sample of the utterance, at the chunk's rate.
    """

    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """PCM of any length, and the timings that became known with it (never repeated)."""

    pcm: Pcm
    sample_rate_hz: int
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics and admission."""

    n_queued: int = 0
    n_running: int = 0


class Engine(Protocol):
    """A speech engine. `tests/engines/conformance.py` is the contract in executable form."""

    name: str

    @property
    def voices(self) -> tuple[Voice, ...]:
        """The voices this engine has; the first is its default."""

    async def start(self) -> None:
        """Load models and warm up. Raises EngineUnavailable with what is missing and how to get it."""

    async def close(self) -> None:
        """Stop all work and free the workers. Idempotent."""

    def check(self, utterance: Utterance) -> None:
        """Raise UnknownVoice or UnsupportedText if `synthesize` would; costs microseconds."""

    def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        """Yield the utterance's audio in order.

        Closing the generator is the cancel: the work stops and its slot is free before aclose() returns.
        Raises EngineError (or a child of it) and nothing else on purpose.
        """

    def stats(self) -> EngineStats:
        """How much is waiting and running now."""
