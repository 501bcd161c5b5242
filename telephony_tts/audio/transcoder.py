"""A stream of audio from one codec and rate to another, with little delay.

soxr, which resamples our speech, holds back 60 to 175 ms at these rates. That does not matter for speech that is sent
ahead, but is too much for a bot that waits for a barge-in. Most rates here are small multiples of each other. For them
a short filter holds back only 2 ms (measured in docs/experiments.md). From 22050 or 44100 Hz to 8000 Hz its cost would
be a hundred times as high, so those rates use soxr.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.resampler import Resampler, Samples, to_pcm
from telephony_tts.runtime.errors import AudioError

_MAX_RATIO = 6
"""48 to 8 kHz. The cost of the short filter grows with the square of this."""
_HALF_WIDTH = 16
"""Half the length of the filter, in samples of the lower rate: 2 ms at 8 kHz."""
_BETA = 5.65
"""The parameter of Kaiser's window for a stop band that is 60 dB down (Kaiser 1974)."""


@lru_cache
def low_pass(up: int, down: int) -> Samples:
    """A windowed sinc for rates `up` : `down`, that cuts at the lower rate's half; odd, symmetric, of gain `up`."""
    stride = max(up, down)
    n = np.arange(-_HALF_WIDTH * stride, _HALF_WIDTH * stride + 1)
    # A little below half the lower rate, so that the slope ends there. At 8 kHz, 3.4 kHz still pass.
    taps = np.sinc(n * 0.93 / stride) * np.kaiser(len(n), _BETA)
    filtered: Samples = (taps * (up / taps.sum())).astype(np.float32)
    return filtered


class QuickResampler:
    """One stream between rates that are small multiples of each other: int16 in, int16 out, 16 samples of the lower
    rate late."""

    def __init__(self, in_hz: int, out_hz: int) -> None:
        common = math.gcd(in_hz, out_hz)
        self._up, self._down = out_hz // common, in_hz // common
        self._taps = low_pass(self._up, self._down)
        self._before = np.zeros(len(self._taps) - 1, np.float32)
        self._skip = 0
        """How many columns of the upsampled signal are skipped before the next output sample."""

    def feed(self, pcm: Pcm) -> Pcm:
        """Return the output that is ready. A whole stream gives as many samples as the ratio of the rates says."""
        stretched = np.zeros(len(pcm) * self._up, np.float32)
        stretched[:: self._up] = pcm
        signal = np.concatenate((self._before, stretched))
        self._before = signal[len(stretched) :]
        if not len(stretched):
            return pcm
        filtered = np.convolve(signal, self._taps, mode="valid")
        ready = filtered[self._skip :: self._down]
        self._skip += len(ready) * self._down - len(filtered)
        return to_pcm(ready)


def _resampling(in_hz: int, out_hz: int) -> Callable[[Pcm], Pcm]:
    if max(in_hz, out_hz) // math.gcd(in_hz, out_hz) <= _MAX_RATIO:
        return QuickResampler(in_hz, out_hz).feed
    stream = Resampler(in_hz, out_hz)
    return lambda pcm: to_pcm(stream.feed(pcm))


class Transcoder:
    """Transcodes one stream. Raises AudioError for a codec that is not in `CODECS` or does not have the rate."""

    def __init__(self, codec: str, rate_hz: int, to_codec: str, to_rate_hz: int) -> None:
        for name, hz in ((codec, rate_hz), (to_codec, to_rate_hz)):
            if name not in CODECS or hz not in CODECS[name].rates_hz:
                raise AudioError(f"no audio as {name} at {hz} Hz")
        self._from, self._to = CODECS[codec], CODECS[to_codec]
        self._resample = None if rate_hz == to_rate_hz else _resampling(rate_hz, to_rate_hz)
        self._is_same = codec == to_codec and self._resample is None

    def feed(self, payload: bytes) -> bytes:
        """Transcode `payload`, which has a whole number of samples."""
        if self._is_same:
            return payload
        pcm = self._from.decode(payload)
        if self._resample is not None:
            pcm = self._resample(pcm)
        return self._to.encode(pcm)
