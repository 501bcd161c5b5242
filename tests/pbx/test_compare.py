"""compare.py itself: each fault that can happen to speech in transit must be found and named correctly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import soxr
from compare import Break, Kind, compare, likeliest, moved

from telephony_tts.audio.g711 import Pcm, decode_ulaw, encode_ulaw

FRAME = 160
N = 16_000
PLACES = (2000, 3000, 4800, 9000, 12_000)


def speech(seed: int = 1) -> Pcm:
    """Noise that falls with the frequency as speech does, in four syllables a second, silent at both ends."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(N))
    hz = np.fft.rfftfreq(N, 1 / 8000)
    sound = np.fft.irfft(spectrum * (hz > 80) * np.minimum(1.0, (np.maximum(hz, 1.0) / 500) ** -1.5), N)
    sound *= (0.55 - 0.45 * np.cos(2 * np.pi * 4 * np.arange(N) / 8000)) / np.sqrt(np.mean(sound**2))
    sound[:400] = sound[-400:] = 0
    return np.clip(np.rint(3000 * sound), -32_768, 32_767).astype(np.int16)


SAID = speech()
HEARD = decode_ulaw(encode_ulaw(SAID))


def joined(*parts: Pcm) -> Pcm:
    return np.concatenate(parts)


def silence(n: int) -> Pcm:
    return np.zeros(n, np.int16)


def test_equal_signals_have_no_break() -> None:
    found = compare(SAID, SAID)
    assert (found.delay, found.snr_db, found.breaks) == (0, math.inf, [])
    assert found.correlation == pytest.approx(1.0) and found.gain_db == pytest.approx(0.0, abs=1e-9)
    found.require()


@pytest.mark.parametrize("shift", [1, 79, 1234])
def test_a_shift_is_a_delay_and_not_a_break(shift: int) -> None:
    found = compare(joined(silence(shift), HEARD, silence(500)), SAID)
    assert found.delay == shift and found.breaks == []
    assert 36 < found.snr_db < 39, "that of mu-law"
    found.require()


@pytest.mark.parametrize("gain_db", [-12.0, -3.0, 2.0])
def test_a_gain_is_reported_and_is_not_noise(gain_db: float) -> None:
    found = compare(np.rint(HEARD * 10 ** (gain_db / 20)).astype(np.int16), SAID)
    assert found.gain_db == pytest.approx(gain_db, abs=0.1) and found.snr_db > 36 and found.breaks == []


def test_a_quiet_end_that_is_missing_beside_noise_is_a_break() -> None:
    """The missing samples are quieter than the noise of the codec in the rest."""
    said = SAID.copy()
    said[-560:] = np.rint(60 * np.sin(np.arange(560))).astype(np.int16)
    rest = said[:-480].astype(float)
    heard = rest + np.random.default_rng(5).standard_normal(len(rest)) * 700
    found = compare(np.clip(np.rint(heard), -32_768, 32_767).astype(np.int16), said)
    assert [one.kind for one in found.breaks] == [Kind.MISSING]


@pytest.mark.parametrize("snr_db", [30.0, 20.0, 12.0])
def test_noise_is_reported_in_db_and_is_not_a_break(snr_db: float) -> None:
    rms = float(np.sqrt(np.mean(SAID.astype(float) ** 2)))
    noise = np.random.default_rng(5).standard_normal(N) * rms * 10 ** (-snr_db / 20)
    found = compare(np.clip(SAID + noise, -32_768, 32_767).astype(np.int16), SAID)
    assert found.snr_db == pytest.approx(snr_db, abs=1.0)
    assert found.breaks == []
    assert found.correlation == pytest.approx(1 / math.sqrt(1 + 10 ** (-snr_db / 10)), abs=0.002)


def near(found: Break, kind: Kind, at: int, n_samples: int, slack: int = 8) -> bool:
    """Where the speech is nearly silent, an edge is found up to 1 ms off, or 3 ms if replaced."""
    return found.kind is kind and abs(found.at - at) <= slack and abs(found.n_samples - n_samples) <= slack


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("n", [FRAME, 3 * FRAME])
def test_a_loss_is_located_to_the_sample(at: int, n: int) -> None:
    found = compare(joined(silence(300), HEARD[:at], HEARD[at + n :]), SAID)
    assert len(found.breaks) == 1 and near(found.breaks[0], Kind.MISSING, at, n) and found.breaks[0].n_samples == n
    assert found.correlation < 0.95
    with pytest.raises(AssertionError, match="missing"):
        found.require()


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("n", [FRAME, 3 * FRAME])
def test_silence_in_place_of_speech_is_reported(at: int, n: int) -> None:
    heard = HEARD.copy()
    heard[at : at + n] = 0
    found = compare(heard, SAID)
    assert len(found.holes) == 1 and near(found.holes[0], Kind.REPLACED, at, n, slack=24) and not found.repeats


