"""The interface of a speech engine.

All calls share an engine. An `Utterance` is one sentence of one call, and `synthesize` turns it into PCM chunks.
Closing the generator cancels the utterance. The type says so: it is an `AsyncGenerator`, not just an iterator.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
"""Mono signed 16-bit samples, shape [n_samples]."""


LangSource = Literal["bot", "words", "letters"]
"""Where a text's language comes from: the bot (or the server's `speech.lang`), the words of Latin text, or the letters
alone. By its letters, all Latin text counts as English."""


def language_prefix(tag: str) -> str:
    """The language of a tag in lower case without the region: "zh" of "zh-CN". Norwegian is always "nb"."""
    prefix = tag.lower().replace("_", "-").split("-")[0]
    return "nb" if prefix == "no" else prefix


def has_language(tags: Iterable[str], lang: str) -> bool:
    """Whether one of `tags` has the language of `lang`."""
    wanted = language_prefix(lang)
    return any(language_prefix(tag) == wanted for tag in tags)


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice of an engine. `gain_db` brings its audio to the level of the other voices before the telephone codec."""

    name: str
    engine: str
    languages: tuple[str, ...]
    sample_rate_hz: int
    gain_db: float = 0.0
    description: str = ""

    def speaks(self, lang: str) -> bool:
        """Whether the voice has the language of the tag `lang`; the region does not matter."""
        return has_language(self.languages, lang)


def spoken_languages(voices: Iterable[Voice]) -> list[str]:
    """The prefixes of the languages that voices speak, in alphabetical order. Mandarin is "zh"."""
    return sorted({language_prefix(tag) for voice in voices for tag in voice.languages} - {"cmn"})


