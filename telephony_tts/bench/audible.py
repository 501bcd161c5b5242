"""Where a listener can first hear something: speech often begins with silence, which is no answer to the caller."""

from __future__ import annotations

import numpy as np

from telephony_tts.engines.api import Pcm

LOUD_DBFS = -45.0
"""As in the benchmarks of whole calls."""
WINDOW_S = 0.005


def audible_sample(pcm: Pcm, rate_hz: int) -> int | None:
    """The first sample of the first 5 ms of int16 audio [n] whose RMS level is above -45 dB of full scale; None if all
    of it is quieter. A last window may be shorter."""
    size = max(1, round(WINDOW_S * rate_hz))
    power = np.square(pcm.astype(np.float64) / 32768)
    starts = np.arange(0, len(pcm), size)
    if not len(starts):
        return None
    means = np.add.reduceat(power, starts) / np.minimum(size, len(pcm) - starts)
    loud = np.flatnonzero(means > 10 ** (LOUD_DBFS / 10))
    return int(starts[loud[0]]) if len(loud) else None
