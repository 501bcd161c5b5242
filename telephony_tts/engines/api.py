"""What the server asks of a speech engine.

An engine is shared by all calls. An `Utterance` is one sentence of one call; `synthesize` turns it
into PCM chunks. Closing the generator is the cancel, so the promise is in the type: an
`AsyncGenerator`, not a mere iterator.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
"""Mono signed 16-bit samples, shape [n_samples]."""


LangSource = Literal["bot", "words", "letters"]
"""Where a text's language comes from: the bot (or the server's `speech.lang`), the words of Latin text, or the letters
alone. By its letters all Latin text is English."""


def language_prefix(tag: str) -> str:
    """The language of a tag in lower case, whatever the region: "zh" of "zh-CN". Norwegian is "nb" in any case."""
    prefix = tag.lower().replace("_", "-").split("-")[0]
    return "nb" if prefix == "no" else prefix


def has_language(tags: Iterable[str], lang: str) -> bool:
    """Whether one of `tags` is of the language of `lang`."""
    wanted = language_prefix(lang)
    return any(language_prefix(tag) == wanted for tag in tags)


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
        return has_language(self.languages, lang)


class TextFeed:
    """The rest of an utterance's text, coming while it is spoken. Thread-safe: pushed on the loop, taken on a worker.

    One pushes, one takes. The end says only that no more comes: of a sentence spoken to its end, or of one cancelled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[str] = []
        self._ended = False
        self._end_taken = False
        self._wake: Callable[[], None] | None = None

    def push(self, text: str) -> None:
        """More text, to be joined to what came before without a blank. After the end it is dropped."""
        if not text:
            return
        with self._lock:
            if self._ended:
                return
            self._pieces.append(text)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def end(self) -> None:
        """No more text comes. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def take(self) -> tuple[str, bool]:
        """All text pushed since the last take, "" if none; and whether the end has come, so that no more follows it."""
        with self._lock:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._end_taken = self._ended
            return text, self._ended

    def on_news(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, in whatever thread brings the news: text that was not taken, or an end that was not.

        If there is such news already it is called now, in this thread. One `wake` waits at a time; a later one takes
        the place of an earlier one.
        """
        with self._lock:
            is_news = bool(self._pieces) or (self._ended and not self._end_taken)
            self._wake = None if is_news else wake
        if is_news:
            wake()

    async def whole(self) -> str:
        """Wait for the end and take everything not yet taken; for an engine that wants its text whole."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        texts: list[str] = []

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        while True:
            text, is_last = self.take()
            texts.append(text)
            if is_last:
                return "".join(texts)
            news.clear()
            self.on_news(wake)
            try:
                await news.wait()
            finally:
                with self._lock:
                    self._wake = None  # a wait given up may leave no loop behind that could be woken


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence to speak.

    `text` is already normalised: what is to be said, in words. `lang` is the language of the text, as far as
    `lang_source` knows. `deadline_ns` is the monotonic time at
    which the caller would hear silence; an engine with a queue serves the smallest first.

    With `more` the sentence is still being written: `text` is its beginning, and what follows it comes through the
    feed. Only an engine that `streams_text` gets such an utterance.
    """

    id: str
    text: str
    voice: str | None = None
    lang: str | None = None
    lang_source: LangSource = "bot"
    speed: float = 1.0
    seed: int | None = None
    instruct: str | None = None
    call: str = ""
    turn: str = ""
    deadline_ns: int = 0
    follows: bool = False
    """Sentences of its turn came before it: silence before it is a gap, not a wait."""
    more: TextFeed | None = field(default=None, compare=False, repr=False)


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
    """PCM of any length, and the timings that became known with it (never repeated).

    `queued_ns`, of an utterance's first chunk: how long it waited for the engine to take it up, where the engine knows.
    """

    pcm: Pcm
    sample_rate_hz: int
    timings: tuple[Timing, ...] = ()
    queued_ns: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics and admission.

    `load`: the work under way and one utterance more over what the engine can do in time, where it knows; past 1 its
    listeners would hear gaps. 0 while it rests.
    An engine that is not ready does not respond or is starting again; utterances wait or are refused meanwhile.
    `retry_after_ms`: when it is expected to be ready again; 0 where that is not known.
    """

    n_queued: int = 0
    n_running: int = 0
    load: float = 0.0
    is_ready: bool = True
    retry_after_ms: int = 0


class Engine(Protocol):
    """A speech engine. `tests/engines/conformance.py` is the contract in executable form."""

    name: str
    streams_text: bool
    """Whether `synthesize` speaks `Utterance.text` while the rest of it comes through `Utterance.more`."""

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

    def counters(self) -> Mapping[str, float]:
        """What it has done since it started, by names of its own, for metrics; they only grow. Empty where it counts
        nothing."""
