"""What the engines have in common that speak on threads of this process: hibari, kokoro and espeak."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Generic, TypeVar

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.versions import package_version
from telephony_tts.engines.words import is_speakable
from telephony_tts.engines.workers import Work, WorkerPool
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

Loaded = TypeVar("Loaded")
"""What an engine speaks with, loaded once."""


class ThreadedEngine(ABC, Generic[Loaded]):
    """What engines with threads share. A subclass says how to load, which texts it speaks, and the work that speaks
    one."""

    name: str
    package: str
    """Whose version is the engine's."""
    voices: tuple[Voice, ...]
    streams_text = False

    def __init__(self, n_workers: int, *, at_first_need: bool = False) -> None:
        """`at_first_need`: it loads for the first text, not at the start."""
        self._n_workers = n_workers
        self._at_first_need = at_first_need
        self._pool: WorkerPool | None = None
        self._loading: asyncio.Task[Loaded] | None = None

    @abstractmethod
    def load(self) -> Iterator[Loaded]:
        """Yield once, on a thread, what the engine speaks with."""

    @abstractmethod
    def unavailable(self, failure: Exception) -> EngineUnavailable:
        """Why the load failed, and what to do."""

    @abstractmethod
    def check(self, utterance: Utterance) -> None:
        """Raise UnknownVoice, UnsupportedText or EngineUnavailable."""

    @abstractmethod
    def work(self, loaded: Loaded, utterance: Utterance) -> tuple[Work[Chunk], Callable[[], None]]:
        """What speaks the utterance on a thread, and what ends it at once."""

    async def start(self) -> None:
        if self._pool is not None:
            return
        self._pool = WorkerPool(self._n_workers, self.name)
        if self._at_first_need:
            return
        try:
            await self._loaded(self._pool)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        if self._pool is not None:
            await self._pool.close()
        self._pool = self._loading = None

    def stats(self) -> EngineStats:
        return self._pool.stats() if self._pool is not None else EngineStats()

    def counters(self) -> dict[str, float]:
        return {}

    def version(self, voice: str) -> str:
        return package_version(self.package)

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        if not is_speakable(utterance.text):
            return
        pool = self._pool
        if pool is None:
            raise EngineError(f"{self.name} is not started")
        work, stop = self.work(await self._loaded(pool), utterance)
        stream = pool.stream(work, utterance.deadline_ns, stop)
        try:
            async for chunk in stream:
                yield chunk
        except EngineError:
            raise
        except Exception as failure:
            raise EngineError(f"{self.name} failed: {failure}") from failure
        finally:
            await stream.aclose()

    async def _loaded(self, pool: WorkerPool) -> Loaded:
        """Load, once for all that wait. A load that failed is tried again. Raises EngineUnavailable."""
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = asyncio.ensure_future(self._load_in(pool))
        # A caller who hangs up must not end the load, for which others may wait.
        return await asyncio.shield(self._loading)

    async def _load_in(self, pool: WorkerPool) -> Loaded:
        try:
            async for loaded in pool.stream(lambda cancelled: self.load()):
                return loaded
            raise EngineError(f"{self.name} was closed while it loaded")
        except EngineUnavailable:
            raise
        except Exception as failure:
            raise self.unavailable(failure) from failure
