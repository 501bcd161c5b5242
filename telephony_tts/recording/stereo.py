"""Blocks of a recording as stereo samples, and the header of its WAV file."""

from __future__ import annotations

import struct

import numpy as np

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.transcoder import Transcoder
from telephony_tts.recording.recorder import Block
from telephony_tts.recording.tracks import RATE_HZ, Piece

FRAME_BYTES = 4
"""One sample of each channel, 16 bits each."""
HEADER_BYTES = 44


def header(n_samples: int) -> bytes:
    """The WAV header of `n_samples` for each channel: PCM, 16 bits, 8 kHz, left and right."""
    n_bytes = n_samples * FRAME_BYTES
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 2, RATE_HZ, RATE_HZ * FRAME_BYTES, FRAME_BYTES, 16)
    riff = struct.pack("<4sI4s", b"RIFF", n_bytes + HEADER_BYTES - 8, b"WAVE")
    return riff + fmt + struct.pack("<4sI", b"data", n_bytes)


class Mixer:
    """Turns the blocks of one recording into samples. A channel at another rate is resampled run by run."""

    def __init__(self) -> None:
        self._streams: list[tuple[int, Transcoder] | None] = [None, None]

    def mix(self, block: Block) -> bytes:
        """The samples of the block: left the caller, right what was heard."""
        both = np.zeros((block.n_samples, 2), "<i2")
        for channel, pieces in enumerate((block.caller, block.heard)):
            for piece in pieces:
                pcm = self._decode(channel, piece)
                # By its end: a resampler gives the first samples of a run a moment later.
                at = piece.end - len(pcm) - block.first
                if at < 0:
                    pcm, at = pcm[-at:], 0
                both[at : at + len(pcm), channel] = pcm[: max(0, block.n_samples - at)]
        return both.tobytes()

    def _decode(self, channel: int, piece: Piece) -> Pcm:
        if piece.rate_hz == RATE_HZ:
            return CODECS[piece.codec].decode(piece.payload)
        stream = self._streams[channel]
        if stream is None or stream[0] != piece.run:
            stream = self._streams[channel] = piece.run, Transcoder(piece.codec, piece.rate_hz, "pcm", RATE_HZ)
        return CODECS["pcm"].decode(stream[1].feed(piece.payload))
