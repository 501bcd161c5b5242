"""Where speech begins, ends, waits and is cut off: no click, no lost tail, no audio left over."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from signals import chunks, correlation, db, rms, speech_like, take_all, tone

from telephony_tts.audio.encoder import Encoder
from telephony_tts.runtime.errors import AudioError

UP_TO_ITS_CREST = tone(400, 12_000 - 15)  # a 24 kHz tone that breaks off where a cut is loudest
FROM_ITS_CREST = tone(400, 12_000, phase=2.0)


def speak(encoder: Encoder, pcm: np.ndarray, rate_hz: int = 24_000) -> tuple[int, int]:
    start = encoder.begin()
    for chunk in chunks(pcm, rate_hz // 5):
        encoder.feed(chunk, rate_hz)
    return start, encoder.end()


def rest(encoder: Encoder) -> np.ndarray:
    return encoder.codec.decode(b"".join(take_all(encoder)))


def click(samples: np.ndarray, place: int) -> float:
    """The energy above 1 kHz around `place`, which a 400 Hz tone must not have."""
    around = samples[max(place - 200, 0) : place + 200] * np.hanning(400)
    return rms(np.abs(np.fft.rfft(around))[50:])


# -------------------------------------------------------------------- joints


def joint(fade_ms: int, late: bool) -> tuple[np.ndarray, int, int]:
    encoder = Encoder("pcm", 8_000, fade_ms=fade_ms)
    _, end = speak(encoder, UP_TO_ITS_CREST)
    if late:
        encoder.drain()
    start, _ = speak(encoder, FROM_ITS_CREST)
    encoder.finish()
    return rest(encoder), end, start


@pytest.mark.parametrize("late", [False, True])
def test_joints_do_not_click(late):
    smooth, end, start = joint(5, late)
    rough, *_ = joint(0, late)
    for place in {end, start}:
        assert db(click(smooth, place) / click(rough, place)) < -30  # measured: -38
        inside_the_tone = np.abs(np.diff(rough[1_000:3_000].astype(int))).max()
        assert np.abs(np.diff(smooth[place - 100 : place + 100].astype(int))).max() <= 1.05 * inside_the_tone


def test_the_first_and_last_samples_of_a_turn_are_nearly_silent():
    encoder = Encoder("pcm", 8_000)
    speak(encoder, np.full(24_000, 12_000, np.int16))
    encoder.finish()
    heard = rest(encoder)
    assert abs(heard[0]) < 300 and abs(heard[-1]) < 300
    assert np.all(heard[100:-100] > 11_900)


# --------------------------------------------------------------------- drain


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 48_000])
def test_drain_brings_out_all_speech_in_whole_frames(rate_hz):
    for n_ms in (1, 50, 115, 333, 1_000):
        pcm = speech_like(rate_hz, rate_hz)[: rate_hz * n_ms // 1000]
        encoder, undrained = Encoder("pcm", 8_000), Encoder("pcm", 8_000)
        _, end = speak(encoder, pcm, rate_hz)
        speak(undrained, pcm, rate_hz)
        encoder.drain()
        undrained.finish()
        assert encoder.n_ready_frames * 160 >= end
        assert encoder.n_ready_frames * 160 <= encoder.position_samples
        # The lag of soxr (up to 75 ms at 24 kHz, twice that at 48 kHz), and at most a frame and a step.
        assert encoder.position_samples - end <= (180 if rate_hz == 48_000 else 125) * 8
        assert np.array_equal(rest(encoder)[:end], rest(undrained)[:end])


def test_silence_drained_is_bounded_at_24_khz():
    added = []
    for n in range(1_200, 6_000, 111):
        encoder = Encoder()
        _, end = speak(encoder, speech_like(n))
        encoder.drain()
        added.append(encoder.position_samples - end)
    assert min(added) > 0 and max(added) <= 100 * 8


def test_drain_does_not_break_the_filter():
    """The same samples as one call of soxr for the speech with the drained silence in it."""
    first, second = speech_like(9_000, seed=2), speech_like(12_000, seed=3)
    encoder = Encoder("pcm", 8_000, fade_ms=0)
    _, end = speak(encoder, first)
    encoder.drain()
    start, _ = speak(encoder, second)
    encoder.finish()
    silence = np.zeros((start - end) * 3, np.int16)
    assert silence.size > 0
    whole = np.concatenate((first, silence, second)).astype(np.float32)
    expected = np.rint(soxr.resample(whole, 24_000, 8_000, "HQ"))
    assert np.array_equal(rest(encoder)[: expected.size], expected)


def test_drain_is_idempotent_until_there_is_more_speech():
    encoder = Encoder()
    encoder.drain()
    assert encoder.position_samples == 0
    speak(encoder, speech_like(5_000))
    encoder.drain()
    drained = (encoder.position_samples, encoder.n_ready_frames)
    for _ in range(3):
        encoder.drain()
        encoder.begin()
        encoder.drain()
        encoder.end()
        encoder.drain()
    assert (encoder.position_samples, encoder.n_ready_frames) == drained
    _, end = speak(encoder, speech_like(100))
    encoder.drain()
    assert encoder.n_ready_frames * 160 >= end > drained[0]


def test_speech_already_taken_is_not_drained_again():
    encoder = Encoder()
    speak(encoder, speech_like(24_000))
    encoder.drain()
    before = take_all(encoder)
    encoder.drain()
    assert before and encoder.take_frame() is None


def test_an_utterance_that_stalls_is_a_joint():
    """Drained while open: fades out, waits in silence, fades in; its samples keep their order and number."""
    encoder = Encoder("pcm", 8_000)
    encoder.begin()
    encoder.feed(UP_TO_ITS_CREST, 24_000)
    stalled = encoder.position_samples
    encoder.drain()
    resumed = encoder.position_samples
    assert encoder.n_ready_frames * 160 >= stalled
    encoder.feed(FROM_ITS_CREST, 24_000)
    assert encoder.end() == resumed + 4_000
    encoder.finish()
    heard = rest(encoder)
    rough, *_ = joint(0, True)
    assert db(click(heard, stalled) / click(rough, stalled)) < -30
    assert rms(heard[stalled + 50 : resumed - 50]) < 2
    assert correlation(heard[resumed + 100 : resumed + 3_900], tone(400, 4_000, 8_000, phase=2.0)[100:3_900]) > 0.999


# -------------------------------------------------------------- interruption


@pytest.mark.parametrize(("codec", "silence"), [("ulaw", b"\xff"), ("alaw", b"\xd5"), ("pcm", b"\x00\x00")])
def test_fade_frame_ends_the_speech_without_a_click(codec, silence):
    encoder = Encoder(codec)
    speak(encoder, tone(400, 24_000))
    for _ in range(10):
        encoder.take_frame()
    last = encoder.fade_frame()
    n_ready = encoder.n_ready_frames
    following = encoder.take_frame()
    assert last is not None and following is not None and len(last) == encoder.frame_bytes
    assert n_ready == encoder.n_ready_frames + 1, "fade_frame consumes nothing"
    n_faded = 40 * encoder.codec.bytes_per_sample
    assert last[n_faded:] == silence * 120
    faded, whole = encoder.codec.decode(last)[:40], encoder.codec.decode(following)[:40]
    ramp = 0.5 + 0.5 * np.cos(np.pi * (np.arange(40) + 0.5) / 40)
    assert np.abs(faded - whole * ramp).max() <= (1 if codec == "pcm" else 300)
    assert abs(int(faded[0]) - int(whole[0])) <= 256 and abs(int(faded[-1])) < 100


def test_fade_frame_makes_do_with_less_than_a_fade():
    encoder = Encoder("pcm", 8_000)
    encoder.begin()
    encoder.feed(np.full(40 + 160 + 9, 10_000, np.int16), 8_000)
    encoder.take_frame()
    last = encoder.fade_frame()
    assert last is not None
    heard = encoder.codec.decode(last)
    assert heard.size == 160 and np.all(heard[9:] == 0)
    assert heard[0] > 9_000 and heard[8] < 500 and np.all(np.diff(heard[:9]) < 0)


def test_fade_frame_without_fade_is_silence_and_without_audio_is_nothing():
    assert Encoder().fade_frame() is None
    encoder = Encoder(fade_ms=0)
    speak(encoder, tone(400, 24_000))
    assert encoder.fade_frame() == b"\xff" * 160


def test_discard_leaves_nothing():
    encoder = Encoder()
    encoder.begin()
    encoder.feed(speech_like(24_000), 24_000)
    encoder.take_frame()
    place = encoder.position_samples
    encoder.discard()
    assert encoder.finished
    encoder.drain()
    encoder.finish()
    encoder.discard()
    assert encoder.take_frame() is None and encoder.fade_frame() is None and encoder.n_ready_frames == 0
    assert encoder.position_samples == place == 8_000
    for call in (encoder.begin, encoder.end, lambda: encoder.feed(speech_like(10), 24_000)):
        with pytest.raises(AudioError, match="finished"):
            call()
