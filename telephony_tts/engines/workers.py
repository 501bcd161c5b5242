"""Threads that do an engine's blocking work outside the event loop.

Work is an iterator. A worker advances it item by item. It stops when the work ends or is cancelled, when more urgent
work is queued, or when `max_ahead` items were not taken. Then it takes the work with the smallest deadline. So a slow
consumer costs bounded memory and no thread, and a worker never waits for a consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import logging
import threading
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Generic, TypeVar

from telephony_tts.engines.api import EngineStats
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

Cancelled = Callable[[], bool]
"""True after the work was cancelled. Long steps check it and return early."""


Work = Callable[[Cancelled], Iterator[T]]
"""Blocking work whose items are made on a worker thread. It must not hold a lock between items."""

MAX_AHEAD = 64
"""Limit of items of a job that were made and not taken: 64 chunks of 200 ms are 12.8 s and 0.6 MB of speech."""


def give_back_unused_memory() -> None:
    """To the system, what malloc keeps: up to 60 MB for each thread that has spoken. Takes 2 to 4 ms. glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class _Job(Generic[T]):
    """The work of one utterance. The pool's lock guards every field except `cancelled` and `steps`."""

    def __init__(self, work: Work[T], deadline_ns: int, order: int, stop: Callable[[], None]) -> None:
        self.deadline_ns = deadline_ns
        self.order = order
        self.cancelled = threading.Event()
        self._stop = stop
        self.steps = work(self.cancelled.is_set)
        self.items: deque[T] = deque()
        self.error: BaseException | None = None
        self.is_running = False
        self.is_parked = False
        self.is_done = False
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()
        self.is_awaited = False

    def __lt__(self, other: _Job[T]) -> bool:
        return (self.deadline_ns, self.order) < (other.deadline_ns, other.order)

    def cancel(self) -> None:
        self.cancelled.set()
        self._stop()

    def close_steps(self) -> None:
        """Run the `finally` blocks of the work. Does nothing for work that ended or never began.

        An exception becomes the job's error if it has none; it must not end a worker or a consumer.
        """
        close = getattr(self.steps, "close", None)
        if close is None:
            return
        try:
            close()
        except Exception as raised:
            log.exception("closing an engine's work failed")
            self.error = self.error or without_locals(raised)

    def wake(self) -> None:
        """Wake the consumer, once for each wait, because waking a loop costs a system call."""
        if self.is_awaited:
            self.is_awaited = False
            self.loop.call_soon_threadsafe(self.changed.set)


