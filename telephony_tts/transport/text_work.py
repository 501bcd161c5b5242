"""How much of an event loop's time the text of all calls may take: long texts must not make another call's frames late.

Cutting a text into sentences takes 1 to 11 µs a character. Each session asks `may_work` before each piece. In one turn
of the loop all calls together get `_SLICE_NS`, and what they do not finish waits until frames, sockets and timers had
their turn. Of the calls that wait, the one whose text has had the fewest slices is served first, so a short text does
not wait for a long one to end.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary

from telephony_tts.runtime.clock import monotonic_ns

_SLICE_NS = 4_000_000
"""A fifth of a frame's 20 ms."""


class TextWork:
    """The share of one event loop's time that is for text."""

    def __init__(self) -> None:
        self._until_ns: int | None = None
        """When the slice of this turn of the loop is over. None: nothing was done in this turn."""
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """A heap of (slices that the text has had, order of arrival, what goes on with it)."""
        self._order = count()

    def may_work(self) -> bool:
        """Whether there is time for a piece of text in this turn of the loop."""
        now_ns = monotonic_ns()
        if self._until_ns is None:
            self._begin(now_ns)
            return True
        return now_ns < self._until_ns

    def wait(self, n_slices: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there is time for a text that has had `n_slices` of it."""
        heapq.heappush(self._waiting, (n_slices, next(self._order), go_on))
        if self._until_ns is None:
            self._begin(monotonic_ns())

    def _begin(self, now_ns: int) -> None:
        self._until_ns = now_ns + _SLICE_NS
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._until_ns = None
        while self._waiting and self.may_work():
            heapq.heappop(self._waiting)[2]()


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, TextWork] = WeakKeyDictionary()


def text_work() -> TextWork:
    """That of the running event loop."""
    return _OF_LOOPS.setdefault(asyncio.get_running_loop(), TextWork())
