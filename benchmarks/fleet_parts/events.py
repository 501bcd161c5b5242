"""The simulated clock: a heap of events in the order of their times. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Events:
    """Events at the same time happen in the order in which they were added, so equal inputs give equal runs."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.n_done = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, when_ns: int, what: Callable[..., object], *arguments: Any) -> None:
        """Call `what(*arguments)` at that time. Raises ValueError for a time in the past."""
        if when_ns < self.now_ns:
            raise ValueError(f"an event at {when_ns} ns was added at {self.now_ns} ns")
        heapq.heappush(self._heap, (when_ns, next(self._order), what, arguments))

    def run(self, until_ns: int | None = None) -> None:
        """Run until no event is left, or until that time."""
        heap = self._heap
        while heap and (until_ns is None or heap[0][0] <= until_ns):
            self.now_ns, _, what, arguments = heapq.heappop(heap)
            self.n_done += 1
            what(*arguments)
