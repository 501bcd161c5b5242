"""The tones of keys: a receiver within the limits of ITU-T Q.24 reads each of them, in every format of a call."""

from __future__ import annotations

import numpy as np
import pytest
from dtmf_reader import heard_keys

from telephony_tts.audio.dtmf import duration_ms, tones
from telephony_tts.audio.encoder import Encoder

ALL = "0123456789*#ABCD"
FORMATS = [("ulaw", 8000), ("alaw", 8000), ("pcm", 8000), ("pcm", 16000), ("pcm", 24000), ("pcm", 48000)]


def sent(digits: str, codec: str = "ulaw", rate_hz: int = 8000, on_ms: int = 100, off_ms: int = 100) -> np.ndarray:
    """What a telephone gets: the tones through a call's encoder and back from its frames."""
    encoder = Encoder(codec, rate_hz)
    encoder.begin()
    for pcm in tones(digits, rate_hz, on_ms, off_ms):
        encoder.feed(pcm, rate_hz)
    encoder.end()
    encoder.finish()
    frames = []
    while (frame := encoder.take_frame()) is not None:
        frames.append(frame)
    return encoder.codec.decode(b"".join(frames))


@pytest.mark.parametrize(("codec", "rate_hz"), FORMATS)
def test_each_key_is_read_back_and_is_within_the_standard(codec: str, rate_hz: int) -> None:
    keys = heard_keys(sent(ALL, codec, rate_hz), rate_hz)
    assert "".join(key.digit for key in keys) == ALL
    for key in keys:
        assert key.faults() == []
        assert -8.7 < key.low_dbm0 < -7.3 and -6.7 < key.high_dbm0 < -5.3
        assert 1.5 < key.high_dbm0 - key.low_dbm0 < 2.5
        assert abs(key.on_ms - 100) <= 5
    assert all(abs(key.before_ms - 100) <= 5 for key in keys[1:])


@pytest.mark.parametrize(("on_ms", "off_ms"), [(40, 40), (60, 50), (250, 300)])
def test_the_times_are_those_asked_for(on_ms: int, off_ms: int) -> None:
    keys = heard_keys(sent("1590", on_ms=on_ms, off_ms=off_ms))
    assert "".join(key.digit for key in keys) == "1590"
    assert all(abs(key.on_ms - on_ms) <= 5 for key in keys)
    assert all(abs(key.before_ms - off_ms) <= 7.5 for key in keys[1:])
    assert all(key.faults() == [] for key in keys if on_ms > 40)


def test_a_pause_is_half_a_second() -> None:
    first, second, third = heard_keys(sent("1w2ww3"))
    assert abs(second.before_ms - 600) <= 5 and abs(third.before_ms - 1100) <= 5
    leading = heard_keys(sent("w7"))
    assert abs(leading[0].at_ms - 500) <= 5
    assert first.at_ms == 0


@pytest.mark.parametrize("digits", ["1", "w", "12#", "1ww23"])
def test_the_length_is_known_before(digits: str) -> None:
    n_samples = sum(len(pcm) for pcm in tones(digits, 8000, 80, 70))
    assert n_samples * 1000 // 8000 == duration_ms(digits, 80, 70)


def test_the_limiter_leaves_the_tones_alone() -> None:
    """They would have harmonics otherwise."""
    assert max(int(np.abs(pcm).max()) for pcm in tones(ALL, 8000, 100, 100)) < 23_197


def test_the_receiver_of_these_tests_finds_faults() -> None:
    """It does not read everything as a key within the standard."""
    t = np.arange(800) / 8000
    def pair(low_hz: float, high_hz: float, low: float = 8000, high: float = 8000) -> np.ndarray:
        wave = low * np.sin(2 * np.pi * low_hz * t) + high * np.sin(2 * np.pi * high_hz * t)
        return np.concatenate((np.zeros(800), wave, np.zeros(800))).astype(np.int16)

    assert heard_keys(pair(770, 1336))[0].faults() == []
    assert "1.5 %" in heard_keys(pair(785, 1336))[0].faults()[0]
    assert "twist" in heard_keys(pair(770, 1336, 12000, 3000))[0].faults()[0]
    assert "dBm0" in heard_keys(pair(770, 1336, 500, 500) * 2)[0].faults()[0]
    assert heard_keys(pair(770, 1800)) == [] == heard_keys(np.zeros(8000, np.int16))
    noisy = pair(770, 1336) + np.random.default_rng(1).normal(0, 2000, 2400).astype(np.int16)
    assert any("power" in fault for key in heard_keys(noisy) for fault in key.faults())
