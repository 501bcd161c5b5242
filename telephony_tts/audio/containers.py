"""Audio for HTTP answers, as a stream: samples in, bytes of a file format out as soon as its encoder has a frame.

wav, pcm, ulaw and alaw need no package. mp3, opus (in Ogg), aac (ADTS) and flac are written by FFmpeg through PyAV, the
extra [formats] (docs/adr/0019-pyav.md). FFmpeg's defaults are for files. Here frames are short (at most 36 ms, aac at
most 64 ms), each is written when it is complete, and no header is written twice, because sent bytes cannot be changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from telephony_tts.audio.encoder import CODECS, PCM_RATES_HZ
from telephony_tts.audio.g711 import Pcm, require_pcm
from telephony_tts.audio.wav import wav_header
from telephony_tts.runtime.errors import AudioError, FormatUnavailable, how_to_get


class StreamEncoder(Protocol):
    """One stream of mono audio. The bytes together do not depend on how the audio is cut into pieces."""

    content_type: str
    rate_hz: int

    def feed(self, pcm: Pcm) -> bytes:
        """Take int16 samples, shape [n_samples], at `rate_hz`. Returns the bytes that are ready, maybe b"".

        Raises AudioError for other arrays, and after `finish` or `close`.
        """

    def finish(self) -> bytes:
        """The rest of the file. A stream without audio gives a valid file. Idempotent: later calls return b""."""

    def close(self) -> None:
        """Free the encoder of a stream that will not be finished. Idempotent."""


@dataclass(frozen=True, slots=True)
class _SampleFormat:
    """A format whose bytes are the samples themselves, in a codec of `CODECS`."""

    codec: str
    content_type: str
    has_wav_header: bool = False

    @property
    def rates_hz(self) -> tuple[int, ...]:
        return CODECS[self.codec].rates_hz


@dataclass(frozen=True, slots=True)
class _FfmpegFormat:
    """A format that FFmpeg writes, by the names of its codec and muxer."""

    codec: str
    muxer: str
    content_type: str
    rates_hz: tuple[int, ...]
    muxer_options: Mapping[str, str] = field(default_factory=dict)
    codec_options: Mapping[str, str] = field(default_factory=dict)


_FORMATS: Mapping[str, _SampleFormat | _FfmpegFormat] = MappingProxyType(
    {
        "wav": _SampleFormat("pcm", "audio/wav", has_wav_header=True),
        "pcm": _SampleFormat("pcm", "audio/pcm"),
        "ulaw": _SampleFormat("ulaw", "audio/basic"),
        "alaw": _SampleFormat("alaw", "audio/x-alaw-basic"),
        # 8 kHz MP3 is "MPEG 2.5", which no standard has. Without the bit reservoir a frame does not wait for the next.
        "mp3": _FfmpegFormat(
            "libmp3lame",
            "mp3",
            "audio/mpeg",
            (16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
            {"id3v2_version": "0"},
            {"reservoir": "0", "compression_level": "7"},
        ),
        # Pages of one packet (20 ms, in microseconds): the default is a page a second.
        "opus": _FfmpegFormat(
            "libopus",
            "ogg",
            "audio/ogg; codecs=opus",
            (8_000, 16_000, 24_000, 48_000),
            {"page_duration": "20000"},
        ),
        # A frame is 1024 samples: 128 ms at 8 kHz, so that rate is left out.
        "aac": _FfmpegFormat("aac", "adts", "audio/aac", PCM_RATES_HZ[1:]),
        # FFmpeg leaves 8 kB of room behind the header, and from level 3 on takes blocks of 105 ms.
        "flac": _FfmpegFormat(
            "flac",
            "flac",
            "audio/flac",
            PCM_RATES_HZ,
            {"metadata_header_padding": "0"},
            {"compression_level": "2"},
        ),
    }
)
_MAX_BIT_RATE = 64_000
"""One voice at this rate is hard to tell from the original in each of these formats."""
FORMATS = tuple(_FORMATS)


def rates_of(format: str) -> tuple[int, ...]:
    """The sample rates in Hz that a format carries, ascending. Raises AudioError for an unknown format."""
    return _format(format).rates_hz


def nearest_rate(format: str, rate_hz: int) -> int:
    """The lowest rate of a format that loses nothing of audio at `rate_hz`, else its highest.

    Raises AudioError for an unknown format.
    """
    rates = rates_of(format)
    return min((each for each in rates if each >= rate_hz), default=rates[-1])


def make_encoder(format: str, rate_hz: int) -> StreamEncoder:
    """An encoder of one stream, at the rate that `nearest_rate` says: the caller resamples to its `rate_hz`.

    Raises AudioError for an unknown format, and FormatUnavailable if PyAV is needed and not installed.
    """
    chosen, rate_hz = _format(format), nearest_rate(format, rate_hz)
    return _SampleEncoder(chosen, rate_hz) if isinstance(chosen, _SampleFormat) else _open(format, chosen, rate_hz)


def import_encoders() -> None:
    """Import PyAV now, if it is installed: it takes 0.3 s, which no live call should wait."""
    with contextlib.suppress(ImportError):
        import av  # noqa: F401


def _format(name: str) -> _SampleFormat | _FfmpegFormat:
    if name not in _FORMATS:
        raise AudioError(f"unknown audio format {name!r}: one of {', '.join(FORMATS)}")
    return _FORMATS[name]


def _require_open(closed: bool) -> None:
    if closed:
        raise AudioError("the audio stream is finished: audio after its end")


class _SampleEncoder:
    def __init__(self, format: _SampleFormat, rate_hz: int) -> None:
        self.content_type = format.content_type
        self.rate_hz = rate_hz
        self._encode = CODECS[format.codec].encode
        self._head = wav_header(format.codec, rate_hz, None) if format.has_wav_header else b""
        self._closed = False

    def feed(self, pcm: Pcm) -> bytes:
        _require_open(self._closed)
        require_pcm(pcm)
        head, self._head = self._head, b""
        return head + self._encode(pcm)

    def finish(self) -> bytes:
        head, self._head = self._head, b""
        closed, self._closed = self._closed, True
        return b"" if closed else head

    def close(self) -> None:
        self._closed = True


class _Sink:
    """The file that FFmpeg writes to. It cannot seek, so no muxer returns to its header."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def _open(name: str, format: _FfmpegFormat, rate_hz: int) -> _FfmpegEncoder:
    try:
        import av
    except ImportError as error:
        raise FormatUnavailable(f"{name} needs PyAV: {how_to_get('formats')}") from error
    return _FfmpegEncoder(av, format, rate_hz)