class TextFeed:
    """The rest of an utterance's text, which comes while the utterance is spoken.

    Thread-safe for one producer (the event loop) and one consumer (an engine's thread). The end only says that no more
    text comes: the sentence is complete, or it was cancelled.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: list[str] = []
        self._ended = False
        self._end_taken = False
        self._wake: Callable[[], None] | None = None

    def push(self, text: str) -> None:
        """Add text, which is joined to the text before it without a blank. After the end it is dropped."""
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
        """Say that no more text comes. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def take(self) -> tuple[str, bool]:
        """(the text pushed since the last take, whether the end has come, so that no more text follows)."""
        with self._lock:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._end_taken = self._ended
            return text, self._ended

    def on_news(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when there is text or an end that was not taken, in the thread that brings it.

        If there is such news already, `wake` is called now in this thread. Only one `wake` waits at a time: a later one
        replaces an earlier one.
        """
        with self._lock:
            is_news = bool(self._pieces) or (self._ended and not self._end_taken)
            self._wake = None if is_news else wake
        if is_news:
            wake()

    async def whole(self) -> str:
        """Wait for the end and take all remaining text, for an engine that needs the whole text."""
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
                    self._wake = None  # a cancelled wait must not leave a callback into its loop


class Insert(Protocol):
    """What a turn has between its sentences and no engine speaks: silence, a sound, tones."""

    def chunks(self) -> Iterator[Chunk]:
        """The audio from its beginning, in chunks of at most half a second. It may be endless."""


@runtime_checkable
class LoadedInsert(Protocol):
    """An insert that has to be read before it can be played."""

    async def load(self) -> None:
        """Make `chunks` possible. Raises SoundError if the insert cannot be played."""


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """How `Utterance.text[start:end]` sounds: `value` in IPA, or in pinyin with tones ("chong2 qing4").

    Pinyin has one syllable for each character.
    """

    start: int
    end: int
    alphabet: Literal["ipa", "pinyin"]
    value: str


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence to speak.

    `text` is normalised: it is in words. `lang` is the language of the text according to `lang_source`. `deadline_ns`
    is the monotonic time at which the caller would hear silence. An engine with a queue serves the smallest first.

    With `more` the sentence is still being written: `text` is its beginning, and the feed brings the rest. Only an
    engine with `streams_text` gets such an utterance.

    With `insert` there is no text, and the audio is that of the insert.
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
    """Whether sentences of its turn came before it: silence before it is then a gap, not the wait for first audio."""
    can_wait: bool = False
    """Whether it is for a file and not for a caller."""
    more: TextFeed | None = field(default=None, compare=False, repr=False)
    insert: Insert | None = None
    is_private: bool = False
    """Its audio must not be kept."""
    has_digits: bool = False
    """The bot wrote digits, which `text` has as words: an amount or a person's name, perhaps."""
    pronunciations: tuple[Pronunciation, ...] = ()
    """In the order of the text, without overlap. An engine uses those that it can, and reads the text otherwise.
    Timings refer to `text` in any case."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a word is heard: `Utterance.text[start_char:end_char]`, or one character in Chinese.

    Samples count from the first sample of the utterance, at the chunk's rate.
    """

    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """PCM of any length, and the timings that became known with it; a timing is never repeated.

    `estimates`: the timings are estimated. `queued_ns` of the first chunk of an utterance: how long the utterance was
    queued, if the engine knows.
    """

    pcm: Pcm
    sample_rate_hz: int
    timings: tuple[Timing, ...] = ()
    queued_ns: int = 0
    estimates: bool = False


def halves(chunk: Chunk, ms: int) -> list[Chunk]:
    """The first `ms` of a chunk, with all its timings, and the rest, if there is a rest."""
    n = chunk.sample_rate_hz * ms // 1000
    if len(chunk.pcm) <= n:
        return [chunk]
    return [replace(chunk, pcm=chunk.pcm[:n]), replace(chunk, pcm=chunk.pcm[n:], timings=(), queued_ns=0)]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics and admission.

    `load`: the active work and one more utterance, divided by what the engine can do in time, if it knows. Above 1 its
    listeners would hear gaps. 0 while the engine is idle.
    `is_ready`: false while the engine does not respond or restarts; utterances then wait or are refused.
    `retry_after_ms`: when the engine is expected to be ready again; 0 if unknown.
    `n_replicas`: the processes that the engine is known to have; `n_lost` of them accept nothing now.
    """

    n_queued: int = 0
    n_running: int = 0
    load: float = 0.0
    is_ready: bool = True
    retry_after_ms: int = 0
    n_replicas: int = 1
    n_lost: int = 0


@runtime_checkable
class FindsVoices(Protocol):
    """An engine that may have voices beyond those that it lists. `Catalog` asks it for a voice that no engine lists."""

    def find_voice(self, name: str) -> Voice | None:
        """The voice of this name. Takes microseconds, whatever is asked and however often."""


@runtime_checkable
class HasVersion(Protocol):
    """An engine whose audio can be kept: it knows what its audio depends on besides the utterance."""

    def version(self, voice: str) -> str | None:
        """Another text if the model, its settings or this voice became others. None: do not keep it now. Takes
        microseconds."""


@runtime_checkable
class RecallsAudio(Protocol):
    """An engine that has the audio of some utterances already."""

    def recall(self, utterance: Utterance) -> Sequence[Chunk] | None:
        """All audio of the utterance, which `check` accepts, if it can be had without waiting. Takes microseconds."""


@runtime_checkable
class ShowsReading(Protocol):
    """An engine that can say what its network is given, before it has started."""

    def shown(self, utterance: Utterance) -> Mapping[str, str]:
        """The reading of the utterance, by the names that `say --show` prints. Blocking: it may load dictionaries."""


@runtime_checkable
class ReadsDigits(Protocol):
    """An engine that reads counters, dates and amounts itself: its text has them in digits, and all else in words."""

    @property
    def reads_digits(self) -> Sequence[str]:
        """The prefixes of the languages in which it does."""


def languages_read_in_digits(engine: object) -> Sequence[str]:
    """The languages in which an engine, or the one whose phrases it keeps, reads most numbers itself."""
    reads = getattr(engine, "inner", engine)
    return reads.reads_digits if isinstance(reads, ReadsDigits) else ()


class Engine(Protocol):
    """A speech engine. `tests/engines/conformance.py` tests every engine against this contract."""

    name: str

    @property
    def streams_text(self) -> bool:
        """Whether `synthesize` speaks `Utterance.text` while the rest comes through `Utterance.more`. May become known
        when the engine has started."""

    @property
    def voices(self) -> tuple[Voice, ...]:
        """The voices of this engine; the first is the default."""

    async def start(self) -> None:
        """Load models and warm up. Raises EngineUnavailable, which says what is missing and how to install it."""

    async def close(self) -> None:
        """Stop all work and free the workers. Idempotent."""

    def check(self, utterance: Utterance) -> None:
        """Raise UnknownVoice or UnsupportedText if `synthesize` would. Takes microseconds."""

    def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        """Yield the utterance's audio in order.

        Closing the generator cancels: the work stops, and its slot is free before aclose() returns. Raises EngineError
        or a subclass of it.
        """

    def stats(self) -> EngineStats:
        """How much is queued and running now."""

    def counters(self) -> Mapping[str, float]:
        """The engine's counters since its start, by its own names, for metrics. They only grow. May be empty."""
