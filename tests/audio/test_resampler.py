from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import db, rms, speech_like, square, tone

from telephony_tts.audio.resampler import Resampler, fit, n_resampled, to_pcm
from telephony_tts.runtime.errors import AudioError

RATES_HZ = [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000]


def resample(pcm: np.ndarray, in_hz: int, out_hz: int, cuts: list[int] | None = None) -> np.ndarray:
    resampler = Resampler(in_hz, out_hz)
    parts = [resampler.feed(part) for part in np.split(pcm, sorted(cuts or []))]
    return np.concatenate([*parts, resampler.finish()])


@pytest.mark.slow
@given(
    n=st.integers(0, 6_000),
    in_hz=st.sampled_from(RATES_HZ),
    out_hz=st.sampled_from([8_000, 16_000, 24_000]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_cutting_gives_the_bits_of_soxr_in_one_go(n, in_hz, out_hz, data):
    pcm = speech_like(6_000, in_hz)[:n]
    cuts = data.draw(st.lists(st.integers(0, n), max_size=12))
    whole = pcm.astype(np.float32) if in_hz == out_hz else soxr.resample(pcm.astype(np.float32), in_hz, out_hz, "HQ")
    assert np.array_equal(resample(pcm, in_hz, out_hz, cuts), whole)


def test_one_sample_at_a_time():
    pcm = speech_like(2_400)
    assert np.array_equal(resample(pcm, 24_000, 8_000, list(range(1, 2_400))), resample(pcm, 24_000, 8_000))


@pytest.mark.slow
@given(
    n=st.integers(0, 20_000),
    in_hz=st.one_of(st.sampled_from(RATES_HZ), st.integers(4_000, 96_000)),
    out_hz=st.sampled_from([8_000, 16_000, 24_000]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_length_is_the_duration_rounded_half_up(n, in_hz, out_hz):
    n_out = resample(np.full(n, 1_000, np.int16), in_hz, out_hz).size
    assert n_out == n_resampled(n, in_hz, out_hz)
    assert n * out_hz / in_hz - 0.5 < n_out <= n * out_hz / in_hz + 0.5


def test_lag_counts_what_is_inside_and_ends_at_zero():
    resampler = Resampler(24_000, 8_000)
    n_out = 0
    for n_fed in range(480, 24_000, 480):
        n_out += resampler.feed(tone(300, 480)).size
        assert resampler.lag == n_fed // 3 - n_out
        assert 0 <= resampler.lag <= 0.080 * 8_000
    n_tail = resampler.lag
    assert resampler.finish().size == n_tail > 0
    assert resampler.lag == 0 and resampler.finish().size == 0


def test_equal_rates_pass_at_once_and_unchanged():
    pcm = speech_like(100, 8_000)
    resampler = Resampler(8_000, 8_000)
    assert np.array_equal(to_pcm(resampler.feed(pcm)), pcm)
    assert resampler.lag == 0 and resampler.finish().size == 0


def test_content_stays_in_its_place():
    pcm = np.zeros(24_000, np.int16)
    pcm[9_000] = 20_000
    assert int(np.argmax(resample(pcm, 24_000, 8_000))) == 3_000


@pytest.mark.parametrize("hz", [100, 1_000, 3_400])
def test_the_telephone_band_keeps_its_level(hz):
    spoken = resample(tone(hz, 24_000), 24_000, 8_000)[1_000:-1_000]
    assert abs(db(rms(spoken) / rms(tone(hz, 8_000, 8_000)[1_000:-1_000]))) < 0.02


@pytest.mark.parametrize("hz", [4_600, 6_000, 7_900, 11_000])
def test_what_the_telephone_cannot_carry_does_not_fold_back(hz):
    pcm = tone(hz, 24_000)
    assert db(rms(resample(pcm, 24_000, 8_000)[1_000:-1_000]) / rms(pcm)) < -80  # measured: -93, int16's own noise


def test_overshoot_saturates_and_never_wraps():
    floats = resample(square(500, 24_000), 24_000, 8_000)
    assert floats.max() > 36_000 and floats.min() < -36_000, "the signal must overshoot for this test to say anything"
    pcm = to_pcm(floats)
    assert pcm.dtype == np.int16 and pcm.max() == 32_767 and pcm.min() == -32_768
    loud = np.abs(floats) > 1
    assert np.array_equal(np.sign(pcm[loud]), np.sign(floats[loud]))


def test_fit_trims_or_pads_with_silence():
    three = np.array([1, 2, 3], np.float32)
    assert fit(three, 2).tolist() == [1, 2]
    assert fit(three, 3).tolist() == [1, 2, 3]
    assert fit(three, 5).tolist() == [1, 2, 3, 0, 0]


@pytest.mark.parametrize("rates", [(0, 8_000), (-8_000, 8_000), (3_999, 8_000), (24_000, 0), (192_001, 8_000)])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(AudioError, match="sample rate"):
        Resampler(*rates)


def test_foreign_audio_and_audio_after_the_end_are_refused():
    resampler = Resampler(24_000, 8_000)
    for foreign in (np.zeros(3), np.zeros(3, np.int32), np.zeros((3, 1), np.int16)):
        with pytest.raises(AudioError, match="cannot resample"):
            resampler.feed(foreign)
    resampler.finish()
    with pytest.raises(AudioError, match="finished"):
        resampler.feed(np.zeros(3, np.int16))
