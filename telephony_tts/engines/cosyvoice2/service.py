"""The CosyVoice2 engine: a model directory and its voices behind `engines.api.Engine`.

All utterances of all calls go to one core (`core.py`), which runs beside the event loop; here they are handed over, and
what comes back is given to whom it belongs. Voices are the model directory's `spk2info.pt` and the voice store's; what
a voice's utterances share is made when it is first used and kept.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from telephony_tts.clock import monotonic_ns
from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance, Voice
from telephony_tts.engines.cosyvoice2.core.orders import Began, Cancel, Ended, Event, Order, Push, Submit, Told, Took
from telephony_tts.engines.cosyvoice2.core.scheduler import Ahead
from telephony_tts.engines.cosyvoice2.languages import LANGUAGES, check_letters
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ
from telephony_tts.engines.cosyvoice2.profile import PROFILES
from telephony_tts.engines.cosyvoice2.settings import (
    DTYPES,
    FLOW_DTYPES,
    LM_DTYPES,
    USUAL,
    VOCODER_DTYPES,
    Precision,
    Settings,
    Timeouts,
)
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.cosyvoice2.text.tokenizer import CONTROL_TOKENS
from telephony_tts.engines.words import is_speakable
from telephony_tts.errors import ConfigError, EngineError, EngineUnavailable, UnknownVoice

MIN_SPEED, MAX_SPEED = 0.5, 2.0
FINISHES = {"profile": None, "causal": True, "full": False}
"""How the last chunk is made: as the profile says, block by block, or once more over the whole utterance."""


ISOLATIONS = ("process", "thread")
"""Whether the engine computes in a process of its own, whose failure is mended, or in threads of this one."""


class Host(Protocol):
    """Where the core runs."""

    async def start(self) -> None:
        """Load. Raises what loading raises."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Their names, as of the last time it loaded; none before."""

    def send(self, order: Order) -> None:
        """From any thread. Raises EngineError where no new utterance can be taken."""

    def counters(self) -> dict[str, float]:
        """See `counters.Counters`."""

    def cost(self) -> float:
        """See `Counters.cost`."""

    @property
    def is_ready(self) -> bool:
        """Whether utterances can be taken."""

    def retry_after_ms(self) -> int:
        """When utterances can be taken again; 0 where they can now, or where it is not known."""

    async def wait_ready(self, *, follows: bool = False) -> None:
        """Return when utterances can be taken. Raises EngineError if that is not expected in time.

        `follows`: the utterance is of a turn that has begun to speak."""

    async def close(self) -> None:
        """End all utterances, and what runs. Idempotent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be held at once. Utterances past `n_slots` wait; those that wait for their listener hold a slot.

    `n_prompts` voices are kept ready to speak (at full size in float32 230 MB for a second of their recording); others
    are made ready again when they are asked for. `flow_memory_mb` of a GPU are for these and for speech under way; past
    that an utterance ends with an error. None is a share of what is free.
    """

    n_slots: int = 16
    n_prompts: int = 4
    flow_memory_mb: int | None = None


@dataclass(slots=True, eq=False)
class _Listener:
    """Who waits for an utterance."""

    submitted_ns: int
    chunks: deque[Chunk] = field(default_factory=deque)
    queued_ns: int | None = None
    """How long it waited for a slot; None before it has one."""
    is_heard: bool = False
    ended: Ended | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, event: Event) -> None:
        match event:
            case Began():
                self.queued_ns = max(0, event.at_ns - self.submitted_ns)
            case Ended():
                self.ended = event
            case Chunk():
                self.chunks.append(event if self.is_heard else replace(event, queued_ns=self.queued_ns or 0))
                self.is_heard = True
        self.news.set()


