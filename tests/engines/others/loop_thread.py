"""An event loop in a thread, for servers of tests: a stand-in must answer while the test's own loop is busy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T], within_s: float = 20.0) -> T:
        """Run in the thread's loop, and wait for the result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(within_s)


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stand-in")
    thread.start()
    try:
        yield LoopThread(loop)
    finally:
        LoopThread(loop).run(_end_tasks())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
