"""An event loop with simulated time. Its clock jumps to the next timer, so runs are fast and deterministic."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """A selector that never waits: it moves the loop's time forward instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("everything waits and no timer is set: this would never end")
            self.loop.now_s += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


def clock() -> int:
    """Nanoseconds on the running loop's clock."""
    return round(asyncio.get_running_loop().time() * 1e9)


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def play(act: Callable[[], Awaitable[None]]) -> None:
    """Run `main`, and assert that no timer is left."""

    async def whole() -> None:
        await act()
        await asyncio.sleep(0)
        timers = [t for t in asyncio.get_running_loop()._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
        assert not timers, timers

    run(whole())


async def at(ms: float) -> None:
    """Wait for this much time on the running loop's clock."""
    await asyncio.sleep(max(0.0, ms / 1000 - clock() / 1e9))
