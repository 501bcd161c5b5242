"""WAV files of telephone audio: mono PCM16, mu-law and A-law, written as a stream, read back whole.

Layout after the Multimedia Programming Interface and Data Specifications 1.0 (RIFF) and RFC 2361 (format tags).
A file whose length is not known yet, or never will be (a pipe), has the length 0xFFFFFFFF: players read to its end.
Other programs write 0, 0x7FFFFFFF or a length close to that. `with_true_lengths` is for every reader of WAV files.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from telephony_tts.audio.g711 import Pcm, decode_alaw, decode_ulaw
from telephony_tts.runtime.errors import AudioError

_FORMAT_TAGS = {"pcm": 1, "alaw": 6, "ulaw": 7}
_CODECS = {tag: codec for codec, tag in _FORMAT_TAGS.items()}
_BYTES_PER_SAMPLE = {"pcm": 2, "alaw": 1, "ulaw": 1}
_EXTENSIBLE_TAG = 0xFFFE
_UNKNOWN_LENGTH = 0xFFFFFFFF
_PIPE_LENGTHS = range(0x7FFF_0000, 0x8000_0000)
"""SoX writes 0x7FFFF000 and 0x7FFFF024 into a pipe, others the last of these."""
HEAD_BYTES = 65_536
"""The audio of a WAV file begins before this place, or the file is not read."""

WavTarget = str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True, slots=True)
class Wav:
    """A recording. `payload` holds its samples in its codec's bytes ("pcm" is signed 16-bit little-endian)."""

    codec: str
    rate_hz: int
    payload: bytes

    @property
    def pcm(self) -> Pcm:
        """The samples, read-only, shape [n_samples]."""
        if self.codec == "ulaw":
            return decode_ulaw(self.payload)
        if self.codec == "alaw":
            return decode_alaw(self.payload)
        return np.frombuffer(self.payload, dtype="<i2").astype(np.int16, copy=False)


class WavWriter:
    """Write a WAV file piece by piece. Closing it fills in the lengths if the file can seek.

    `target` is a path, or a binary file that stays open afterwards. Raises AudioError for an unknown codec.
    """

    def __init__(self, target: WavTarget, codec: str, rate_hz: int) -> None:
        if codec not in _FORMAT_TAGS:
            raise AudioError(f"cannot write codec {codec!r} to WAV: one of {', '.join(_FORMAT_TAGS)}")
        if rate_hz <= 0:
            raise AudioError(f"sample rate must be positive, got {rate_hz}")
        self.codec = codec
        self.rate_hz = rate_hz
        self.n_bytes = 0
        self._owns_file = isinstance(target, str | os.PathLike)
        self._file: BinaryIO = open(target, "wb") if isinstance(target, str | os.PathLike) else target  # noqa: SIM115
        self._closed = False
        self._start = self._file.tell() if self._file.seekable() else 0
        self._file.write(wav_header(codec, rate_hz, None))

    def write(self, payload: bytes) -> None:
        """Append audio in the file's codec. Raises AudioError past 4 GiB, the format's limit, and after close."""
        if self._closed:
            raise AudioError("the WAV file is closed")
        if self.n_bytes + len(payload) + len(wav_header(self.codec, self.rate_hz, 0)) >= _UNKNOWN_LENGTH:
            raise AudioError("a WAV file cannot hold more than 4 GiB")
        self._file.write(payload)
        self.n_bytes += len(payload)

    def close(self) -> None:
        """Fill in the lengths. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._file.seekable():
                if self.n_bytes % 2:
                    self._file.write(b"\x00")  # a chunk fills an even number of bytes
                end = self._file.tell()
                self._file.seek(self._start)
                self._file.write(wav_header(self.codec, self.rate_hz, self.n_bytes))
                self._file.seek(end)
        finally:
            if self._owns_file:
                self._file.close()
            else:
                self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_wav(target: WavTarget, payload: bytes, codec: str, rate_hz: int) -> None:
    """Write a whole recording at once."""
    with WavWriter(target, codec, rate_hz) as writer:
        writer.write(payload)


def read_wav(source: WavTarget) -> Wav:
    """Read mono PCM16, mu-law or A-law. Raises AudioError for anything else and for a file that ends too early."""
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            return _parse(with_true_lengths(file.read()))
    return _parse(with_true_lengths(source.read()))


def wav_header(codec: str, rate_hz: int, n_bytes: int | None) -> bytes:
    """All bytes before the first sample; `n_bytes` of samples follow, None if that is not known.

    G.711 has an extension size and a fact chunk, PCM has neither.
    """
    width = _BYTES_PER_SAMPLE[codec]
    fmt = struct.pack("<HHIIHH", _FORMAT_TAGS[codec], 1, rate_hz, rate_hz * width, width, 8 * width)
    chunks = b"WAVE"
    if codec == "pcm":
        chunks += _chunk_head(b"fmt ", len(fmt)) + fmt
    else:
        chunks += _chunk_head(b"fmt ", len(fmt) + 2) + fmt + struct.pack("<H", 0)
        chunks += _chunk_head(b"fact", 4) + struct.pack("<I", _UNKNOWN_LENGTH if n_bytes is None else n_bytes)
    if n_bytes is None:
        return _chunk_head(b"RIFF", _UNKNOWN_LENGTH) + chunks + _chunk_head(b"data", _UNKNOWN_LENGTH)
    chunks += _chunk_head(b"data", n_bytes)
    return _chunk_head(b"RIFF", len(chunks) + n_bytes + n_bytes % 2) + chunks


def has_unknown_length(head: bytes, n_bytes: int) -> bool:
    """Whether a file of `n_bytes` that begins with `head` is a WAV file that does not say where its audio ends."""
    return _unknown_data(head, n_bytes) is not None


def with_true_lengths(content: bytes) -> bytes:
    """`content`. If it is a WAV file that does not say where its audio ends, its lengths say that it is at its end.
    A part of a sample at the end is dropped."""
    found = _unknown_data(content, len(content))
    if found is None:
        return content
    place, n_audio = found
    head = content[:4] + struct.pack("<I", place + 4 + n_audio - 8) + content[8:place] + struct.pack("<I", n_audio)
    return head + content[place + 4 : place + 4 + n_audio]


def _unknown_data(head: bytes, n_bytes: int) -> tuple[int, int] | None:
    """(where the length of the audio is written, its true length in bytes). None if what is written is true."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    place, frame_bytes = 12, 1
    while place + 8 <= min(len(head), HEAD_BYTES):
        name, n_said = struct.unpack_from("<4sI", head, place)
        place += 8
        if name == b"data":
            n_left = n_bytes - place
            (n_riff,) = struct.unpack_from("<I", head, 4)
            if n_said == 0:  # a file without audio says that too, and its own length is right
                is_unknown = n_left > 0 and n_riff + 8 != n_bytes
            else:
                is_unknown = n_said > n_left and (n_said in _PIPE_LENGTHS or n_said == _UNKNOWN_LENGTH)
            return (place - 4, n_left - n_left % frame_bytes) if is_unknown else None
        if name == b"fmt " and place + 14 <= len(head):
            frame_bytes = max(1, struct.unpack_from("<H", head, place + 12)[0])
        place += n_said + n_said % 2
    return None


