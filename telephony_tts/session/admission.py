"""Whether one more call may come in: no before it would hurt the calls that are there. Pure; time is an argument."""

from __future__ import annotations

from telephony_tts.errors import Busy

_HALF_LIFE_NS = 1_000_000_000


class Admission:
    """Remembers how late the event loop has been lately and how much the engines owe.

    `max_late_ms` is the lateness from which new calls are refused; `max_queued` the number of utterances that may
    wait in the engines.
    """

    def __init__(self, max_calls: int, max_late_ms: float, max_queued: int = 64) -> None:
        self._max_calls = max_calls
        self._max_late_ms = max_late_ms
        self._max_queued = max_queued
        self._late_ms = 0.0
        self._late_at_ns = 0

    def observe_lateness(self, late_ms: float, now_ns: int) -> None:
        """Something ran this much later than planned; the worst counts, and fades by half every second."""
        self._late_ms = max(late_ms, self.lateness_ms(now_ns))
        self._late_at_ns = now_ns

    def lateness_ms(self, now_ns: int) -> float:
        """The recent worst, faded."""
        return self._late_ms * float(0.5 ** ((now_ns - self._late_at_ns) / _HALF_LIFE_NS))

    def check(self, n_calls: int, n_queued: int, now_ns: int, load: float = 0.0) -> None:
        """Raise Busy, with when to come back, if one more call would be too many. `load`: see `EngineStats`."""
        if n_calls >= self._max_calls:
            raise Busy(f"{n_calls} calls are live, the limit is {self._max_calls}", retry_after_ms=5000)
        late_ms = self.lateness_ms(now_ns)
        if late_ms > self._max_late_ms:
            raise Busy(f"frames were {late_ms:.0f} ms late just now", retry_after_ms=2000)
        if load > 1.0:
            # The longest sentences take some seconds to say, so that soon there is room again.
            raise Busy(f"the speech engine has {load:.1f} times as much to say as it can in time", retry_after_ms=2000)
        if n_queued > self._max_queued:
            raise Busy(f"{n_queued} utterances wait for an engine", retry_after_ms=1000)
