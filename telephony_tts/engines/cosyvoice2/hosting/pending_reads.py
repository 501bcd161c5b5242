"""What both hosts do about the stored voices: wait for a reading of them, and keep the order of their names."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from telephony_tts.runtime.errors import EngineError

READ_S = 30.0
"""The longest wait for a reading. It takes some milliseconds, and as long as a restart if the process fails."""


class PendingReads:
    """Those who wait until the stored voices have been read. It belongs to one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def ask(self, send: Callable[[int], None]) -> None:
        """Ask with a new number and wait for its answer. Raises EngineError if none comes."""
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send(number)
            async with asyncio.timeout(READ_S):
                await answered
        except TimeoutError:
            raise EngineError(f"cosyvoice2 has not read its voices for {READ_S:g} s") from None
        finally:
            del self._waiting[number]

    def answer(self, number: int | None = None) -> None:
        """All up to this number are answered; None is all."""
        for asked, answered in self._waiting.items():
            if (number is None or asked <= number) and not answered.done():
                answered.set_result(None)

    def fail(self, error: EngineError) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)


def in_order(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The voices of `now`: first those that were there `before`, in their order. The first voice is the default, and a
    voice that is added must not change it."""
    names = [name for name in before if name in now]
    return {name: now[name] for name in [*names, *(name for name in now if name not in before)]}
