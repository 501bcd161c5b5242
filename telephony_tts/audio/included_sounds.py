"""The sounds that are included. They are computed, the same each time, so that no file has to be kept.

Each is a loop: its end leads to its beginning without a click. Their level is that of speech, about -20 dBFS while they
sound, so that `gain_db` has the same effect on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from telephony_tts.audio.resampler import Samples
from telephony_tts.audio.sound import Sound, new_sound

_RATE_HZ = 16_000
_LEVEL = 3277.0
"""-20 dBFS, as the RMS of a sound while it sounds."""


def _seconds(duration_s: float) -> Samples:
    return np.arange(round(duration_s * _RATE_HZ), dtype=np.float32) / np.float32(_RATE_HZ)


def _levelled(samples: Samples) -> Sound:
    loud = np.abs(samples) > 0.01 * np.abs(samples).max()
    return new_sound(samples * np.float32(_LEVEL / np.sqrt(np.mean(np.square(samples[loud])))), _RATE_HZ)


def _ringback() -> Sound:
    """North America's: 440 and 480 Hz together, 2 s on and 4 s off (ITU-T E.180, national tones)."""
    t = _seconds(2.0)
    tone = np.sin(2 * np.pi * 440 * t) + np.sin(2 * np.pi * 480 * t)
    n_fade = _RATE_HZ // 100
    fade = 0.5 - 0.5 * np.cos(np.pi * np.arange(n_fade) / n_fade)
    tone[:n_fade] *= fade
    tone[-n_fade:] *= fade[::-1]
    return _levelled(np.concatenate((tone, np.zeros(4 * _RATE_HZ))).astype(np.float32))


def _typing() -> Sound:
    """A keyboard: short bursts of noise, in words with pauses between them."""
    random = np.random.default_rng(20)
    sound = np.zeros(8 * _RATE_HZ)
    at_s = 0.1
    while at_s < 7.7:
        for _ in range(random.integers(3, 9)):
            _strike(sound, round(at_s * _RATE_HZ), random)
            at_s += random.uniform(0.09, 0.19)
        at_s += random.uniform(0.2, 0.7)
    return _levelled(sound.astype(np.float32))


def _strike(sound: np.ndarray, start: int, random: np.random.Generator) -> None:
    """One key: a click as it goes down, and a softer one as it comes up."""
    for delay_s, level in ((0.0, 1.0), (random.uniform(0.05, 0.08), 0.35)):
        n = round(0.02 * _RATE_HZ)
        begin = start + round(delay_s * _RATE_HZ)
        if begin + n > len(sound):
            return
        noise = random.standard_normal(n)
        # Softer than white noise: neighbours are averaged, and each burst dies away within some milliseconds.
        soft = np.convolve(noise, np.ones(3) / 3, mode="same")
        decay = np.exp(-np.arange(n) / (random.uniform(0.002, 0.004) * _RATE_HZ))
        sound[begin : begin + n] += soft * decay * level * random.uniform(0.6, 1.0)


_CHORDS = ((60, 64, 67, 71), (57, 60, 64, 67), (53, 57, 60, 64), (55, 59, 62, 65))
"""C major 7, A minor 7, F major 7, G 7, as keys of a piano (69 is the A of 440 Hz)."""


def _hold() -> Sound:
    """Four soft chords of 4 s, the notes one after another. The last ones die away in the first ones."""
    length = 16 * _RATE_HZ
    sound = np.zeros(length)
    t = _seconds(5.0).astype(np.float64)
    shape = (1 - np.exp(-t / 0.04)) * np.exp(-t / 1.1) * np.minimum(1, (5.0 - t) / 0.5)
    for n, chord in enumerate(_CHORDS):
        for step, key in enumerate((*chord, chord[2], chord[1])):
            hz = 440 * 2 ** ((key - 69) / 12)
            note = np.sin(2 * np.pi * hz * t) + 0.3 * np.sin(4 * np.pi * hz * t) + 0.1 * np.sin(6 * np.pi * hz * t)
            start = round((4 * n + 0.5 * step) * _RATE_HZ)
            np.add.at(sound, np.arange(start, start + len(t)) % length, note * shape)
    return _levelled(sound.astype(np.float32))


INCLUDED: Mapping[str, Callable[[], Sound]] = MappingProxyType(
    {"hold": _hold, "ringback": _ringback, "typing": _typing}
)
