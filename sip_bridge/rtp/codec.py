"""The formats of the RTP between Asterisk and the bridge.

All have a static payload type (RFC 3551). Asterisk drops packets with a dynamic one, such as L16 at 16 kHz, without a
word, because external media have no negotiation. So G.722 is the only wide-band format. Its RTP clock is 8 kHz like
that of G.711, an old error that RFC 3551 keeps. So every format has 8 bytes and 8 steps of the timestamp per ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from telephony_tts.audio.g711 import Pcm, decode_alaw, decode_ulaw, encode_alaw, encode_ulaw
from telephony_tts.audio.g722 import RATE_HZ as G722_RATE_HZ
from telephony_tts.audio.g722 import G722Decoder, G722Encoder

FORMATS = ("ulaw", "alaw", "g722")


class RtpCodec(Protocol):
    """Both directions of one call. PCM is s16 little-endian at `rate_hz`."""

    payload_type: int
    rate_hz: int

    def encode(self, pcm: bytes) -> bytes: ...

    def decode(self, codes: bytes) -> bytes: ...


class _G711Rtp:
    rate_hz = 8_000

    def __init__(self, payload_type: int, encode: Callable[[Pcm], bytes], decode: Callable[[bytes], Pcm]) -> None:
        self.payload_type = payload_type
        self._encode = encode
        self._decode = decode

    def encode(self, pcm: bytes) -> bytes:
        return self._encode(_samples(pcm))

    def decode(self, codes: bytes) -> bytes:
        return _bytes(self._decode(codes))


class _G722Rtp:
    payload_type = 9
    rate_hz = G722_RATE_HZ

    def __init__(self) -> None:
        self._encoder = G722Encoder()
        self._decoder = G722Decoder()

    def encode(self, pcm: bytes) -> bytes:
        return self._encoder.feed(_samples(pcm))

    def decode(self, codes: bytes) -> bytes:
        return _bytes(self._decoder.feed(codes))


def rtp_codec(format: str) -> RtpCodec:
    """A codec for one of `FORMATS`. Raises FormatUnavailable for G.722 without PyAV."""
    if format == "g722":
        return _G722Rtp()
    if format == "alaw":
        return _G711Rtp(8, encode_alaw, decode_alaw)
    return _G711Rtp(0, encode_ulaw, decode_ulaw)


def _samples(pcm: bytes) -> Pcm:
    return np.frombuffer(pcm, "<i2").astype(np.int16)


def _bytes(samples: Pcm) -> bytes:
    return samples.astype("<i2").tobytes()
