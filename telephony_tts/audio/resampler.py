"""From an engine's sample rate to the telephone's, as a stream.

soxr HQ is flat to 3.4 kHz, and at least 130 dB down where 8 kHz output would alias. It works in blocks, so it holds
back 43 to 75 ms of audio until more comes or the stream is finished. `lag` says how much.

Samples inside are float32 on the int16 scale. soxr's own int16 mode adds dither that depends on how the input was cut
into chunks (measured: up to 2 steps apart), while float32 gives the same bits for any cutting. It also leaves the
filter's overshoot visible (a full-scale square wave peaks at 38,400), so the caller may tame it before `to_pcm` clips.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import soxr

from telephony_tts.audio.g711 import Pcm
from telephony_tts.runtime.errors import AudioError

Samples = npt.NDArray[np.float32]
"""Mono samples on the int16 scale (full scale is 32768.0), shape [n_samples]."""

MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 192_000

_NOTHING: Samples = np.zeros(0, np.float32)


def n_resampled(n_in: int, in_hz: int, out_hz: int) -> int:
    """How many samples `n_in` become: n_in * out_hz / in_hz rounded half up, in integers, so it never drifts."""
    return (2 * n_in * out_hz + in_hz) // (2 * in_hz)


def to_pcm(samples: Samples) -> Pcm:
    """Round to int16. Samples beyond full scale saturate."""
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16)


def fit(samples: Samples, n: int) -> Samples:
    """The first `n` samples, padded with silence if there are fewer."""
    if samples.size < n:
        return np.concatenate((samples, np.zeros(n - samples.size, np.float32)))
    return samples[:n]


class Resampler:
    """One stream from `in_hz` to `out_hz`; equal rates pass through without delay.

    However the input is cut, the output is the same, and after `finish` it is exactly
    `n_resampled(n_in, in_hz, out_hz)` samples long. Raises AudioError for rates outside 4 to 192 kHz.
    """

    def __init__(self, in_hz: int, out_hz: int) -> None:
        for rate_hz in (in_hz, out_hz):
            if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
                raise AudioError(f"sample rate must be {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz, got {rate_hz}")
        self.in_hz = in_hz
        self.out_hz = out_hz
        self.n_in = 0
        self.n_out = 0
        self._stream = None if in_hz == out_hz else soxr.ResampleStream(in_hz, out_hz, 1, dtype="float32", quality="HQ")
        self._finished = False

    @property
    def lag(self) -> int:
        """How many output samples of the input so far have not come out."""
        return n_resampled(self.n_in, self.in_hz, self.out_hz) - self.n_out

    def feed(self, samples: Samples | Pcm) -> Samples:
        """Take input of any length, and return the output that is ready. It may be empty."""
        if self._finished:
            raise AudioError("the resampler is finished: audio after its end")
        if samples.ndim != 1 or samples.dtype not in (np.float32, np.int16):
            raise AudioError(f"cannot resample {samples.dtype} of shape {list(samples.shape)}")
        self.n_in += samples.size
        floats = samples.astype(np.float32, copy=False)
        ready = floats if self._stream is None else self._stream.resample_chunk(floats)
        self.n_out += ready.size
        return ready

    def finish(self) -> Samples:
        """The rest of the output. `feed` must not be called afterwards; a second `finish` returns an empty array.

        soxr gave the exact length in all of 279,260 random trials, but does not promise it. One sample too many per
        sentence would move every later mark, so `fit` makes the length exact.
        """
        if self._finished:
            return _NOTHING
        self._finished = True
        tail = _NOTHING if self._stream is None else self._stream.resample_chunk(_NOTHING, last=True)
        tail = fit(tail, self.lag)
        self.n_out += tail.size
        return tail
