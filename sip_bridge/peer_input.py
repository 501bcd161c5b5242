"""Limits on what peers send: input that cannot be used, and how many digits a call may send."""

from __future__ import annotations

from collections import deque

from sip_bridge import metrics
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.runtime.logs import EventLogger

MAX_DIGITS_PER_S = 20
TOO_MANY_DIGITS = f"more than {MAX_DIGITS_PER_S} digits in a second; the rest is left out"


class BadInput:
    """Counts the input of one peer that cannot be used, and logs each kind once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def report(self, log: EventLogger, kind: str, why: str) -> None:
        """`kind` is one of metrics.BAD_INPUT."""
        metrics.BAD.labels(kind).inc()
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("bad_input", kind=kind, why=why)


class DigitLimit:
    """At most `MAX_DIGITS_PER_S` digits of one call in any second."""

    def __init__(self) -> None:
        self._taken_ns: deque[int] = deque(maxlen=MAX_DIGITS_PER_S)

    def allows(self, now_ns: int) -> bool:
        """Whether one more digit may pass now; it then counts."""
        if len(self._taken_ns) == MAX_DIGITS_PER_S and now_ns - self._taken_ns[0] < NS_PER_S:
            return False
        self._taken_ns.append(now_ns)
        return True
