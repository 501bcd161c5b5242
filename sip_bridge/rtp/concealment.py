"""Audio in place of lost packets. Silence there would click, and make two keys of a telephone out of one.

The principle is that of ITU-T G.711 Appendix I: the last pitch period is repeated and fades. But the two tones of a key
have no common period of that length. So a linear predictor, fitted to the newest audio, goes on, and what is repeated
is what it cannot foresee: the pulses of the voice. It foresees tones alone, and then nothing is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import cycle, repeat
from operator import mul

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from telephony_tts.audio.resampler import to_pcm

_FIT_MS, _MATCH_MS = 20, 5
"""The newest audio that the predictor is fitted to, and that is compared with earlier audio to find the period."""
_LEAST_PERIOD_MS, _MOST_PERIOD_MS = 3, 15
_TONE_ERROR, _VOICE_ERROR = 0.06, 0.12
"""The predictor's error relative to the audio: up to the first nothing is repeated, from the second on all of it."""
_KEEP_MS, _GONE_MS = 10, 60
"""What is made begins to fade at the first time, and is silent from the second one on."""
_JOIN_MS = 4
"""What is made goes on under the beginning of the next audio for so long."""

_Samples = npt.NDArray[np.float64]


class Concealment:
    """The received audio of one call at `rate_hz`, s16 little-endian, in order: `heard` what came, `missing` what did
    not. Computes nothing unless audio is missing, and then for less than a millisecond."""

    def __init__(self, rate_hz: int) -> None:
        self._per_ms = rate_hz // 1000
        self._newest: deque[bytes] = deque(maxlen=4)
        self._made: Iterator[float] | None = None

    def heard(self, pcm: bytes) -> bytes:
        """Audio that came. Its beginning is blended with what was made for a hole before it."""
        if self._made is not None:
            samples = _samples(pcm)
            n = min(_JOIN_MS * self._per_ms, len(samples))
            rise = (np.arange(n) + 0.5) / max(n, 1)
            samples[:n] = samples[:n] * rise + np.fromiter(self._made, float, n) * (1 - rise)
            pcm, self._made = _bytes(samples), None
        self._newest.append(pcm)
        return pcm

    def missing(self, n_samples: int) -> bytes:
        """Audio for a hole."""
        if self._made is None:
            self._made = _continuation(_samples(b"".join(self._newest)), self._per_ms)
        self._newest.append(_bytes(np.fromiter(self._made, float, n_samples)))
        return self._newest[-1]


def _continuation(newest: _Samples, per_ms: int) -> Iterator[float]:
    """Goes on where `newest` ends, with samples at `per_ms` a millisecond, without end."""
    # Two coefficients for each tone of a key, and as many for noise. 12 at 8 kHz would follow the noise of G.711.
    order = per_ms
    n_match, least, most = _MATCH_MS * per_ms, _LEAST_PERIOD_MS * per_ms, _MOST_PERIOD_MS * per_ms
    newest = np.concatenate((np.zeros(2 * most + order), newest))[-2 * most - order :]
    # The predictor serves in both directions of time: twice the evidence, and stabler.
    windows = sliding_window_view(newest, order + 1)
    fit = windows[order - _FIT_MS * per_ms :]
    known = np.concatenate((fit[:, :-1], fit[:, :0:-1]))
    matrix = known.T @ known
    matrix += np.eye(order) * (1e-5 * np.trace(matrix) / order + 1)
    predictor = np.linalg.solve(matrix, known.T @ np.concatenate((fit[:, -1], fit[:, 0])))
    errors = windows[:, -1] - windows[:, :-1] @ predictor
    # The period after which the audio was most like its newest part.
    earlier = sliding_window_view(newest[-most - n_match : -least], n_match)
    period = most - int(np.argmax(earlier @ newest[-n_match:] / np.sqrt(np.sum(earlier**2, axis=1) + 1)))
    # An error in the newest period alone is where a tone begins.
    error = min(_rms(errors[-period:]), _rms(errors[-2 * period : -period])) / (_rms(newest[-period:]) + 1)
    pulses = errors[-period:] * np.clip((error - _TONE_ERROR) / (_VOICE_ERROR - _TONE_ERROR), 0, 1)
    coefficients, last = predictor.tolist(), deque(newest[-order:].tolist(), maxlen=order)
    limit = float(np.abs(newest[-period:]).max())
    for at, pulse in zip(range(_GONE_MS * per_ms), cycle(pulses.tolist()), strict=False):
        # A predictor may be unstable.
        last.append(min(max(sum(map(mul, coefficients, last), pulse), -limit), limit))
        yield last[-1] * min(1.0, (_GONE_MS - at / per_ms) / (_GONE_MS - _KEEP_MS))
    yield from repeat(0.0)


def _samples(pcm: bytes) -> _Samples:
    return np.frombuffer(pcm, "<i2").astype(np.float64)


def _rms(samples: _Samples) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def _bytes(samples: _Samples) -> bytes:
    return to_pcm(samples.astype(np.float32)).astype("<i2").tobytes()
