"""Sounds from files: WAV by our own reader, and whatever FFmpeg reads if PyAV is installed (the extra [formats]).

A WAV file may have any number of channels, which are averaged, and PCM of 8 to 32 bits, floats, mu-law or A-law. What
is read is bounded before it is read: the bytes of the file and the seconds of its audio.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from typing import Any

import numpy as np

from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.audio.resampler import MAX_RATE_HZ, MIN_RATE_HZ, Samples
from telephony_tts.audio.sound import Sound, new_sound
from telephony_tts.audio.wav import with_true_lengths
from telephony_tts.runtime.errors import AudioError, FormatUnavailable, how_to_get

_PCM, _FLOAT, _ALAW, _ULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_MAX_CHANNELS = 32
_FULL_SCALE = 32768.0
_FORMATS = "aac,aiff,au,caf,flac,matroska,mov,mp3,ogg,w64,wav"
"""The containers that FFmpeg may open. Others, such as playlists, can name more files."""


def read_sound(path: str, max_s: float, max_bytes: int) -> Sound:
    """Read a whole sound, as mono at the file's own rate.

    Raises AudioError, which says what is wrong with the file, and FormatUnavailable if PyAV would be needed. A missing
    file is an OSError.
    """
    facts = os.stat(path)
    if stat.S_ISDIR(facts.st_mode):
        raise AudioError("it is a folder")
    if not stat.S_ISREG(facts.st_mode):
        raise AudioError("it is not a file")  # a named pipe would wait for its writer
    if facts.st_size == 0:
        raise AudioError("the file is empty")
    if facts.st_size > max_bytes:
        raise AudioError(f"the file has {facts.st_size} bytes; the limit is {max_bytes} (sounds.max_mb)")
    with open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise AudioError(f"the file has more than {max_bytes} bytes (sounds.max_mb)")
    return decode_sound(content, max_s)


def decode_sound(content: bytes, max_s: float) -> Sound:
    """The sound in the content of a file. Raises AudioError and FormatUnavailable as `read_sound` does."""
    samples, rate_hz = _wav(with_true_lengths(content)) if _is_wav(content) else _any(content, max_s)
    _check_rate(rate_hz)
    if not samples.size:
        raise AudioError("it has no audio")
    if samples.size > max_s * rate_hz:
        raise AudioError(f"it lasts {samples.size / rate_hz:.1f} s; the limit is {max_s:g} s (sounds.max_s)")
    return new_sound(samples, rate_hz)


def _check_rate(rate_hz: int) -> None:
    """Raises AudioError for a rate that cannot be resampled."""
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise AudioError(f"its sample rate is {rate_hz} Hz; {MIN_RATE_HZ} to {MAX_RATE_HZ} can be played")


def _is_wav(content: bytes) -> bool:
    return content[:4] == b"RIFF" and content[8:12] == b"WAVE"


def _wav(content: bytes) -> tuple[Samples, int]:
    form: tuple[int, int, int, int] | None = None
    place = 12
    while place + 8 <= len(content):
        name, n_bytes = struct.unpack_from("<4sI", content, place)
        place += 8
        if name == b"data":
            if form is None:
                raise AudioError("damaged WAV file: its data comes before its format")
            left = len(content) - place
            if n_bytes > left:
                raise AudioError(f"truncated WAV file: {n_bytes} bytes of audio are promised and {left} are there")
            tag, n_channels, rate_hz, n_bits = form
            width = n_channels * n_bits // 8
            body = content[place : place + n_bytes - n_bytes % width]
            return _mono(_decoded(body, tag, n_bits), n_channels), rate_hz
        if name == b"fmt ":
            form = _format(content[place : place + n_bytes])
        place += n_bytes + n_bytes % 2
    raise AudioError("truncated WAV file: it has no audio")


def _format(body: bytes) -> tuple[int, int, int, int]:
    """(format tag, channels, rate in Hz, bits of a sample)."""
    if len(body) < 16:
        raise AudioError(f"damaged WAV file: a format of {len(body)} bytes")
    tag, n_channels, rate_hz, _, _, n_bits = struct.unpack_from("<HHIIHH", body)
    if tag == _EXTENSIBLE and len(body) >= 26:
        (tag,) = struct.unpack_from("<H", body, 24)  # the sub-format's identifier begins with the plain tag
    known = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64), _ALAW: (8,), _ULAW: (8,)}
    if n_bits not in known.get(tag, ()):
        raise AudioError(f"WAV format {tag:#06x} with {n_bits} bits is not supported: PCM, float, mu-law or A-law")
    if not 1 <= n_channels <= _MAX_CHANNELS:
        raise AudioError(f"damaged WAV file: {n_channels} channels")
    return tag, n_channels, rate_hz, n_bits


def _decoded(body: bytes, tag: int, n_bits: int) -> Samples:
    """Samples on the int16 scale, the channels interleaved."""
    if tag == _ULAW:
        return decode_ulaw(body).astype(np.float32)
    if tag == _ALAW:
        return decode_alaw(body).astype(np.float32)
    if tag == _FLOAT:
        floats = np.frombuffer(body, "<f4" if n_bits == 32 else "<f8")
        if not np.isfinite(floats).all():
            raise AudioError("its samples are not all numbers")
        scaled: Samples = np.multiply(np.clip(floats, -1, 1), _FULL_SCALE).astype(np.float32)
        return scaled
    if n_bits == 8:
        return (np.frombuffer(body, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(256)
    if n_bits == 24:
        # The three bytes become the upper ones of four.
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return wide.reshape(-1).view("<i4").astype(np.float32) / np.float32(65536)
    if n_bits == 32:
        return np.frombuffer(body, "<i4").astype(np.float32) / np.float32(65536)
    return np.frombuffer(body, "<i2").astype(np.float32)


def _mono(samples: Samples, n_channels: int) -> Samples:
    if n_channels == 1:
        return samples
    mixed: Samples = samples.reshape(-1, n_channels).mean(axis=1, dtype=np.float32)
    return mixed


def _any(content: bytes, max_s: float) -> tuple[Samples, int]:
    """Decode by FFmpeg, and stop when it is longer than `max_s`."""
    try:
        import av
    except ImportError as error:
        why = f"it is not a WAV file; other formats need PyAV: {how_to_get('formats')}"
        raise FormatUnavailable(why) from error
    try:
        with av.open(io.BytesIO(content), options={"format_whitelist": _FORMATS}) as container:
            if not container.streams.audio:
                raise AudioError("it has no audio")
            return _decoded_by(av, container, max_s)
    except (av.error.FFmpegError, ValueError, OverflowError) as error:
        raise AudioError(f"it cannot be read as audio: {str(error)[:200]}") from error


def _decoded_by(av: Any, container: Any, max_s: float) -> tuple[Samples, int]:
    stream = container.streams.audio[0]
    stream.codec_context.thread_count = 1  # PyAV would start a thread for each core
    rate_hz = int(stream.codec_context.sample_rate or 0)
    if rate_hz <= 0:
        raise AudioError("it has no sample rate")
    _check_rate(rate_hz)  # before there are samples: `max_s` of audio at 1 MHz would fill the memory
    to_mono = av.AudioResampler(format="flt", layout="mono", rate=rate_hz)
    pieces: list[Samples] = []
    n_samples = 0
    for frame in container.decode(stream):
        for piece in to_mono.resample(frame):
            pieces.append(piece.to_ndarray().reshape(-1))
            n_samples += pieces[-1].size
        if n_samples > max_s * rate_hz:
            break
    for piece in to_mono.resample(None):
        pieces.append(piece.to_ndarray().reshape(-1))
    whole = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return (np.clip(np.nan_to_num(whole), -1, 1) * _FULL_SCALE).astype(np.float32), rate_hz
