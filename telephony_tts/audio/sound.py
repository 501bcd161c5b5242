"""A sound that is played as it is: hold music, a ring back tone, the noise of a keyboard.

A sound is resampled as a ring: its end is followed by its beginning. So a loop has no click where it begins again, if
the sound itself was made as a loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from telephony_tts.audio.encoder import limit
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.resampler import Resampler, Samples, fit, n_resampled, to_pcm

_RIM_MS = 100
"""How much of the other end is resampled with each end of a sound: more than the filter reaches."""


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """Mono audio at `rate_hz`: int16, read-only, shape [n_samples], at least one sample."""

    pcm: Pcm
    rate_hz: int

    @property
    def duration_ms(self) -> int:
        return len(self.pcm) * 1000 // self.rate_hz

    def at(self, rate_hz: int) -> Sound:
        """The sound at another rate. Raises AudioError for rates outside 4 to 192 kHz."""
        if rate_hz == self.rate_hz:
            return self
        in_hz = self.rate_hz
        # The rim is a whole number of samples at both rates, so that the sound begins at a sample of the output.
        n_whole = in_hz // math.gcd(in_hz, rate_hz)
        n_rim = n_whole * -(-in_hz * _RIM_MS // (1000 * n_whole))
        stream = Resampler(in_hz, rate_hz)
        ring = [stream.feed(part) for part in (self.cut(-n_rim, n_rim), self.pcm, self.cut(0, n_rim))]
        samples = np.concatenate((*ring, stream.finish()))
        n_out = max(1, n_resampled(len(self.pcm), in_hz, rate_hz))
        return new_sound(fit(samples[n_rim * rate_hz // in_hz :], n_out), rate_hz)

    def cut(self, start: int, n: int) -> Pcm:
        """`n` samples from `start` on, around the ring. They may be read-only."""
        start %= len(self.pcm)
        if start + n <= len(self.pcm):
            return self.pcm[start : start + n]
        return np.take(self.pcm, np.arange(start, start + n), mode="wrap")


def new_sound(samples: Samples, rate_hz: int) -> Sound:
    """A sound of `samples`, which are on the int16 scale and are limited to it."""
    pcm = to_pcm(samples)
    pcm.flags.writeable = False
    return Sound(pcm, rate_hz)


def amplified(pcm: Pcm, gain_db: float) -> Pcm:
    """`pcm` with a gain, through the limiter that speech has. Without a gain the samples are as they are."""
    if gain_db == 0:
        return pcm
    return to_pcm(limit(pcm * np.float32(10 ** (gain_db / 20))))
