"""The tones of a telephone's keys (ITU-T Q.23), for a platform that has no other way to send them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from telephony_tts.audio.encoder import fade_in
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.resampler import to_pcm

LOW_HZ = (697, 770, 852, 941)
HIGH_HZ = (1209, 1336, 1477, 1633)
KEYS = ("123A", "456B", "789C", "*0#D")
"""A row for each low tone, a column for each high one (Q.23 §6)."""
PAUSE = "w"
PAUSE_MS = 500

LOW_DBM0, HIGH_DBM0 = -8.0, -6.0
"""The high tone is 2 dB louder, because lines lose more of it. Receivers accept 4 dB (Q.24)."""
FULL_SCALE_DBM0 = 3.14
"""A sine of full scale in G.711."""
_RAMP_MS = 2
"""The tones rise and fall within this time, so that they do not click. Receivers want less than 5 ms."""


def frequencies_hz(key: str) -> tuple[int, int]:
    """The low and the high tone of a key."""
    row = next(n for n, keys in enumerate(KEYS) if key in keys)
    return LOW_HZ[row], HIGH_HZ[KEYS[row].index(key)]


def duration_ms(digits: str, on_ms: int, off_ms: int) -> int:
    """How long `digits` take: silence of `off_ms` follows each tone, and a pause stands alone."""
    return sum(PAUSE_MS if digit == PAUSE else on_ms + off_ms for digit in digits)


def tones(digits: str, rate_hz: int, on_ms: int, off_ms: int) -> Iterator[Pcm]:
    """The audio of `digits`, in pieces: a tone of `on_ms` and silence of `off_ms` for each, or a pause. `rate_hz` is at
    least 8000."""
    for digit in digits:
        if digit == PAUSE:
            yield np.zeros(rate_hz * PAUSE_MS // 1000, np.int16)
            continue
        times_s = np.arange(rate_hz * on_ms // 1000) / rate_hz
        low_hz, high_hz = frequencies_hz(digit)
        wave = _amplitude(LOW_DBM0) * np.sin(2 * np.pi * low_hz * times_s)
        wave += _amplitude(HIGH_DBM0) * np.sin(2 * np.pi * high_hz * times_s)
        ramp = fade_in(rate_hz * _RAMP_MS // 1000)
        wave[: ramp.size] *= ramp
        wave[-ramp.size :] *= ramp[::-1]
        yield to_pcm(wave.astype(np.float32))
        yield np.zeros(rate_hz * off_ms // 1000, np.int16)


def _amplitude(dbm0: float) -> float:
    return float(32768 * 10 ** ((dbm0 - FULL_SCALE_DBM0) / 20))