def without_locals(error: Exception) -> Exception:
    """The error with its traceback, but without the local variables of the frames.

    They may hold a gigabyte of an utterance's state. The cycle of error, frame and job would keep it until the next
    garbage collection.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return error


class WorkerPool:
    """`n_workers` threads that serve jobs by earliest deadline. Create and close it on an event loop."""

    def __init__(self, n_workers: int, name: str, *, max_ahead: int = MAX_AHEAD) -> None:
        if n_workers < 1 or max_ahead < 1:
            raise ValueError("n_workers and max_ahead must be at least 1")
        self.name = name
        self._max_ahead = max_ahead
        self._ready = threading.Condition()
        self._queue: list[_Job[Any]] = []
        self._jobs: set[_Job[Any]] = set()
        self._n_submitted = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._exited = [asyncio.Event() for _ in range(n_workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(exited,), name=f"{name}-{i}", daemon=True)
            for i, exited in enumerate(self._exited)
        ]
        n_started = 0
        try:
            for thread in self._threads:
                thread.start()
                n_started += 1
        except RuntimeError as error:  # the machine or the container has as many threads as it may have
            self._threads = self._threads[:n_started]
            with self._ready:
                self._is_closed = True
                self._ready.notify_all()
            for thread in self._threads:
                thread.join()
            raise EngineUnavailable(f"{name} cannot start its {n_workers} threads: {error}") from error

    def stats(self) -> EngineStats:
        with self._ready:
            n_running = sum(job.is_running for job in self._jobs)
            return EngineStats(n_queued=len(self._queue), n_running=n_running)

    async def stream(
        self, work: Work[T], deadline_ns: int = 0, stop: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[T, None]:
        """Yield the items of `work`. If the generator is closed while the work is queued, the work never starts.

        Closing the generator, or cancelling its task, stops the work when it next checks `Cancelled`. It returns only
        when no worker runs the work. `stop` is called at once, for a step that can be ended from outside. An exception
        of the work is raised here after its items.
        """
        job = self._submit(work, deadline_ns, stop)
        try:
            while True:
                item = self._take(job)
                if item is not None:
                    yield item[0]
                elif job.is_done:
                    if job.error is not None:
                        raise job.error
                    return
                else:
                    await self._change(job)
        finally:
            await self._withdraw(job)

    async def close(self) -> None:
        """Cancel every job and join every thread. Open streams raise EngineError. Idempotent."""
        with self._ready:
            self._is_closed = True
            for job in list(self._jobs):
                job.cancel()
                job.items.clear()
                if not job.is_running:
                    self._end(job, self._closed_error())
            self._queue.clear()
            self._ready.notify_all()
        for exited in self._exited:
            await exited.wait()
        for thread in self._threads:
            thread.join()

    # ------------------------------------------------------------------------ on the loop

    def _submit(self, work: Work[T], deadline_ns: int, stop: Callable[[], None]) -> _Job[T]:
        with self._ready:
            if self._is_closed:
                raise EngineError(f"{self.name} is closed")
            self._n_submitted += 1
            job = _Job(work, deadline_ns, self._n_submitted, stop)
            self._jobs.add(job)
            self._enqueue(job)
            return job

    def _take(self, job: _Job[T]) -> tuple[T] | None:
        with self._ready:
            if not job.items:
                return None
            item = job.items.popleft()
            if job.is_parked and len(job.items) <= self._max_ahead // 2:
                job.is_parked = False
                self._enqueue(job)
            return (item,)

    async def _change(self, job: _Job[T]) -> None:
        with self._ready:
            if job.items or job.is_done:
                return
            job.changed.clear()
            job.is_awaited = True
        await job.changed.wait()

    async def _withdraw(self, job: _Job[T]) -> None:
        """Cancel the job and wait for its worker, also if the waiting task is cancelled meanwhile."""
        interrupted: asyncio.CancelledError | None = None
        job.cancel()
        while True:
            with self._ready:
                job.items.clear()
                if not job.is_running:
                    if job in self._queue:
                        self._queue.remove(job)
                        heapq.heapify(self._queue)
                    self._end(job, None)
                    break
                job.changed.clear()
                job.is_awaited = True
            try:
                await job.changed.wait()
            except asyncio.CancelledError as cancelled:
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted

    # ------------------------------------------------------------- with the lock held

    def _enqueue(self, job: _Job[T]) -> None:
        heapq.heappush(self._queue, job)
        self._ready.notify()

    def _end(self, job: _Job[Any], error: BaseException | None) -> None:
        """Remove the job from the pool. Idempotent."""
        if job.is_done:
            return
        job.is_done = True
        job.is_running = False
        job.is_parked = False
        job.error = error or job.error
        job.close_steps()
        self._jobs.discard(job)
        job.wake()

    def _closed_error(self) -> EngineError:
        return EngineError(f"{self.name} was closed")

    # ----------------------------------------------------------------------- on a worker

    def _serve(self, exited: asyncio.Event) -> None:
        try:
            while (job := self._next()) is not None:
                try:
                    self._advance(job)
                except Exception:
                    log.exception("a worker of %s failed", self.name)
                del job  # an idle worker must not keep the last job alive
        finally:
            self._loop.call_soon_threadsafe(exited.set)

    def _next(self) -> _Job[Any] | None:
        with self._ready:
            while not self._queue:
                if self._is_closed:
                    return None
                self._ready.wait()
            job = heapq.heappop(self._queue)
            job.is_running = True
            return job

    def _advance(self, job: _Job[Any]) -> None:
        error: BaseException | None = None
        try:
            while not job.cancelled.is_set():
                item = next(job.steps)
                with self._ready:
                    if job.cancelled.is_set():
                        break
                    job.items.append(item)
                    job.wake()
                    if self._must_yield(job):
                        return
        except StopIteration:
            pass
        except Exception as raised:
            error = without_locals(raised)
        job.close_steps()
        with self._ready:
            self._end(job, self._closed_error() if self._is_closed and error is None else error)

    def _must_yield(self, job: _Job[Any]) -> bool:
        """Whether the worker must take other work now. Call it with the lock held, after each item."""
        if len(job.items) >= self._max_ahead:
            job.is_parked = True
        elif self._queue and self._queue[0] < job:
            self._enqueue(job)
        else:
            return False
        job.is_running = False
        return True