@pytest.mark.parametrize("gain_db", [-12.0, 3.0])
def test_a_break_is_reported_at_any_gain(gain_db: float) -> None:
    heard = np.rint(HEARD * 10 ** (gain_db / 20)).astype(np.int16)
    heard[3000 : 3000 + FRAME] = 0
    found = compare(joined(heard[:9000], heard[9000 + FRAME :]), SAID)
    assert len(found.breaks) == 2
    assert near(found.breaks[0], Kind.REPLACED, 3000, FRAME, slack=24)
    assert near(found.breaks[1], Kind.MISSING, 9000, FRAME)


@pytest.mark.parametrize("at", PLACES)
def test_a_repeated_frame_is_reported(at: int) -> None:
    found = compare(joined(HEARD[: at + FRAME], HEARD[at : at + FRAME], HEARD[at + FRAME :]), SAID)
    assert found.holes == [] and len(found.repeats) == 1 and near(found.repeats[0], Kind.REPEATED, at, FRAME)


@pytest.mark.parametrize("at", PLACES)
def test_an_inserted_pause_is_reported(at: int) -> None:
    found = compare(joined(HEARD[:at], silence(2 * FRAME), HEARD[at:]), SAID)
    assert len(found.breaks) == 1 and near(found.breaks[0], Kind.INSERTED, at, 2 * FRAME)


def test_a_frame_in_place_of_another_is_a_replacement_and_not_a_repeat() -> None:
    """A phone's concealment: the frame before again, in place of the lost one."""
    heard = HEARD.copy()
    heard[5000 : 5000 + FRAME] = heard[5000 - FRAME : 5000]
    found = compare(heard, SAID)
    assert [one.kind for one in found.breaks] == [Kind.REPLACED]
    assert near(found.breaks[0], Kind.REPLACED, 5000, FRAME, slack=24)


def test_several_breaks_are_reported_in_order() -> None:
    heard = joined(HEARD[:3000], HEARD[3160:7000], silence(320), HEARD[7000:11_000], HEARD[10_840:])
    found = compare(heard, SAID)
    assert [one.kind for one in found.breaks] == [Kind.MISSING, Kind.INSERTED, Kind.REPEATED]
    assert [one.n_samples for one in found.breaks] == [160, 320, 160]


def test_a_lost_beginning_or_end_is_missing() -> None:
    head = compare(HEARD[1600:], SAID)
    assert head.delay == -1600 and [one.kind for one in head.breaks] == [Kind.MISSING]
    assert head.breaks[0].at + head.breaks[0].n_samples == pytest.approx(1600, abs=8)
    tail = compare(HEARD[:-2400], SAID)
    assert [one.kind for one in tail.breaks] == [Kind.MISSING]
    assert near(tail.breaks[0], Kind.MISSING, N - 2400, 2000, slack=24)


def test_the_silence_at_the_end_may_be_left_out() -> None:
    compare(HEARD[:-380], SAID).require()


@pytest.mark.parametrize("heard", [speech(seed=7), silence(N), -HEARD], ids=["another", "silence", "inverted"])
def test_a_different_signal_does_not_match(heard: Pcm) -> None:
    found = compare(heard, SAID)
    assert found.breaks == [Break(Kind.REPLACED, 0, N)] and found.correlation < 0.3 and found.snr_db < 0


def test_a_louder_other_signal_does_not_change_the_delay() -> None:
    loud = np.clip(speech(seed=3).astype(float) * 8, -32_768, 32_767).astype(np.int16)
    found = compare(joined(loud, np.rint(SAID * 0.02).astype(np.int16)), SAID)
    assert found.delay == N and found.correlation > 0.999


@pytest.mark.parametrize(("heard", "said"), [(silence(0), SAID), (HEARD, silence(0)), (HEARD, silence(800))])
def test_empty_or_silent_signals_cannot_be_compared(heard: Pcm, said: Pcm) -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        compare(heard, said)


def test_the_received_signal_is_found_among_others() -> None:
    noise = np.random.default_rng(3)
    said = [np.rint(2000 * noise.standard_normal(4000)).astype(np.int16) for _ in range(5)]
    for i, one in enumerate(said):
        around = np.rint(300 * noise.standard_normal(12_000)).astype(np.int16)
        around[5000:9000] += one
        assert likeliest(around, said) == i


@pytest.mark.parametrize("part", [-4, 1, 5, 6])
def test_a_delay_of_part_of_a_sample_is_compensated(part: int) -> None:
    fine = soxr.resample(np.concatenate([silence(100), SAID, silence(100)]).astype(float), 1, 12, quality="VHQ")
    heard = np.rint(fine[part % 12 :: 12]).astype(np.int16)
    assert compare(heard, SAID).snr_db < 30
    compare(heard, moved(SAID, heard)).require(snr_db=45)
    compare(moved(SAID, HEARD), SAID).require()  # what is in its place stays there
