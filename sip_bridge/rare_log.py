"""The log of what strangers do, who could otherwise fill it: some lines at once, then one a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from telephony_tts.clock import NS_PER_S, monotonic_ns
from telephony_tts.logs import EventLogger

_LINE_NS = NS_PER_S
"""What a line costs, in time."""
_MOST_NS = 20 * _LINE_NS


@dataclass(slots=True)
class _Allowance:
    saved_ns: int
    since_ns: int
    n_left_out: int = 0


class RareLog:
    """`bind` gives loggers that share the allowance. A line says how many were left out before it."""

    def __init__(self, log: EventLogger, clock: Callable[[], int] = monotonic_ns) -> None:
        self._log = log
        self._clock = clock
        self._allowance = _Allowance(_MOST_NS, clock())

    def bind(self, **fields: object) -> RareLog:
        bound = RareLog(self._log.bind(**fields), self._clock)
        bound._allowance = self._allowance
        return bound

    def info(self, event: str, **fields: Any) -> None:
        if self._is_allowed():
            self._log.info(event, **fields, left_out=self._left_out())

    def warning(self, event: str, **fields: Any) -> None:
        if self._is_allowed():
            self._log.warning(event, **fields, left_out=self._left_out())

    def exception(self, event: str, **fields: Any) -> None:
        """A fault of ours is never left out."""
        self._log.exception(event, **fields)

    def _is_allowed(self) -> bool:
        given, now_ns = self._allowance, self._clock()
        given.saved_ns = min(_MOST_NS, given.saved_ns + now_ns - given.since_ns)
        given.since_ns = now_ns
        if given.saved_ns < _LINE_NS:
            given.n_left_out += 1
            return False
        given.saved_ns -= _LINE_NS
        return True

    def _left_out(self) -> int | None:
        """None where there is nothing to tell: such a field is not written."""
        n_left_out, self._allowance.n_left_out = self._allowance.n_left_out, 0
        return n_left_out or None
