"""Audio of one codec and rate to another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.transcoder import QuickResampler, Transcoder
from telephony_tts.runtime.errors import AudioError

RATE_HZ = 8000


def tone(rate_hz: int, hz: int = 440) -> np.ndarray:
    """A second of it."""
    return np.rint(8000 * np.sin(2 * np.pi * hz * np.arange(rate_hz) / rate_hz)).astype(np.int16)


def transcoded(payload: bytes, step: int, *way: str | int) -> bytes:
    transcoder = Transcoder(*way)  # type: ignore[arg-type]
    return b"".join(transcoder.feed(payload[i : i + step]) for i in range(0, len(payload), step))


@pytest.mark.parametrize(("codec", "to_codec"), list(itertools.product(CODECS, CODECS)))
def test_another_codec_is_the_same_sound_at_once(codec: str, to_codec: str) -> None:
    payload = CODECS[codec].encode(tone(RATE_HZ))
    heard = CODECS[to_codec].decode(transcoded(payload, 320, codec, RATE_HZ, to_codec, RATE_HZ))
    said = CODECS[codec].decode(payload)
    assert len(heard) == len(said)
    if codec == to_codec or to_codec == "pcm":
        assert np.array_equal(heard, said)
    else:
        assert np.corrcoef(heard, said)[0, 1] > 0.999


WAYS = [(8000, 16000), (8000, 24000), (8000, 48000), (16000, 8000), (48000, 8000), (16000, 24000), (24000, 16000)]


def level_db(pcm: np.ndarray) -> float:
    return 20 * float(np.log10(max(1e-9, np.sqrt(np.mean(np.square(pcm.astype(float)))))))


@pytest.mark.parametrize(("rate_hz", "to_rate_hz"), WAYS)
@pytest.mark.parametrize("hz", [300, 1000, 3400])
def test_another_rate_is_the_same_sound_two_milliseconds_later(rate_hz: int, to_rate_hz: int, hz: int) -> None:
    resampler = QuickResampler(rate_hz, to_rate_hz)
    said = tone(rate_hz, hz=hz)
    heard = np.concatenate([resampler.feed(said[i : i + rate_hz // 50]) for i in range(0, len(said), rate_hz // 50)])
    assert len(heard) == to_rate_hz
    late = 16 * to_rate_hz // min(rate_hz, to_rate_hz)
    expected = tone(to_rate_hz, hz=hz)[: len(heard) - late]
    inside = slice(to_rate_hz // 10, len(expected))
    error = heard[late:][inside].astype(float) - expected[inside]
    # At 3400 Hz the filter begins to fall a little.
    assert level_db(error) < level_db(expected) - (20 if hz == 3400 else 50)


@pytest.mark.parametrize(("rate_hz", "hz"), [(16000, 4800), (48000, 5000), (48000, 12345), (24000, 7777)])
def test_what_the_lower_rate_does_not_have_is_not_heard_as_something_else(rate_hz: int, hz: int) -> None:
    heard = QuickResampler(rate_hz, 8000).feed(tone(rate_hz, hz=hz))
    assert level_db(heard[800:]) < level_db(tone(rate_hz, hz=hz)) - 50


@pytest.mark.slow
def test_pieces_of_any_length_are_the_same_stream() -> None:
    payload = CODECS["ulaw"].encode(tone(RATE_HZ))
    whole = transcoded(payload, len(payload), "ulaw", RATE_HZ, "pcm", 16000)
    assert all(transcoded(payload, step, "ulaw", RATE_HZ, "pcm", 16000) == whole for step in (1, 7, 160))
    pcm = tone(24000).tobytes()
    pieces = [transcoded(pcm, step, "pcm", 24000, "pcm", 16000) for step in (len(pcm), 2, 14, 960)]
    assert all(np.abs(np.frombuffer(p, "<i2") - np.frombuffer(pieces[0], "<i2")).max() <= 1 for p in pieces)
    assert len({len(piece) for piece in pieces}) == 1


@pytest.mark.parametrize(("rate_hz", "to_rate_hz"), [(22050, 8000), (44100, 16000), (8000, 22050)])
def test_rates_without_a_small_ratio_are_resampled_too(rate_hz: int, to_rate_hz: int) -> None:
    """With the short filter a second of this took tens of seconds."""
    payload = CODECS["pcm"].encode(tone(rate_hz))
    heard = np.frombuffer(transcoded(payload, rate_hz // 50 * 2, "pcm", rate_hz, "pcm", to_rate_hz), "<i2")
    assert to_rate_hz * 0.8 < len(heard) <= to_rate_hz, "soxr holds back a part"
    inside = slice(to_rate_hz // 10, len(heard))
    assert level_db(heard[inside] - tone(to_rate_hz)[inside].astype(float)) < level_db(tone(to_rate_hz)) - 50


def test_nothing_in_is_nothing_out() -> None:
    assert Transcoder("ulaw", 8000, "pcm", 16000).feed(b"") == b""


@pytest.mark.parametrize(
    "way", [("ulaw", 16000, "pcm", 8000), ("pcm", 8000, "alaw", 16000), ("opus", 8000, "pcm", 8000)]
)
def test_unknown_codecs_and_rates_are_refused(way: tuple[str, int, str, int]) -> None:
    with pytest.raises(AudioError, match="no audio as"):
        Transcoder(*way)