def _chunk_head(name: bytes, n_bytes: int) -> bytes:
    return struct.pack("<4sI", name, n_bytes)


def _parse(content: bytes) -> Wav:
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise AudioError("not a WAV file: it does not begin with RIFF and WAVE")
    fmt: tuple[str, int] | None = None
    place = 12
    while place + 8 <= len(content):
        name, n_bytes = struct.unpack_from("<4sI", content, place)
        place += 8
        body = content[place : place + n_bytes]
        if len(body) < n_bytes:
            label = name.decode("latin-1")
            raise AudioError(f"truncated WAV file: chunk {label!r} says {n_bytes} bytes and {len(body)} are there")
        if name == b"fmt ":
            fmt = _parse_fmt(body)
        elif name == b"data":
            if fmt is None:
                raise AudioError("damaged WAV file: its data comes before its format")
            codec, rate_hz = fmt
            if n_bytes % _BYTES_PER_SAMPLE[codec]:
                raise AudioError(f"damaged WAV file: {n_bytes} bytes are not a whole number of samples")
            return Wav(codec, rate_hz, body)
        place += n_bytes + n_bytes % 2
    raise AudioError("truncated WAV file: it has no data")


def _parse_fmt(body: bytes) -> tuple[str, int]:
    if len(body) < 16:
        raise AudioError(f"damaged WAV file: a format of {len(body)} bytes")
    tag, n_channels, rate_hz, _, _, n_bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE_TAG and len(body) >= 26:
        (tag,) = struct.unpack_from("<H", body, 24)  # the sub-format's identifier begins with the plain tag
    if tag not in _CODECS:
        raise AudioError(f"WAV format {tag:#06x} is not supported: PCM16, mu-law or A-law")
    codec = _CODECS[tag]
    if n_bits != 8 * _BYTES_PER_SAMPLE[codec]:
        raise AudioError(f"{n_bits}-bit {codec} is not supported: {8 * _BYTES_PER_SAMPLE[codec]}-bit only")
    if n_channels != 1:
        raise AudioError(f"a WAV file with {n_channels} channels is not supported: mono only")
    if rate_hz == 0:
        raise AudioError("damaged WAV file: a sample rate of 0")
    return codec, rate_hz
