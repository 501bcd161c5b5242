"""A receiver of telephone keys for the tests: what the limits of ITU-T Q.24 say of each tone pair in the audio.

It finds the tones by their level, and measures each one's frequencies and levels by a long spectrum. It shares nothing
with the code that makes tones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_PAIRS = {
    (697, 1209): "1", (697, 1336): "2", (697, 1477): "3", (697, 1633): "A",
    (770, 1209): "4", (770, 1336): "5", (770, 1477): "6", (770, 1633): "B",
    (852, 1209): "7", (852, 1336): "8", (852, 1477): "9", (852, 1633): "C",
    (941, 1209): "*", (941, 1336): "0", (941, 1477): "#", (941, 1633): "D",
}  # fmt: skip
_STEP_MS = 2.5
_ON_DBM0 = -30.0
_OVERLOAD_DBM0 = 3.14


@dataclass(frozen=True)
class HeardKey:
    """One tone pair: what key it is, how long it is on, how long silence was before it, and its two tones."""

    digit: str
    at_ms: float
    on_ms: float
    before_ms: float
    low_hz: float
    high_hz: float
    low_dbm0: float
    high_dbm0: float
    purity: float
    """The share of the power that the two tones have."""

    def faults(self) -> list[str]:
        """What a receiver within the limits of Q.24 would object to."""
        low, high = min(_PAIRS, key=lambda pair: abs(pair[0] - self.low_hz) + abs(pair[1] - self.high_hz))
        found = []
        if abs(self.low_hz / low - 1) > 0.015 or abs(self.high_hz / high - 1) > 0.015:
            found.append(f"{self.low_hz:.1f} and {self.high_hz:.1f} Hz are off by more than 1.5 %")
        if not -8 <= self.low_dbm0 - self.high_dbm0 <= 4:
            found.append(f"a twist of {self.low_dbm0 - self.high_dbm0:.1f} dB")
        if not (-24 <= self.low_dbm0 <= -3 and -24 <= self.high_dbm0 <= -3):
            found.append(f"{self.low_dbm0:.1f} and {self.high_dbm0:.1f} dBm0")
        if self.on_ms < 40 or self.before_ms < 40:
            found.append(f"{self.on_ms:.1f} ms on after {self.before_ms:.1f} ms of silence")
        if self.purity < 0.97:
            found.append(f"the tones have {self.purity:.3f} of the power")
        return found


def heard_keys(pcm: npt.NDArray[np.int16], rate_hz: int = 8000) -> list[HeardKey]:
    """The tone pairs in the audio, whatever else is wrong with them; audio that is no pair of tones is left out."""
    wave = pcm.astype(np.float64) / 32768
    n_step = int(rate_hz * _STEP_MS / 1000)
    n_steps = len(wave) // n_step
    power = np.square(wave[: n_steps * n_step]).reshape(n_steps, n_step).mean(axis=1)
    is_on = np.concatenate(([False], 10 * np.log10(power * 2 + 1e-12) + _OVERLOAD_DBM0 > _ON_DBM0, [False]))
    edges = np.flatnonzero(np.diff(is_on.astype(int)))
    keys, end_ms = [], -1e9
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        key = _pair(wave[begin * n_step : end * n_step], rate_hz, begin * _STEP_MS, begin * _STEP_MS - end_ms)
        end_ms = end * _STEP_MS
        if key is not None:
            keys.append(key)
    return keys


def _pair(wave: npt.NDArray[np.float64], rate_hz: int, at_ms: float, before_ms: float) -> HeardKey | None:
    if len(wave) < rate_hz * 0.03:
        return None
    middle = wave[int(rate_hz * 0.005) : -int(rate_hz * 0.005)]  # without the ramps
    low_hz, low_dbm0 = _loudest(middle, rate_hz, 600, 1050)
    high_hz, high_dbm0 = _loudest(middle, rate_hz, 1100, 1800)
    near = [pair for pair in _PAIRS if abs(low_hz / pair[0] - 1) < 0.035 and abs(high_hz / pair[1] - 1) < 0.035]
    if not near:
        return None
    pair_power = sum(10 ** ((level - _OVERLOAD_DBM0) / 10) / 2 for level in (low_dbm0, high_dbm0))
    purity = pair_power / float(np.square(middle).mean())
    on_ms = 1000 * len(wave) / rate_hz
    return HeardKey(_PAIRS[near[0]], at_ms, on_ms, before_ms, low_hz, high_hz, low_dbm0, high_dbm0, purity)


def _loudest(wave: npt.NDArray[np.float64], rate_hz: int, from_hz: float, to_hz: float) -> tuple[float, float]:
    """The frequency and the level of the loudest tone within limits."""
    window = np.hanning(len(wave))
    n_fft = 1 << 17
    spectrum = np.abs(np.fft.rfft(wave * window, n_fft)) / (window.sum() / 2)
    hz = np.fft.rfftfreq(n_fft, 1 / rate_hz)
    within = (hz >= from_hz) & (hz <= to_hz)
    at = int(np.argmax(np.where(within, spectrum, 0)))
    return float(hz[at]), float(20 * np.log10(spectrum[at] + 1e-9) + _OVERLOAD_DBM0)
