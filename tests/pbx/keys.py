"""Reads the keys of a telephone from a recording: two tones each (ITU-T Q.23), found with Goertzel's algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import Pcm

_ROWS_HZ = (697, 770, 852, 941)
_COLUMNS_HZ = (1209, 1336, 1477, 1633)
_KEYS = ("123A", "456B", "789C", "*0#D")
_WINDOW_MS, _STEP_MS = 20, 5
_LEAST_RMS = 200
"""Quieter than any key that a telephone network takes."""
_SHARE = 0.85
"""The part of a window's energy that its two tones must have. Speech has less."""
_MAX_TWIST = 10 ** (8 / 20)


@dataclass(frozen=True)
class Key:
    """A key that was heard, and when, in ms of the recording. `low_db` and `high_db` are below full scale."""

    key: str
    start_ms: int
    end_ms: int
    low_db: float
    high_db: float


def keys_in(pcm: Pcm, rate_hz: int = 8000) -> list[Key]:
    """The keys in the recording, in order. A key counts from 30 ms on."""
    n, step = rate_hz * _WINDOW_MS // 1000, rate_hz * _STEP_MS // 1000
    found: list[Key] = []
    run: list[tuple[str, float, float]] = []
    for at in range(0, len(pcm) - n + step, step):
        seen = _key(pcm[at : at + n].astype(np.float64), rate_hz) if at + n <= len(pcm) else None
        if run and (seen is None or seen[0] != run[0][0]):
            begin_ms = (at - len(run) * step) * 1000 // rate_hz
            # A window counts when most of it has the tones: its middle is in them.
            end_ms = begin_ms + (len(run) - 1) * _STEP_MS + _WINDOW_MS
            if end_ms - begin_ms >= 30:
                low, high = (max(each[index] for each in run) for index in (1, 2))
                found.append(Key(run[0][0], begin_ms, end_ms, low, high))
            run = []
        if seen is not None:
            run.append(seen)
    return found


def _key(window: npt.NDArray[np.float64], rate_hz: int) -> tuple[str, float, float] | None:
    energy = float(window @ window)
    if energy < len(window) * _LEAST_RMS**2:
        return None
    rows, columns = ([goertzel(window, hz, rate_hz) for hz in tones] for tones in (_ROWS_HZ, _COLUMNS_HZ))
    row, column = int(np.argmax(rows)), int(np.argmax(columns))
    low, high = rows[row], columns[column]
    if (low**2 + high**2) * len(window) / 2 < _SHARE * energy or not 1 / _MAX_TWIST < low / high < _MAX_TWIST:
        return None
    return _KEYS[row][column], *(20 * math.log10(each / 32768) for each in (low, high))


def goertzel(window: npt.NDArray[np.float64], hz: float, rate_hz: int) -> float:
    """The amplitude of one tone."""
    turn = 2 * math.cos(2 * math.pi * hz / rate_hz)
    last = before = 0.0
    for sample in window:
        last, before = sample + turn * last - before, last
    power = last * last + before * before - turn * last * before
    return 2 * math.sqrt(max(0.0, power)) / len(window)