class _FfmpegEncoder:
    def __init__(self, av: Any, format: _FfmpegFormat, rate_hz: int) -> None:
        self.content_type = format.content_type
        self.rate_hz = rate_hz
        self._new_frame = av.AudioFrame.from_ndarray
        self._sink = _Sink()
        self._n_fed = 0
        self._container = av.open(self._sink, "w", format=format.muxer, options=dict(format.muxer_options))
        self._stream = self._container.add_stream(
            format.codec, rate=rate_hz, options=dict(format.codec_options), layout="mono"
        )
        self._stream.codec_context.thread_count = 1  # PyAV would start a thread for each core
        self._stream.bit_rate = min(4 * rate_hz, _MAX_BIT_RATE)  # flac does without
        self._container.start_encoding()

    def feed(self, pcm: Pcm) -> bytes:
        _require_open(self._container is None)
        require_pcm(pcm)
        if len(pcm):
            self._encode(pcm)
        return self._sink.take()

    def finish(self) -> bytes:
        if self._container is None:
            return b""
        if not self._n_fed:
            self._encode(_ONE_SILENT_SAMPLE)  # an MP3 or AAC file is nothing but frames
        self._container.mux(self._stream.encode(None))
        self.close()
        return self._sink.take()

    def close(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = self._stream = None

    def _encode(self, pcm: Pcm) -> None:
        frame = self._new_frame(pcm[np.newaxis], format="s16", layout="mono")
        frame.sample_rate = self.rate_hz
        frame.pts = self._n_fed
        self._n_fed += len(pcm)
        self._container.mux(self._stream.encode(frame))


_ONE_SILENT_SAMPLE: Pcm = np.zeros(1, np.int16)
