from __future__ import annotations

import numpy as np
import pytest
from signals import square, take_all, tone

from telephony_tts.audio.encoder import CEILING, KNEE, Encoder, limit

# Every quarter step through the knee and far past full scale, then coarser up to 60 dB over.
SWEEP = np.concatenate((np.arange(0, 40_000, 0.25), np.geomspace(40_000, 33_000_000, 100_000))).astype(np.float32)
SWEEP = np.concatenate((-SWEEP[:0:-1], SWEEP))


def spoken(pcm: np.ndarray, gain_db: float, rate_hz: int = 24_000, codec: str = "pcm") -> np.ndarray:
    encoder = Encoder(codec, 8_000, fade_ms=0)
    encoder.begin(gain_db)
    encoder.feed(pcm, rate_hz)
    encoder.end()
    encoder.finish()
    return encoder.codec.decode(b"".join(take_all(encoder)))


def test_transparent_below_the_knee_and_the_knee_is_3_db_down():
    quiet = SWEEP[np.abs(SWEEP) <= KNEE]
    assert np.array_equal(limit(quiet), quiet)
    assert np.array_equal(limit(SWEEP)[np.abs(SWEEP) <= KNEE], quiet), "loud samples next to them change nothing"
    assert 20 * np.log10(KNEE / 32_768) == pytest.approx(-3.0, abs=0.01)


def test_monotone_odd_bounded_and_below_the_straight_line():
    bent = limit(SWEEP)
    assert np.all(np.diff(bent) >= 0)
    assert np.array_equal(bent, -limit(-SWEEP))
    assert np.abs(bent).max() <= CEILING
    assert np.all(np.abs(bent) <= np.abs(SWEEP))


def test_the_knee_is_smooth():
    slope = np.diff(limit(np.arange(KNEE - 50, KNEE + 50, dtype=np.float32)))
    assert np.all((slope > 0.99) & (slope <= 1.0))


def test_a_sample_does_not_depend_on_the_samples_around_it():
    whole = limit(SWEEP)
    for start in (0, 1, 7, SWEEP.size // 2 + 23_197 * 4, SWEEP.size - 5):
        for n in (1, 3, 8, 17):
            assert np.array_equal(limit(SWEEP[start : start + n]), whole[start : start + n])


@pytest.mark.parametrize("gain_db", [0.0, 12.0, 60.0])
@pytest.mark.parametrize("codec", ["pcm", "ulaw", "alaw"])
def test_a_full_scale_square_wave_never_wraps(codec, gain_db):
    pcm = square(200, 24_000)
    out = spoken(pcm, gain_db, codec=codec).astype(np.int32)
    plateau = np.abs(np.arange(8_000) % 20 - 9.5) < 6  # away from the edges, where the sign is not in doubt
    expected = np.where((np.arange(8_000) // 20) % 2 == 0, 1, -1)
    assert np.array_equal(np.sign(out[plateau]), expected[plateau])
    assert np.abs(out[plateau]).min() > 25_000


def test_gain_is_in_decibels():
    pcm = tone(400, 8_000, 8_000, amplitude=2_000)
    assert np.array_equal(spoken(pcm, 0.0, 8_000), pcm)
    assert np.abs(spoken(pcm, 6.0, 8_000) - pcm * 10 ** (6 / 20)).max() <= 0.51
    assert np.abs(spoken(pcm, -20.0, 8_000) - pcm * 0.1).max() <= 0.51


def test_gain_over_full_scale_bends_instead_of_clipping():
    out = spoken(tone(411, 8_000, 8_000, amplitude=16_000), 9.0, 8_000)  # peaks would be at 45,000
    assert 30_000 < out.max() < CEILING
    top = np.sort(out)[-400:]
    assert np.unique(top).size > 20, "the peaks keep their shape"
