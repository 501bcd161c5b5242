"""The beep of an answering machine: a steady tone of 350 to 2200 Hz for 120 ms to 1 s, then silence.

The audio is looked at in windows of 32 ms, every 16 ms. A window is a tone if one sine explains nearly all of it: its
frequency is that of the largest peak of the spectrum, and the sine is fitted to the window by least squares. Keys, ring
back and music are two or more tones, and speech does not keep its frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log10

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import Pcm

RATE_HZ = 8000
LOWEST_HZ, HIGHEST_HZ = 350.0, 2200.0
SHORTEST_MS, LONGEST_MS = 120, 1000

_WINDOW = 256
_HOP = 128
_HOP_MS = 1000 * _HOP // RATE_HZ
_EDGE_MS = 18
"""A window is a tone if four fifths of it are. So `n` windows in a row are a tone of about `n` hops and this."""
_TOLERANCE_MS = 16
"""How far the measured length may be beyond its limits."""
_LEAST_EXPLAINED = 0.85
_LEAST_PEAK = 0.4
"""A sine between two bins has at least so much of its power in the larger one."""
_FULL_SCALE_DB = 20 * log10(32768)
_LEAST_DBOV = -42.0
_MOST_DRIFT_HZ = 8.0
"""How far a window's frequency may be from the tone's mean."""
_MOST_CHANGE_DB = 3.0
_QUIET_DB = 8.0
"""Silence is so far below the tone: the line may be noisy."""
_QUIET_WINDOWS = 10
_FADE_WINDOWS = 2
"""Windows behind the last one of the tone that still have a part of it."""

_LOWEST_BIN, _HIGHEST_BIN = 11, 71
"""The bins of the spectrum that hold the peaks of such tones."""
_PLACES = 64
"""So many places between two bins are told apart: 0.5 Hz."""

Wave = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Beep:
    """A beep whose tone ended `ago_ms` ago."""

    frequency_hz: float
    length_ms: int
    ago_ms: int


@lru_cache(maxsize=1)
def _tables() -> tuple[Wave, npt.NDArray[np.complex64]]:
    """(Hann's window, the five bins of a sine's spectrum around its peak, by the sine's place between two bins).

    A sine in the window has power in these bins only. Each row has the length 1, so that its product with a spectrum
    is the part of the spectrum that is this sine.
    """
    window = np.hanning(_WINDOW + 1)[:-1]
    times = np.arange(_WINDOW)
    rows = []
    for n in range(_PLACES + 1):
        place = 40 + n / _PLACES - 0.5
        spectrum = np.fft.fft(window * np.exp(2j * np.pi * place * times / _WINDOW))[38:43]
        rows.append(spectrum / np.linalg.norm(spectrum))
    return window.astype(np.float32), np.array(rows, np.complex64).conj()


class BeepDetector:
    """The beeps of one stream of audio at 8 kHz."""

    def __init__(self) -> None:
        self._before: Wave = np.zeros(_HOP, np.float32)
        self._n_tones = 0
        """Windows of the tone so far."""
        self._mean_hz = self._dbov = 0.0
        self._n_behind = 0
        """Windows since the tone ended, while the silence behind it is awaited."""

    @property
    def is_busy(self) -> bool:
        """Whether there is a tone that may become a beep."""
        return self._n_tones > 0

    def feed(self, pcm: Pcm, is_heard: bool = True) -> Beep | None:
        """Take a window of 32 ms. Returns the beep that the silence in it completes. `is_heard` False: what is in it is
        not the other side, so it is no tone."""
        wave: Wave = np.concatenate((self._before, pcm.astype(np.float32)))
        self._before = wave[-_HOP:]
        second = wave[_HOP:]
        dbov = _level_dbov(second)
        frequency_hz = self._tone(second) if is_heard and dbov > _LEAST_DBOV else None
        if frequency_hz is None and not self._n_tones:
            return None  # the window between this one and the one before cannot be a tone either, and that is cheaper
        first = wave[:_WINDOW]
        first_dbov = _level_dbov(first)
        first_hz = self._tone(first) if is_heard and first_dbov > _LEAST_DBOV else None
        found = self._take(first_hz, first_dbov)
        return self._take(frequency_hz, dbov) or found

    def _take(self, frequency_hz: float | None, dbov: float) -> Beep | None:
        if not self._n_behind:
            if frequency_hz is not None and self._goes_on(frequency_hz, dbov):
                return None
            length_ms = _length_ms(self._n_tones)
            if not SHORTEST_MS - _TOLERANCE_MS <= length_ms <= LONGEST_MS + _TOLERANCE_MS:
                self._begin(frequency_hz, dbov)
                return None
        self._n_behind += 1
        if self._n_behind > _FADE_WINDOWS and dbov > self._dbov - _QUIET_DB:
            self._begin(frequency_hz, dbov)
            return None
        if self._n_behind < _FADE_WINDOWS + _QUIET_WINDOWS:
            return None
        beep = Beep(self._mean_hz, round(_length_ms(self._n_tones)), self._n_behind * _HOP_MS)
        self._begin(None, dbov)
        return beep

    def _begin(self, frequency_hz: float | None, dbov: float) -> None:
        """Forget the tone so far; another one may begin with this window."""
        self._n_behind = 0
        self._n_tones = 0 if frequency_hz is None else 1
        self._mean_hz, self._dbov = frequency_hz or 0.0, dbov

    def _goes_on(self, frequency_hz: float, dbov: float) -> bool:
        """Whether the window belongs to the tone so far; then it is taken in."""
        n = self._n_tones
        if n == 1:
            # The first window may hold the rise of the tone.
            self._dbov = max(self._dbov, dbov)
        if n and (abs(frequency_hz - self._mean_hz) > _MOST_DRIFT_HZ or abs(dbov - self._dbov) > _MOST_CHANGE_DB):
            return False
        self._n_tones += 1
        self._mean_hz += (frequency_hz - self._mean_hz) / self._n_tones
        self._dbov += (dbov - self._dbov) / self._n_tones
        return True

    def _tone(self, wave: Wave) -> float | None:
        """The frequency of the window's tone; None if it is no single tone within the limits."""
        window, sines = _tables()
        windowed = wave * window
        spectrum = np.fft.rfft(windowed)
        powers = spectrum.real**2 + spectrum.imag**2
        k = int(powers[_LOWEST_BIN : _HIGHEST_BIN + 1].argmax()) + _LOWEST_BIN
        all_power = float(np.dot(windowed, windowed)) * _WINDOW / 2
        if powers[k] <= _LEAST_PEAK * all_power:
            return None
        left, middle, right = (float(each) ** 0.5 for each in powers[k - 1 : k + 2])
        # The place of the peak between the bins, from the two largest of them, for Hann's window (Grandke 1983).
        ratio = max(left, right) / middle
        place = (2 * ratio - 1) / (ratio + 1)
        place = max(-0.5, min(0.5, place if right >= left else -place))
        sine = sines[round((place + 0.5) * _PLACES)]
        explained = abs(complex(np.dot(sine, spectrum[k - 2 : k + 3]))) ** 2 / all_power
        frequency_hz = (k + place) * RATE_HZ / _WINDOW
        is_within = LOWEST_HZ - 3 <= frequency_hz <= HIGHEST_HZ + 3
        return frequency_hz if is_within and explained >= _LEAST_EXPLAINED else None


def _level_dbov(wave: Wave) -> float:
    return 10 * log10(float(np.dot(wave, wave)) / _WINDOW + 1e-3) - _FULL_SCALE_DB


def _length_ms(n_windows: int) -> float:
    return n_windows * _HOP_MS + _EDGE_MS if n_windows else 0.0
