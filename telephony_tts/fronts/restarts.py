"""When a front that has ended is started again. Pure; the time is an argument."""

from __future__ import annotations

from telephony_tts.runtime.clock import NS_PER_S

PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before each new start after failures in a row; the last one repeats."""
STEADY_NS = 60 * NS_PER_S
"""A front that ran for so long has not failed in a row."""


class RestartPauses:
    """The pauses of one front."""

    def __init__(self) -> None:
        self._n_failed = 0

    def after(self, ran_ns: int) -> float:
        """How many seconds to wait after a front that ran for `ran_ns`."""
        if ran_ns >= STEADY_NS:
            self._n_failed = 0
        pause_s = PAUSES_S[min(self._n_failed, len(PAUSES_S) - 1)]
        self._n_failed += 1
        return pause_s
