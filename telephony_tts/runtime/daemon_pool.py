"""Threads for files, which the interpreter does not wait for at its end: a disk that hangs must not keep a server.

The pools of the standard library are joined at exit, whatever their threads do.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from telephony_tts.runtime.errors import Busy

Result = TypeVar("Result")

_RETRY_MS = 5_000


class DaemonPool(Executor):
    """`n_threads` daemon threads, started with the first work. If only some can be started, the others start later."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._n_threads = n_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        """Those that were started."""
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue work. Call it from one thread. Raises RuntimeError after `shutdown`, or if no thread can be started."""
        if self._is_closed:
            raise RuntimeError("the threads were told to end")
        self._start_threads()
        future: Future[Any] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _start_threads(self) -> None:
        while len(self._threads) < self._n_threads:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the machine or the container has as many threads as it may have
                if not self._threads:
                    raise
                return
            self._threads.append(thread)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Have the threads end behind what waits; with `cancel_futures`, behind what they do now."""
        self._is_closed = True
        while cancel_futures:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # it belongs to the task that waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, future, work


async def in_own_thread(work: Callable[..., Result], *args: Any) -> Result:
    """Do work that changes something, in a thread that is started for it. Raises Busy if none can be started.

    Then the work is never done. `asyncio.to_thread` would leave it in a queue, and do it later, although the caller was
    told that it failed.
    """
    pool = DaemonPool(1, "change")
    try:
        done = pool.submit(work, *args)
    except RuntimeError as error:
        raise Busy("the machine cannot start a thread for this now: try again", retry_after_ms=_RETRY_MS) from error
    pool.shutdown(wait=False)
    result: Result = await asyncio.wrap_future(done)
    return result
