"""The timer that wakes a call for each frame that it sends to the phone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sip_bridge.speech.pacer import Pacer
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns


class FrameTimer:
    """Calls `write_due` with the pacer and the time in ns, when frames are due, from `start` until `stop`.

    If `write_due` raises, `crashed` is called within the handling of the exception, and the timer goes on.
    """

    def __init__(
        self,
        write_due: Callable[[Pacer, int], None],
        crashed: Callable[[], None],
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._write_due = write_due
        self._crashed = crashed
        self._clock = clock
        self._pacer: Pacer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first frame is due at once."""
        self._pacer = Pacer(self._clock())
        self._tick()

    def stop(self) -> None:
        """Nothing is called any more. Idempotent."""
        self._pacer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        if self._pacer is None:
            return
        try:
            self._write_due(self._pacer, self._clock())
        except Exception:
            self._crashed()
        if self._pacer is not None:
            # The loop's timers may have a grain of 1 ms; half of one more avoids waking just before the moment.
            wait_ns = self._pacer.next_ns - self._clock() + NS_PER_MS // 2
            self._timer = asyncio.get_running_loop().call_later(max(0, wait_ns) / NS_PER_S, self._tick)
