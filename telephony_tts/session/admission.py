"""Admission: whether the server can take one more call without harming the live ones. Pure; time is an argument."""

from __future__ import annotations

from telephony_tts.runtime.errors import Busy

_HALF_LIFE_NS = 1_000_000_000


class Admission:
    """Remembers how late the event loop was recently.

    New calls are refused above a lateness of `max_late_ms`, and when more than `max_queued` utterances wait in the
    engines.
    """

    def __init__(self, max_calls: int, max_late_ms: float, max_queued: int = 64) -> None:
        self._max_calls = max_calls
        self._max_late_ms = max_late_ms
        self._max_queued = max_queued
        self._late_ms = 0.0
        self._late_at_ns = 0

    def observe_lateness(self, late_ms: float, now_ns: int) -> None:
        """The event loop ran something `late_ms` after its time. The worst value counts, and halves every second."""
        self._late_ms = max(late_ms, self.lateness_ms(now_ns))
        self._late_at_ns = now_ns

    def lateness_ms(self, now_ns: int) -> float:
        """The worst recent lateness, faded."""
        return self._late_ms * float(0.5 ** ((now_ns - self._late_at_ns) / _HALF_LIFE_NS))

    def check(self, n_calls: int, n_queued: int, now_ns: int, load: float = 0.0) -> None:
        """Raises Busy, with the time to retry after, if one more call is too many. `load`: see `EngineStats`."""
        if n_calls >= self._max_calls:
            raise Busy(f"{n_calls} calls are live, the limit is {self._max_calls}", retry_after_ms=5000)
        late_ms = self.lateness_ms(now_ns)
        if late_ms > self._max_late_ms:
            raise Busy(f"frames were {late_ms:.0f} ms late just now", retry_after_ms=2000)
        if load > 1.0:
            # The longest sentences take a few seconds, so there is room again soon.
            raise Busy(f"the speech engine has {load:.1f} times as much to say as it can in time", retry_after_ms=2000)
        if n_queued > self._max_queued:
            raise Busy(f"{n_queued} utterances wait for an engine", retry_after_ms=1000)
