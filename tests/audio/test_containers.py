"""Streams of file formats: what a foreign decoder reads from them is what was fed."""

from __future__ import annotations

import gc
import io
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from signals import chunks, correlation, speech_like

from telephony_tts.audio.containers import FORMATS, StreamEncoder, make_encoder, nearest_rate, rates_of
from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import Pcm
from telephony_tts.audio.wav import read_wav
from telephony_tts.runtime.errors import AudioError, FormatUnavailable

PLAIN = ("wav", "pcm", "ulaw", "alaw")
ENCODED = ("mp3", "opus", "aac", "flac")
WAYS = [(format, rate_hz) for format in ENCODED for rate_hz in rates_of(format)]
LAG = {"mp3": 1105, "aac": 1024, "opus": 0, "flac": 0}
"""Samples before the audio that an encoder adds, and that the file cannot tell the decoder. Ogg tells them."""


def encoded(encoder: StreamEncoder, pieces: list[Pcm]) -> bytes:
    return b"".join([*map(encoder.feed, pieces), encoder.finish()])


def with_libsndfile(content: bytes) -> tuple[np.ndarray, int]:
    """Not FFmpeg, whose encoders wrote these formats."""
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        return file.read(2_000_000, dtype="int16"), file.samplerate


def with_ffmpeg(content: bytes) -> tuple[np.ndarray, int]:
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(content)) as file:
        frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
        rate_hz = file.streams.audio[0].codec_context.sample_rate
    samples = np.concatenate(frames)
    return (samples if samples.dtype == np.int16 else samples * 32_768), rate_hz


def with_flac_length(content: bytes, n_samples: int) -> bytes:
    """STREAMINFO (RFC 9639, 8.2) with a length. The Python package soundfile fails at the end of a FLAC without one."""
    assert content[:4] == b"fLaC" and not content[21] & 0x0F and content[22:26] == bytes(4), "its length is unknown"
    return content[:22] + n_samples.to_bytes(4, "big") + content[26:]


def decoded(format: str, content: bytes, n_samples: int) -> tuple[np.ndarray, int]:
    if format == "aac":
        return with_ffmpeg(content)
    return with_libsndfile(with_flac_length(content, n_samples) if format == "flac" else content)


# ------------------------------------------------------------------- without a package


@pytest.mark.parametrize("rate_hz", rates_of("wav"))
def test_wav_is_exact_and_says_no_length(rate_hz: int) -> None:
    pcm = speech_like(rate_hz, rate_hz)
    content = encoded(make_encoder("wav", rate_hz), chunks(pcm, 777))
    assert content[4:8] == content[40:44] == b"\xff\xff\xff\xff"
    read = read_wav(io.BytesIO(content))
    assert (read.codec, read.rate_hz) == ("pcm", rate_hz) and np.array_equal(read.pcm, pcm)
    samples, heard_hz = with_libsndfile(content)
    assert heard_hz == rate_hz and np.array_equal(samples, pcm)


@pytest.mark.parametrize(("format", "rate_hz"), [("pcm", 22_050), ("pcm", 44_100), ("ulaw", 8_000), ("alaw", 8_000)])
def test_samples_without_a_header_are_the_codecs_bytes(format: str, rate_hz: int) -> None:
    pcm = speech_like(rate_hz, rate_hz)
    encoder = make_encoder(format, rate_hz)
    assert b"".join(encoder.feed(piece) for piece in chunks(pcm, 99)) == CODECS[format].encode(pcm)
    assert encoder.finish() == b""


def test_the_header_comes_once_and_with_the_first_samples() -> None:
    encoder = make_encoder("wav", 8_000)
    first = encoder.feed(np.array([1, 2], np.int16))
    assert first[:4] == b"RIFF" and first[-4:] == b"\x01\x00\x02\x00" and len(first) == 48
    assert encoder.feed(np.array([3], np.int16)) == b"\x03\x00" and encoder.finish() == b""


# ------------------------------------------------------------------- with FFmpeg


