"""How many utterances an engine speaks at once, and which of the others is next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns


class SpeakingSlots:
    """`n` slots, each held by one utterance. The earliest deadline gets the next free one. 0: no limit."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.n_held = 0
        self._held_ns = 0
        self._changed_ns = monotonic_ns()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def held_s(self) -> float:
        """Seconds for which slots were held, summed over the slots."""
        return (self._held_ns + self.n_held * (monotonic_ns() - self._changed_ns)) / NS_PER_S

    @asynccontextmanager
    async def held(self, deadline_ns: int) -> AsyncGenerator[None, None]:
        """Hold a slot, from when one is free."""
        if self.n and self.n_held >= self.n:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (deadline_ns, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release()  # it got a slot in the moment in which it was cancelled
                raise
        else:
            self._count(1)
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)  # the slot changes its holder
                return
        self._count(-1)

    def _count(self, n: int) -> None:
        now_ns = monotonic_ns()
        self._held_ns += self.n_held * (now_ns - self._changed_ns)
        self._changed_ns = now_ns
        self.n_held += n
