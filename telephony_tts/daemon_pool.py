"""Threads for files, which the interpreter does not wait for at its end: a disk that hangs must not keep a server.

The pools of the standard library are joined at exit, whatever their threads do.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class DaemonPool(Executor):
    """`n_threads` daemon threads, started with the first work."""

    def __init__(self, n_threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(n_threads)
        ]
        self._is_started = self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue work. Call it from one thread. Raises RuntimeError after `shutdown`."""
        if self._is_closed:
            raise RuntimeError("the threads were told to end")
        if not self._is_started:
            self._is_started = True
            for thread in self._threads:
                thread.start()
        future: Future[Any] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

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
        if wait and self._is_started:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, future, work
