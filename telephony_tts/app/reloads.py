"""Files that are read again while the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from telephony_tts.runtime import event_loop, logs
from telephony_tts.runtime.daemon_pool import DaemonPool

_log = logs.get(__name__)

_RELOAD_AGAIN_S = 10.0
"""After a check of a file that failed, the next one comes so soon, also if only SIGHUP causes checks."""


class Reloads:
    """Reads files again when they changed: now and then, and at once at SIGHUP. A mounted file sends no signal."""

    def __init__(self) -> None:
        self._files: list[tuple[Callable[[], Any], Callable[[Any], None], float]] = []
        self._asked: list[asyncio.Event] = []

    def add(self, read: Callable[[], Any], use: Callable[[Any], None], check_s: float) -> None:
        """Call `read` every `check_s` in a thread; 0: only at SIGHUP. What it returns is given to `use` in the event
        loop, unless it is None."""
        self._files.append((read, use, check_s))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read files while the context lasts. Without files SIGHUP ends the process, as ever."""
        if not self._files:
            yield
            return
        self._asked = [asyncio.Event() for _ in self._files]
        # One file at a time, for the sake of the event loop, which all threads that compute take turns with.
        pool = DaemonPool(1, "reloads")
        tasks = [
            asyncio.create_task(self._watch(*file, asked, pool), name="watch files")
            for file, asked in zip(self._files, self._asked, strict=True)
        ]
        try:
            with event_loop.on_hangup(self.now):
                yield
        finally:
            for task in tasks:
                task.cancel()
            pool.shutdown(wait=False, cancel_futures=True)

    def now(self) -> None:
        """Read all files that changed, without waiting."""
        for asked in self._asked:
            asked.set()

    async def _watch(
        self,
        read: Callable[[], Any],
        use: Callable[[Any], None],
        check_s: float,
        asked: asyncio.Event,
        pool: DaemonPool,
    ) -> None:
        wait_s, unused = check_s, None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), wait_s or None)
            asked.clear()
            wait_s = check_s
            try:
                content = await asyncio.wrap_future(pool.submit(event_loop.giving_way, read))
                unused = unused if content is None else content
                if unused is not None:
                    use(unused)
                    unused = None
            except Exception:
                _log.exception("files_not_checked")  # everything stays as it is, and is checked again
                wait_s = min(check_s or _RELOAD_AGAIN_S, _RELOAD_AGAIN_S)
