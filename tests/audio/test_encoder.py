from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from signals import chunks, correlation, db, rms, speech_like, take_all, tone

from telephony_tts.audio.encoder import CODECS, Encoder, silent_frame
from telephony_tts.runtime.errors import AudioError

SPEECH = {rate_hz: speech_like(rate_hz, rate_hz, seed=rate_hz) for rate_hz in (8_000, 16_000, 22_050, 24_000, 44_100)}


def speak(
    encoder: Encoder, pcm: np.ndarray, rate_hz: int, n_chunk: int = 4_800, gain_db: float = 0.0
) -> tuple[int, int]:
    start = encoder.begin(gain_db)
    for chunk in chunks(pcm, n_chunk):
        encoder.feed(chunk, rate_hz)
    return start, encoder.end()


def samples_of(encoder: Encoder) -> np.ndarray:
    encoder.finish()
    return encoder.codec.decode(b"".join(take_all(encoder)))


def in_one_go(pcm: np.ndarray, in_hz: int, out_hz: int = 8_000) -> np.ndarray:
    return soxr.resample(pcm.astype(np.float32), in_hz, out_hz, "HQ")


# ------------------------------------------------------------------- content


@pytest.mark.parametrize("codec", ["ulaw", "alaw", "pcm"])
@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 24_000, 44_100])
def test_what_is_heard_is_what_the_engine_spoke(codec, rate_hz):
    parts = [speech_like(n, rate_hz, seed=n) for n in (rate_hz, 17_001, 9_999)]
    encoder = Encoder(codec)
    for part in parts:
        speak(encoder, part, rate_hz, n_chunk=rate_hz // 5)
    reference = in_one_go(np.concatenate(parts), rate_hz)
    heard, padding = np.split(samples_of(encoder), [reference.size])
    assert correlation(heard, reference) > 0.99
    assert db(rms(heard) / rms(reference)) == pytest.approx(0, abs=0.3)
    assert padding.size < 160 and np.abs(padding).max(initial=0) <= 8, "A-law has no zero: its silence is 8"


@pytest.mark.parametrize("hz", [300, 1_000, 3_000])
@pytest.mark.parametrize("codec", ["ulaw", "alaw"])
def test_a_tone_comes_through_at_the_quality_of_g711(codec, hz):
    encoder = Encoder(codec)
    speak(encoder, tone(hz, 24_000), 24_000)
    heard = samples_of(encoder)[400:-400].astype(np.float64)
    ideal = 10_000 * np.sin(2 * np.pi * hz * np.arange(8_000) / 8_000)[400:-400]
    assert correlation(heard, ideal) > 0.999
    assert db(rms(heard - ideal) / rms(ideal)) < -35  # G.711's own quantisation noise is -38 dB


def test_without_fades_the_samples_are_soxrs_to_the_bit():
    encoder = Encoder("pcm", 8_000, fade_ms=0)
    speak(encoder, SPEECH[24_000], 24_000, n_chunk=777)
    assert np.array_equal(samples_of(encoder), np.rint(in_one_go(SPEECH[24_000], 24_000)))


def test_fades_touch_nothing_but_their_5_ms():
    faded, plain = Encoder("pcm", 8_000), Encoder("pcm", 8_000, fade_ms=0)
    for encoder in (faded, plain):
        speak(encoder, SPEECH[8_000], 8_000)
    faded_samples, plain_samples = samples_of(faded), samples_of(plain)
    assert np.array_equal(faded_samples[40:-40], plain_samples[40:-40])
    ramp = 0.5 - 0.5 * np.cos(np.pi * (np.arange(40) + 0.5) / 40)
    assert np.abs(faded_samples[:40] - plain_samples[:40] * ramp).max() <= 0.51
    assert np.abs(faded_samples[-40:] - plain_samples[-40:] * ramp[::-1]).max() <= 0.51


def test_a_tone_the_telephone_cannot_carry_is_not_heard():
    encoder = Encoder("pcm", 8_000)
    speak(encoder, tone(6_000, 24_000), 24_000)
    assert db(rms(samples_of(encoder)) / rms(tone(6_000, 24_000))) < -60
    encoder = Encoder("ulaw")
    speak(encoder, tone(6_000, 24_000), 24_000)
    assert np.abs(samples_of(encoder)[100:-100]).max() == 0, "mu-law silence between the joints"


def test_gain_belongs_to_its_utterance():
    encoder = Encoder("pcm", 8_000)
    quiet = tone(400, 8_000, 8_000, amplitude=1_000)
    for gain_db in (0.0, 12.0, -6.0):
        speak(encoder, quiet, 8_000, gain_db=gain_db)
    heard = samples_of(encoder)
    levels = [db(rms(heard[start + 100 : start + 7_900]) / rms(quiet)) for start in (0, 8_000, 16_000)]
    assert levels == pytest.approx([0.0, 12.0, -6.0], abs=0.02)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
def test_pcm_is_carried_at_wider_rates(rate_hz):
    encoder = Encoder("pcm", rate_hz, ptime_ms=30)
    speak(encoder, SPEECH[24_000], 24_000)
    reference = SPEECH[24_000] if rate_hz == 24_000 else in_one_go(SPEECH[24_000], 24_000, rate_hz)
    encoder.finish()
    frames = take_all(encoder)
    assert {len(frame) for frame in frames} == {encoder.frame_bytes} == {rate_hz * 30 // 1000 * 2}
    heard = np.frombuffer(b"".join(frames), "<i2")
    assert correlation(heard[: reference.size], reference) > 0.999


# ------------------------------------------------------------ cutting, duration


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_frames_do_not_depend_on_how_the_audio_was_cut(data):
    """Utterances of any length, rate and gain, some followed by a late bot: any chunking gives the same bytes."""
    codec = data.draw(st.sampled_from(["ulaw", "alaw", "pcm"]))
    turn = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(SPEECH)), st.integers(0, 6_000), st.sampled_from([0.0, 14.0]), st.booleans()
            ),
            max_size=4,
        )
    )
    results = []
    for cut_freely in (False, True):
        encoder = Encoder(codec)
        frames, places = [], []
        for rate_hz, n, gain_db, late in turn:
            pcm = SPEECH[rate_hz][1_000 : 1_000 + n]
            places.append(encoder.begin(gain_db))
            cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=8))) if cut_freely else []
            for part in np.split(pcm, cuts):
                encoder.feed(part, rate_hz)
                if cut_freely:
                    frames += take_all(encoder)
            places.append(encoder.end())
            if late:
                encoder.drain()
                places.append(encoder.position_samples)
        encoder.finish()
        results.append((places, frames + take_all(encoder)))
    assert results[0] == results[1]