@pytest.fixture
def ffmpeg() -> None:
    pytest.importorskip("av")


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize(("format", "rate_hz"), WAYS)
def test_a_foreign_decoder_hears_what_was_fed(format: str, rate_hz: int) -> None:
    pcm = speech_like(rate_hz * 3 // 2, rate_hz)
    encoder = make_encoder(format, rate_hz)
    assert encoder.rate_hz == rate_hz
    heard, heard_hz = decoded(format, encoded(encoder, chunks(pcm, rate_hz // 50)), len(pcm))
    assert heard_hz == rate_hz
    if format == "flac":
        assert np.array_equal(heard, pcm)
        return
    most = 0 if format == "opus" else 2_500
    lag = LAG[format]
    assert lag <= len(heard) - len(pcm) <= most, "nothing is lost at the end"
    assert correlation(heard[lag : lag + len(pcm)], pcm) > 0.99


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize("format", ENCODED)
def test_the_bytes_do_not_depend_on_the_pieces(format: str) -> None:
    pcm = speech_like(3 * 24_000 + 17)
    lengths = itertools.cycle([1, 480, 0, 7_777, 33])
    ragged, place = [], 0
    while place < len(pcm):
        n = next(lengths)
        ragged.append(pcm[place : place + n])
        place += n
    by_20_ms = encoded(make_encoder(format, 24_000), chunks(pcm, 480))
    for pieces in (ragged, [pcm], [pcm[:1], pcm[1:]]):
        # Ogg streams have a random serial number, which the checksum of each page covers.
        content = encoded(make_encoder(format, 24_000), pieces)
        if format == "opus":
            assert np.array_equal(with_libsndfile(content)[0], with_libsndfile(by_20_ms)[0])
        else:
            assert content == by_20_ms


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize(("format", "rate_hz"), WAYS)
def test_sound_comes_at_once_and_keeps_coming(format: str, rate_hz: int) -> None:
    """In 10 ms pieces: sound within 100 ms of audio (aac at 16 kHz: two frames of 64 ms), then at least every 70 ms."""
    encoder = make_encoder(format, rate_hz)
    head = encoder.feed(np.zeros(0, np.int16))
    assert len(head) < 400 and (not head or head[:4] in (b"OggS", b"fLaC"))
    came = [
        10 * (n + 1)
        for n, piece in enumerate(chunks(speech_like(rate_hz, rate_hz), rate_hz // 100))
        if encoder.feed(piece)
    ]
    assert came[0] <= (130 if format == "aac" and rate_hz == 16_000 else 100)
    assert max(np.diff(came)) <= 70 and came[-1] >= 930


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize("format", ["wav", *ENCODED])
def test_a_stream_without_audio_is_a_valid_file(format: str) -> None:
    encoder = make_encoder(format, 24_000)
    content = encoder.finish()
    heard, rate_hz = decoded(format, content, 1)
    assert rate_hz in (24_000, 48_000) and len(heard) < rate_hz / 5 and not np.abs(heard).max(initial=0) > 2
    assert encoder.finish() == b""


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize("format", FORMATS)
def test_audio_after_the_end_and_foreign_audio_are_refused(format: str) -> None:
    encoder = make_encoder(format, 24_000)
    for foreign in (np.zeros(480, np.float32), np.zeros((2, 480), np.int16), b"\x00\x00"):
        with pytest.raises(AudioError, match="audio must be"):
            encoder.feed(foreign)  # type: ignore[arg-type]
    encoder.feed(speech_like(480))
    ended = make_encoder(format, 24_000)
    encoder.finish()
    ended.close()
    ended.close()
    for each in (encoder, ended):
        with pytest.raises(AudioError, match="after its end"):
            each.feed(speech_like(480))
        assert each.finish() == b""


def resident_kib() -> int:
    return next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize("format", ENCODED)
@pytest.mark.parametrize("ending", ["finish", "close", "drop"])
def test_two_hundred_encoders_leave_nothing(format: str, ending: str) -> None:
    pcm = speech_like(2_400)

    def some(n: int) -> None:
        for _ in range(n):
            encoder = make_encoder(format, 24_000)
            encoder.feed(pcm)
            if ending != "drop":
                getattr(encoder, ending)()

    some(200)
    gc.collect()
    kib, objects = resident_kib(), len(gc.get_objects())
    some(200)
    gc.collect()
    assert len(gc.get_objects()) - objects < 50
    assert resident_kib() - kib < 4_096, "an opus encoder is 37 KiB, the others are larger"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize("format", ENCODED)
def test_a_long_stream_needs_no_more_memory_than_a_short_one(format: str) -> None:
    encoder = make_encoder(format, 24_000)
    second = speech_like(24_000)
    for _ in range(5):
        encoder.feed(second)
    before = resident_kib()
    for _ in range(60):
        encoder.feed(second)
    assert resident_kib() - before < 2_048
    encoder.close()


# ------------------------------------------------------------------- rates and errors


@pytest.mark.parametrize(
    ("format", "asked_hz", "rate_hz"),
    [
        ("pcm", 22_050, 22_050), ("wav", 8_000, 8_000), ("wav", 96_000, 48_000), ("ulaw", 24_000, 8_000),
        ("mp3", 8_000, 16_000), ("opus", 22_050, 24_000), ("opus", 44_100, 48_000), ("aac", 44_100, 44_100),
        ("flac", 32_000, 32_000),
    ],
)  # fmt: skip
def test_the_nearest_rate_loses_nothing_if_it_can(format: str, asked_hz: int, rate_hz: int) -> None:
    assert nearest_rate(format, asked_hz) == rate_hz
    if format in PLAIN:
        assert make_encoder(format, asked_hz).rate_hz == rate_hz


def test_an_unknown_format_is_refused() -> None:
    for refused in (lambda: make_encoder("wma", 8_000), lambda: rates_of(""), lambda: nearest_rate("MP3", 8_000)):
        with pytest.raises(AudioError, match=r"unknown audio format .*: one of wav, pcm, ulaw, alaw, mp3"):
            refused()


@pytest.mark.parametrize("format", FORMATS)
def test_without_pyav_a_format_says_how_to_get_it(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    if format in PLAIN:
        assert make_encoder(format, 8_000).feed(np.zeros(3, np.int16))
        return
    with pytest.raises(FormatUnavailable) as caught:
        make_encoder(format, 24_000)
    assert caught.value.message == f"{format} needs PyAV: .venv/bin/pip install -e '.[formats]'"
    assert caught.value.code == "format_unavailable"
