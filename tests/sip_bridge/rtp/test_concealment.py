"""What stands for lost packets: tones go on as they were, a voice goes on at its pitch, and both fade to silence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from dtmf_reader import heard_keys
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.rtp.codec import rtp_codec
from sip_bridge.rtp.concealment import Concealment
from telephony_tts.audio.dtmf import KEYS, tones

Samples = npt.NDArray[np.float64]

FRAME_MS = 20


def heard(wave: npt.NDArray[np.int16], lost: set[int], format: str = "ulaw") -> tuple[Samples, Samples]:
    """The audio in packets of 20 ms, without those of the numbers `lost`; and all of it, as the codec carries it."""
    codec, whole = rtp_codec(format), rtp_codec(format)
    per_ms = codec.rate_hz // 1000
    n = FRAME_MS * per_ms
    concealment = Concealment(codec.rate_hz)
    came = b""
    for number, at in enumerate(range(0, len(wave) - n + 1, n)):
        codes = codec.encode(wave[at : at + n].astype("<i2").tobytes())
        came += concealment.missing(n) if number in lost else concealment.heard(codec.decode(codes))
    truth = whole.decode(whole.encode(wave[: len(came) // 2].astype("<i2").tobytes()))
    return samples(came), samples(truth)


def samples(pcm: bytes) -> Samples:
    return np.frombuffer(pcm, "<i2").astype(np.float64)


def key(digit: str, begin_ms: int, rate_hz: int = 8000) -> npt.NDArray[np.int16]:
    """A key of 100 ms between silences, in all 400 ms."""
    wave = np.zeros(400 * rate_hz // 1000, np.int16)
    (tone,) = list(tones(digit, rate_hz, 100, 50))[:1]
    at = begin_ms * rate_hz // 1000
    wave[at : at + len(tone)] = tone
    return wave


def vowel(n: int, pitch_hz: float = 125.0, rate_hz: int = 8000) -> npt.NDArray[np.int16]:
    """Pulses of a voice through three resonances."""
    sound = np.zeros(n)
    sound[:: round(rate_hz / pitch_hz)] = 1.0
    for hz, width_hz in ((700, 90), (1200, 110), (2600, 160)):
        radius = np.exp(-np.pi * width_hz / rate_hz)
        turn, shrink = 2 * radius * np.cos(2 * np.pi * hz / rate_hz), -(radius**2)
        last = before = 0.0
        for at, value in enumerate(sound):
            last, before = value + turn * last + shrink * before, last
            sound[at] = last
    return np.rint(sound * (8000 / np.abs(sound).max())).astype(np.int16)


@pytest.mark.parametrize("digit", "".join(KEYS))
def test_the_tones_of_a_key_go_on_in_phase_wherever_a_packet_is_lost(digit: str) -> None:
    for phase in range(FRAME_MS):
        # From 10 ms of the key on, until 100 ms, so that the audio before the hole tells its tones.
        for number in range(2, 5):
            known_ms = number * FRAME_MS - phase - FRAME_MS
            if known_ms >= 10:
                came, truth = heard(key(digit, FRAME_MS + phase), {number})
                hole = slice(number * FRAME_MS * 8, (number + 1) * FRAME_MS * 8)
                off = np.sqrt(np.mean((came[hole] - truth[hole]) ** 2) / np.mean(truth[hole] ** 2))
                assert off < (0.75 if known_ms < 20 else 0.35), (phase, number, off)


@pytest.mark.parametrize("format", ["ulaw", "alaw", "g722"])
@pytest.mark.parametrize("digit", ["1", "5", "D"])
def test_a_key_is_one_key_behind_a_lost_packet(digit: str, format: str) -> None:
    rate_hz = rtp_codec(format).rate_hz
    for number in (6, 7, 8):
        came, _ = heard(key(digit, 90, rate_hz), {number}, format)
        (read,) = heard_keys(came.astype(np.int16), rate_hz)
        assert read.digit == digit and read.on_ms == pytest.approx(100, abs=12)


@pytest.mark.parametrize("pitch_hz", [90, 125, 200, 300])
def test_a_voice_goes_on_at_its_pitch(pitch_hz: int) -> None:
    came, truth = heard(vowel(4000, pitch_hz), {12})
    hole = slice(12 * 160, 13 * 160)
    likeness = came[hole] @ truth[hole] / np.sqrt(came[hole] @ came[hole] * (truth[hole] @ truth[hole]))
    assert likeness > 0.9, likeness
    assert 10 * np.log10(np.mean(came[hole] ** 2) / np.mean(truth[hole] ** 2)) == pytest.approx(0, abs=2.5)


@pytest.mark.parametrize("wave", [vowel(4000), np.concatenate([key("5", 0)[:800]] * 5)])
def test_a_long_hole_fades_to_silence_within_60_ms(wave: npt.NDArray[np.int16]) -> None:
    came, truth = heard(wave, set(range(4, 14)))
    level = [np.sqrt(np.mean(came[at : at + 80] ** 2)) for at in range(640, 640 + 800, 80)]
    assert level[0] > 0.5 * np.sqrt(np.mean(truth[560:640] ** 2))
    assert max(level[6:]) == 0 and level[5] < 0.3 * level[0]


@pytest.mark.parametrize("number", range(3, 9))
def test_neither_end_of_a_hole_clicks(number: int) -> None:
    """The steps from sample to sample are no larger than those of the tones."""
    came, truth = heard(key("D", 50), {number})
    assert np.abs(np.diff(came)).max() < 1.3 * np.abs(np.diff(truth)).max()


def test_the_audio_behind_a_hole_is_as_it_came_but_for_4_ms() -> None:
    came, truth = heard(vowel(4000), {5, 9, 10})
    for begin in (6, 11):
        assert np.array_equal(came[begin * 160 + 32 : (begin + 1) * 160], truth[begin * 160 + 32 : (begin + 1) * 160])


def test_audio_without_a_hole_passes_untouched() -> None:
    concealment = Concealment(8000)
    for packet in (b"\x01\x00" * 160, b"\xff\x7f" * 160, b"", b"\x05\x00"):
        assert concealment.heard(packet) is packet


@pytest.mark.parametrize("before", [b"", b"\x00\x00", b"\x00\x00" * 800])
def test_behind_silence_a_hole_is_silent(before: bytes) -> None:
    concealment = Concealment(8000)
    concealment.heard(before)
    assert not samples(concealment.missing(160)).any()
    assert np.abs(samples(concealment.heard(b"\xff\x7f" * 160))[32:]).min() == 32_767


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
@given(st.lists(st.one_of(st.binary(max_size=700), st.integers(0, 1_600)), max_size=12))
def test_no_audio_makes_a_hole_louder_than_what_was_before_it(rate_hz: int, calls: list[bytes | int]) -> None:
    concealment, loudest = Concealment(rate_hz), 0
    for each in calls:
        if isinstance(each, int):
            made = samples(concealment.missing(each))
            assert len(made) == each and np.abs(made).max(initial=0) <= loudest
        else:
            pcm = each[: len(each) // 2 * 2]
            got = samples(concealment.heard(pcm))
            assert len(got) == len(pcm) // 2
            loudest = max(loudest, int(np.abs(samples(pcm)).max(initial=0)))