def test_one_sample_at_a_time_and_a_minute_at_once():
    minute = np.tile(SPEECH[24_000], 60)
    by_200_ms, at_once = Encoder(), Encoder()
    speak(by_200_ms, minute, 24_000)
    speak(at_once, minute, 24_000, n_chunk=len(minute))
    for encoder in (by_200_ms, at_once):
        encoder.finish()
    frames = take_all(at_once)
    assert frames == take_all(by_200_ms) and len(frames) == 3_000

    single, whole = Encoder(), Encoder()
    speak(single, minute[:3_001], 24_000, n_chunk=1)
    speak(whole, minute[:3_001], 24_000)
    for encoder in (single, whole):
        encoder.finish()
    assert take_all(single) == take_all(whole)


@given(
    lengths=st.lists(st.integers(0, 5_000), max_size=5),
    rate_hz=st.sampled_from(sorted(SPEECH)),
    codec=st.sampled_from(["ulaw", "pcm"]),
    ptime_ms=st.sampled_from([10, 20, 30, 60]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_duration_is_exact(lengths, rate_hz, codec, ptime_ms):
    encoder = Encoder(codec, 8_000, ptime_ms)
    n_fed = 0
    for n in lengths:
        start, end = speak(encoder, SPEECH[rate_hz][:n], rate_hz, n_chunk=1_000)
        assert abs(start - n_fed * 8_000 / rate_hz) <= 0.5
        n_fed += n
        assert abs(end - n_fed * 8_000 / rate_hz) <= 0.5
    n_out = encoder.position_samples
    encoder.finish()
    assert encoder.position_samples == n_out
    n_frames = -(-n_out // (8 * ptime_ms))
    assert encoder.n_ready_frames == n_frames
    payload = b"".join(take_all(encoder))
    assert len(payload) == n_frames * encoder.frame_bytes
    n_padded = n_frames * 8 * ptime_ms - n_out
    assert payload.endswith(encoder.codec.silence * n_padded)


def test_positions_are_where_the_sound_is():
    """A click in the middle of each utterance is found at the position `begin` gave plus its own offset."""
    encoder = Encoder("pcm", 8_000)
    expected = []
    for n, late in ((7_301, False), (5_000, True), (9_100, False)):
        click = np.zeros(n, np.int16)
        click[2_400] = 20_000
        start, _ = speak(encoder, click, 24_000)
        expected.append(start + 800)
        if late:
            encoder.drain()
    heard = samples_of(encoder)
    found = np.flatnonzero(heard > 4_000)
    assert np.abs(found - expected).max() <= 1


def test_a_changed_engine_rate_loses_and_adds_nothing():
    encoder = Encoder("pcm", 8_000)
    places = [speak(encoder, SPEECH[rate_hz], rate_hz) for rate_hz in (24_000, 22_050, 8_000, 16_000)]
    assert places == [(0, 8_000), (8_000, 16_000), (16_000, 24_000), (24_000, 32_000)]
    heard = samples_of(encoder)
    assert heard.size == 32_000
    for place, rate_hz in zip((0, 8_000, 16_000, 24_000), (24_000, 22_050, 8_000, 16_000), strict=True):
        spoken = SPEECH[8_000] if rate_hz == 8_000 else in_one_go(SPEECH[rate_hz], rate_hz)
        assert correlation(heard[place : place + 8_000], spoken) > 0.999


def test_a_rate_changed_inside_an_utterance_is_a_joint():
    encoder = Encoder("pcm", 8_000)
    encoder.begin()
    encoder.feed(tone(400, 12_000), 24_000)
    encoder.feed(tone(400, 8_000, 16_000), 16_000)
    assert encoder.end() == 8_000
    heard = samples_of(encoder)
    assert np.abs(heard[3_998:4_002]).max() < 200
    assert np.abs(heard[3_900:3_950]).max() > 9_000 and np.abs(heard[4_050:4_100]).max() > 9_000


# --------------------------------------------------------------- frames, state


@pytest.mark.parametrize(("codec", "silence"), [("ulaw", b"\xff"), ("alaw", b"\xd5"), ("pcm", b"\x00")])
def test_the_last_frame_is_padded_with_the_codecs_silence(codec, silence):
    encoder = Encoder(codec, 8_000, fade_ms=0)
    speak(encoder, np.full(8 * 20 + 3, 1_000, np.int16), 8_000)
    encoder.finish()
    full, padded = take_all(encoder)
    bytes_per_sample = encoder.codec.bytes_per_sample
    assert silence not in (full[-1:], padded[: 3 * bytes_per_sample])
    assert padded[3 * bytes_per_sample :] == silence * (157 * bytes_per_sample)


def test_frames_come_as_soon_as_they_are_whole():
    encoder = Encoder()
    encoder.begin()
    assert encoder.take_frame() is None and encoder.n_ready_frames == 0
    encoder.feed(SPEECH[8_000][:199], 8_000)  # the newest 40 samples may have to be faded
    assert encoder.take_frame() is None
    encoder.feed(SPEECH[8_000][199:200], 8_000)
    assert encoder.n_ready_frames == 1
    frame = encoder.take_frame()
    assert frame is not None and type(frame) is bytes and len(frame) == 160
    assert encoder.n_ready_frames == 0 and encoder.take_frame() is None
    assert encoder.position_samples == 200


def test_an_engine_chunk_of_120_ms_is_heard_at_once():
    for rate_hz, n_ms in ((24_000, 120), (22_050, 120), (16_000, 130)):
        encoder = Encoder()
        encoder.begin()
        encoder.feed(SPEECH[rate_hz][: rate_hz * n_ms // 1000], rate_hz)
        assert encoder.n_ready_frames >= 1


def test_empty_utterances_and_empty_turns():
    encoder = Encoder()
    assert encoder.begin() == 0
    encoder.feed(np.zeros(0, np.int16), 24_000)
    assert encoder.end() == 0
    encoder.drain()
    encoder.finish()
    assert encoder.finished and encoder.n_ready_frames == 0 and encoder.position_samples == 0


def test_an_utterance_shorter_than_its_fades_is_faded_both_ways():
    for n in (1, 7, 40, 60, 80):
        encoder = Encoder("pcm", 8_000)
        speak(encoder, np.full(n, 10_000, np.int16), 8_000)
        heard = samples_of(encoder)[:n]
        assert np.array_equal(heard, heard[::-1]) and heard[0] < 100
        assert np.all(np.diff(heard[: n // 2].astype(int)) >= 0), "it swells to its middle and no further"
    assert heard.max() > 9_900, "ten milliseconds are enough to reach full level"


def test_finish_ends_an_open_utterance_and_is_idempotent():
    encoder, ended = Encoder(), Encoder()
    for each in (encoder, ended):
        each.begin()
        each.feed(SPEECH[24_000], 24_000)
    ended.end()
    for each in (encoder, ended):
        each.finish()
    encoder.finish()
    encoder.drain()
    assert take_all(encoder) == take_all(ended)


def test_memory_follows_what_is_not_taken():
    encoder = Encoder()
    encoder.begin()
    encoder.feed(SPEECH[24_000], 24_000)
    take_all(encoder)
    tracemalloc.start()
    try:
        for _ in range(60):
            encoder.feed(SPEECH[24_000], 24_000)
            take_all(encoder)
        assert tracemalloc.get_traced_memory()[0] < 40_000
        for _ in range(60):
            encoder.feed(SPEECH[24_000], 24_000)
        assert 480_000 < tracemalloc.get_traced_memory()[0] < 700_000
        take_all(encoder)
        assert tracemalloc.get_traced_memory()[0] < 40_000
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"codec": "opus"}, "unknown codec 'opus'"),
        ({"codec": "ulaw", "rate_hz": 16_000}, "ulaw is carried at 8000 Hz"),
        ({"codec": "alaw", "rate_hz": 24_000}, "alaw is carried at 8000 Hz"),
        ({"codec": "pcm", "rate_hz": 11_025}, "pcm is carried at 8000, 16000, 22050, 24000, 32000, 44100, 48000 Hz"),
        ({"codec": "pcm", "rate_hz": 22_050, "ptime_ms": 10}, "10 ms at 22050 Hz is not a whole .* multiple of 20 ms"),
        ({"codec": "pcm", "rate_hz": 22_050, "ptime_ms": 30}, "30 ms at 22050 Hz is not a whole .* multiple of 20 ms"),
        ({"codec": "pcm", "rate_hz": 44_100, "ptime_ms": 25}, "25 ms at 44100 Hz is not a whole .* multiple of 10 ms"),
        ({"ptime_ms": 9}, "ptime"),
        ({"ptime_ms": 61}, "ptime"),
        ({"fade_ms": -1}, "fade"),
        ({"fade_ms": 21}, "fade"),
    ],
)
def test_impossible_settings_are_refused(settings_, message):
    with pytest.raises(AudioError, match=message):
        Encoder(**settings_)


def test_every_codec_at_every_rate_and_frame_length():
    for name, codec in CODECS.items():
        for rate_hz in codec.rates_hz:
            for ptime_ms in range(10, 61):
                if rate_hz * ptime_ms % 1_000:
                    with pytest.raises(AudioError, match="not a whole number of samples"):
                        Encoder(name, rate_hz, ptime_ms)
                    continue
                encoder = Encoder(name, rate_hz, ptime_ms)
                assert encoder.frame_bytes * 1_000 == rate_hz * ptime_ms * codec.bytes_per_sample


@pytest.mark.parametrize(("rate_hz", "n_samples"), [(22_050, 441), (32_000, 640), (44_100, 882)])
def test_frames_of_20_ms_are_exact_at_the_rates_of_the_vendors(rate_hz, n_samples):
    encoder = Encoder("pcm", rate_hz, fade_ms=0)
    for _ in range(3):
        speak(encoder, SPEECH[24_000][:20_000], 24_000)
    encoder.finish()
    frames = take_all(encoder)
    assert {len(frame) for frame in frames} == {2 * n_samples}
    assert silent_frame("pcm", rate_hz, 20) == bytes(2 * n_samples)
    heard = encoder.codec.decode(b"".join(frames))
    reference = in_one_go(np.tile(SPEECH[24_000][:20_000], 3), 24_000, rate_hz)
    assert 0 <= heard.size - reference.size < n_samples and not heard[reference.size :].any()
    assert correlation(heard[: reference.size], reference) > 0.999


def test_foreign_audio_is_refused_and_changes_nothing():
    encoder, clean = Encoder(), Encoder()
    for each in (encoder, clean):
        each.begin()
        each.feed(SPEECH[24_000][:10_000], 24_000)
    for foreign in (np.zeros(480, np.float32), np.zeros((1, 480), np.int16), np.zeros(480, ">i2"), b"\x00\x00", None):
        with pytest.raises(AudioError):
            encoder.feed(foreign, 24_000)
    for rate_hz in (0, -1, 3_999, 1_000_000):
        with pytest.raises(AudioError, match="sample rate"):
            encoder.feed(SPEECH[24_000], rate_hz)
    for each in (encoder, clean):
        each.feed(SPEECH[24_000][10_000:], 24_000)
        each.end()
        each.finish()
    assert take_all(encoder) == take_all(clean)


def test_the_order_of_calls_is_kept():
    encoder = Encoder()
    for call in (lambda: encoder.feed(SPEECH[8_000], 8_000), encoder.end):
        with pytest.raises(AudioError, match="begin one first"):
            call()
    encoder.begin()
    with pytest.raises(AudioError, match="end it before"):
        encoder.begin()
    encoder.finish()
    for call in (encoder.begin, encoder.end, lambda: encoder.feed(SPEECH[8_000], 8_000)):
        with pytest.raises(AudioError, match="finished"):
            call()


@pytest.mark.parametrize("gain_db", [float("nan"), float("inf"), -61.0, 61.0])
def test_an_impossible_gain_is_refused(gain_db):
    encoder = Encoder()
    with pytest.raises(AudioError, match="gain"):
        encoder.begin(gain_db)
    assert encoder.begin() == 0, "the refused utterance is not open"
