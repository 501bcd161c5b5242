"""G.711: 16-bit samples to and from the 8-bit logarithmic codes of the telephone network.

The companding is that of `audioop`: standard library to Python 3.12, the `audioop-lts` package from 3.13. Its decoder
is exact. Its encoder differs from the ITU-T G.191 reference by one code on 508 of the 65,536 inputs, at the decision
thresholds of negative samples. That is not audible.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from telephony_tts.runtime.errors import AudioError

with warnings.catch_warnings():
    # The warning is about Python 3.13, for which the dependency list has a replacement.
    warnings.simplefilter("ignore", DeprecationWarning)
    import audioop

Pcm = npt.NDArray[np.int16]
"""Mono signed 16-bit samples, shape [n_samples]."""

ULAW_SILENCE = b"\xff"
ALAW_SILENCE = b"\xd5"

_N_BYTES_PER_SAMPLE = 2


def encode_ulaw(pcm: Pcm) -> bytes:
    """One mu-law byte per sample. Raises AudioError unless `pcm` is int16 of shape [n_samples]."""
    return audioop.lin2ulaw(_fragment(pcm), _N_BYTES_PER_SAMPLE)


def decode_ulaw(payload: bytes) -> Pcm:
    """The samples of mu-law bytes, read-only, shape [len(payload)]."""
    return np.frombuffer(audioop.ulaw2lin(payload, _N_BYTES_PER_SAMPLE), dtype=np.int16)


def encode_alaw(pcm: Pcm) -> bytes:
    """One A-law byte per sample. Raises AudioError unless `pcm` is int16 of shape [n_samples]."""
    return audioop.lin2alaw(_fragment(pcm), _N_BYTES_PER_SAMPLE)


def decode_alaw(payload: bytes) -> Pcm:
    """The samples of A-law bytes, read-only, shape [len(payload)]."""
    return np.frombuffer(audioop.alaw2lin(payload, _N_BYTES_PER_SAMPLE), dtype=np.int16)


def require_pcm(pcm: Pcm) -> None:
    """Raises AudioError unless `pcm` is int16 of shape [n_samples]: an engine is foreign code."""
    if not isinstance(pcm, np.ndarray):
        raise AudioError(f"audio must be a numpy array of int16, got {type(pcm).__name__}")
    if pcm.dtype != np.int16:
        raise AudioError(f"audio must be int16, got {pcm.dtype}")
    if pcm.ndim != 1:
        raise AudioError(f"audio must be mono, shape [n_samples], got shape {list(pcm.shape)}")


def _fragment(pcm: Pcm) -> memoryview:
    require_pcm(pcm)
    return np.ascontiguousarray(pcm).data