class CosyVoice2Engine:
    """`profile`: see `profile.PROFILES`; `finish`: see `FINISHES`. `control_tokens` are those that mean what they say
    in the text of an utterance, whoever wrote it; the others are read out. `n_workers` threads compute, see
    `scheduler.lanes`. The dtypes of single networks default to `dtype`."""

    streams_text = True

    def __init__(
        self,
        model_dir: Path,
        voice_dir: Path | None = None,
        n_workers: int = 1,
        device: str = "cpu",
        dtype: str = "float32",
        profile: str = "default",
        *,
        finish: str = "profile",
        control_tokens: Collection[str] = (),
        limits: Limits = Limits(),
        n_threads: int = 1,
        isolation: str = "thread",
        lm_dtype: str | None = None,
        flow_dtype: str | None = None,
        vocoder_dtype: str | None = None,
        ahead_ms: int = Ahead().audio_ms,
        timeouts: Timeouts = USUAL,
    ) -> None:
        """Raises ConfigError for a dtype, profile, finish, isolation or control token there is not, or no slots."""
        for what, value, known in (
            ("dtype", dtype, DTYPES),
            ("profile", profile, PROFILES),
            ("finish", finish, FINISHES),
            ("isolation", isolation, ISOLATIONS),
            ("lm_dtype", lm_dtype, LM_DTYPES),
            ("flow_dtype", flow_dtype, FLOW_DTYPES),
            ("vocoder_dtype", vocoder_dtype, VOCODER_DTYPES),
        ):
            if value is not None and value not in known:
                raise ConfigError(f"cosyvoice2 has no {what} {value!r}; it has {', '.join(known)}")
        for token in control_tokens:
            if token not in CONTROL_TOKENS:
                raise ConfigError(f"cosyvoice2 has no control token {token!r}; it has {' '.join(CONTROL_TOKENS)}")
        if limits.n_slots < 1 or limits.n_prompts < 1:
            raise ConfigError("cosyvoice2 needs at least one slot and room for one voice")
        self.name = "cosyvoice2"
        chosen, causal_finish = PROFILES[profile], FINISHES[finish]
        if causal_finish is not None:
            chosen = replace(chosen, causal_finish=causal_finish)
        self._settings = Settings(
            Path(model_dir),
            voice_dir,
            device,
            Precision.of(dtype, lm_dtype, flow_dtype, vocoder_dtype),
            chosen,
            limits.n_slots,
            limits.n_prompts,
            n_workers,
            n_threads,
            Ahead(ahead_ms),
            limits.flow_memory_mb,
        )
        self._isolation = isolation
        self._timeouts = timeouts
        self._control = frozenset(control_tokens)
        self._host: Host | None = None
        self._listeners: dict[int, _Listener] = {}
        self._n_waiting = 0
        """Utterances that wait for the engine to be ready again."""
        self._keys = itertools.count()

    @property
    def _voices(self) -> tuple[str, ...]:
        return self._host.voices if self._host is not None else ()

    @property
    def voices(self) -> tuple[Voice, ...]:
        """Those of the model directory, then those of the store, as they were when it was loaded: by `start`, or later
        in a new process. None before."""
        return tuple(Voice(name, self.name, LANGUAGES, SAMPLE_RATE_HZ) for name in self._voices)

    async def start(self) -> None:
        if self._host is not None:
            return
        self._host = _host(self._isolation, self._settings, self._hear, self._timeouts)
        try:
            await self._host.start()
        except BaseException as failure:
            await self.close()
            if isinstance(failure, Exception) and not isinstance(failure, EngineUnavailable):
                raise EngineUnavailable(f"cosyvoice2 could not load {self._settings.model_dir}: {failure}") from failure
            raise

    async def close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.close()

    def stats(self) -> EngineStats:
        n_running = sum(listener.queued_ns is not None for listener in self._listeners.values())
        n_queued, host = len(self._listeners) - n_running + self._n_waiting, self._host
        if host is None:
            return EngineStats(n_queued, n_running)
        # Each listener takes a second of speech every second, and so would one more. Who is alone is let in however
        # slow the engine is.
        load = (len(self._listeners) + 1) * host.cost() / self._settings.n_lanes if self._listeners else 0.0
        return EngineStats(n_queued, n_running, load, host.is_ready, host.retry_after_ms())

    def counters(self) -> dict[str, float]:
        """What the engine has done since it started: see `counters.Counters`."""
        return self._host.counters() if self._host is not None else {}

    def check(self, utterance: Utterance) -> None:
        """Text whose letters are all of scripts that the model does not know is refused; a few in between pass."""
        if self._voices and utterance.voice is not None and utterance.voice not in self._voices:
            raise UnknownVoice(f"cosyvoice2 has no voice {utterance.voice!r}; it has {', '.join(self._voices)}")
        check_letters(utterance.text)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if utterance.more is None and not is_speakable(utterance.text):
            return
        host = self._host
        if host is None or not self._voices:
            raise EngineError("cosyvoice2 is not started")
        request = Request(
            utterance.text,
            utterance.seed or 0,
            min(MAX_SPEED, max(MIN_SPEED, utterance.speed)),
            utterance.instruct,
            utterance.more is not None,
            self._control,
        )
        key, listener = next(self._keys), _Listener(monotonic_ns())
        self._n_waiting += 1
        try:
            await host.wait_ready(follows=utterance.follows)
        finally:
            self._n_waiting -= 1
        self.check(utterance)  # its voice may be gone after a restart
        # Who is refused has nothing to wait for.
        host.send(Submit(key, utterance.voice or self._voices[0], request, utterance.deadline_ns, utterance.follows))
        self._listeners[key] = listener
        try:
            if utterance.more is not None:
                self._pass_on(key, host, utterance.more)
            while True:
                if listener.chunks:
                    chunk = listener.chunks.popleft()
                    yield chunk
                    # Asking for the next one is how a listener says that it can use more.
                    self._send(host, Took(key, len(chunk.pcm)))
                elif listener.ended is not None:
                    if listener.ended.error is not None:
                        raise listener.ended.error
                    return
                else:
                    listener.news.clear()
                    await listener.news.wait()
        finally:
            await self._withdraw(key, host, listener)

    def _hear(self, key: int, event: Event) -> None:
        listener = self._listeners.get(key)
        if listener is not None:
            listener.hear(event)

    def _send(self, host: Host, order: Push | Took | Cancel) -> None:
        """To an engine that may be gone: then there is nobody to tell."""
        if self._host is host:
            host.send(order)

    def _pass_on(self, key: int, host: Host, more: TextFeed) -> None:
        """Text to the engine, whenever and in whatever thread some comes."""

        def news() -> None:
            if key not in self._listeners:
                return
            text, last = more.take()
            self._send(host, Push(key, text, last))
            if not last:
                more.on_news(news)

        news()

    async def _withdraw(self, key: int, host: Host, listener: _Listener) -> None:
        """Cancel, and wait until nothing is held, however often the waiting task is itself cancelled."""
        interrupted: asyncio.CancelledError | None = None
        if listener.ended is None:
            self._send(host, Cancel(key))
        while listener.ended is None:
            listener.news.clear()
            try:
                await listener.news.wait()
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        del self._listeners[key]
        if interrupted is not None:
            raise interrupted


def _host(isolation: str, settings: Settings, told: Told, timeouts: Timeouts) -> Host:
    """Threads import torch into this process, and a process of its own does not."""
    if isolation == "process":
        from telephony_tts.engines.cosyvoice2.hosting.process_host import ProcessHost

        return ProcessHost(settings, told, timeouts)
    from telephony_tts.engines.cosyvoice2.hosting.thread_host import ThreadHost

    return ThreadHost(settings, told)
