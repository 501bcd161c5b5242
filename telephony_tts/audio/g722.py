"""G.722: speech at 16 kHz in 64 kbit/s, the wide-band codec of telephones.

FFmpeg computes it through PyAV, the extra [formats]. Each sample depends on the samples before it, so a stream has one
encoder or decoder from its beginning to its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from telephony_tts.audio.g711 import Pcm, require_pcm
from telephony_tts.runtime.errors import FormatUnavailable, how_to_get

RATE_HZ = 16_000


class G722Encoder:
    """Raises FormatUnavailable if PyAV is not installed."""

    def __init__(self) -> None:
        self._av = _import_av()
        self._context = _context(self._av, "w")

    def feed(self, pcm: Pcm) -> bytes:
        """One byte for two samples at 16 kHz. Encodes frames of 320 samples; the rest waits for the next call.

        Raises AudioError unless `pcm` is int16 of shape [n_samples].
        """
        require_pcm(pcm)
        if not len(pcm):
            return b""
        frame = self._av.AudioFrame.from_ndarray(pcm.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        return b"".join(bytes(packet) for packet in self._context.encode(frame))


class G722Decoder:
    """Raises FormatUnavailable if PyAV is not installed."""

    def __init__(self) -> None:
        self._av = _import_av()
        self._context = _context(self._av, "r")

    def feed(self, codes: bytes) -> Pcm:
        """Two samples at 16 kHz for each byte, shape [2 * len(codes)]. Any bytes are a valid stream."""
        if not codes:
            return np.zeros(0, np.int16)
        frames = self._context.decode(self._av.Packet(codes))
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.int16)


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise FormatUnavailable(f"G.722 needs PyAV: {how_to_get('formats')}") from error
    return av


def _context(av: Any, mode: str) -> Any:
    context = av.CodecContext.create("g722", mode)
    context.sample_rate = RATE_HZ
    context.layout = "mono"
    context.format = "s16"
    context.thread_count = 1  # PyAV would start a thread for each core
    return context
