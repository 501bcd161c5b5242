"""The detector of beeps: what is one, and what only sounds like one. benchmarks/voice_mail.py has many more cases."""

from __future__ import annotations

import numpy as np
import pytest

from telephony_tts.audio.beep import Beep, BeepDetector
from telephony_tts.audio.dtmf import tones
from telephony_tts.audio.g711 import Pcm, decode_alaw, decode_ulaw, encode_alaw, encode_ulaw

REST_MS = 500


def sine(*hz: float, ms: float = 400, dbov: float = -20) -> np.ndarray:
    t = np.arange(int(8 * ms)) / 8000
    return np.sqrt(2 / len(hz)) * 10 ** (dbov / 20) * sum(np.sin(2 * np.pi * each * t) for each in hz)


def line(*parts: np.ndarray, noise_dbov: float = -70, codec: str = "ulaw", offset: int = 0) -> Pcm:
    """The parts between silences, as they come through the codec."""
    wave = np.concatenate([np.zeros(800 + offset), *parts, np.zeros(8 * REST_MS)])
    wave = wave + np.random.default_rng(3).standard_normal(len(wave)) * 10 ** (noise_dbov / 20)
    pcm = np.clip(np.rint(wave * 32767), -32768, 32767).astype(np.int16)
    return decode_ulaw(encode_ulaw(pcm)) if codec == "ulaw" else decode_alaw(encode_alaw(pcm))


def found(pcm: Pcm, is_heard: bool = True) -> list[tuple[float, Beep]]:
    """(when a beep was found, in ms; the beep)"""
    detector, beeps = BeepDetector(), []
    for at in range(0, len(pcm) - 255, 256):
        beep = detector.feed(pcm[at : at + 256], is_heard)
        if beep is not None:
            beeps.append(((at + 256) / 8, beep))
    return beeps


@pytest.mark.parametrize("codec", ["ulaw", "alaw"])
@pytest.mark.parametrize("hz", [350, 425.3, 440, 697, 1000, 1209, 1412.5, 2000, 2200])
@pytest.mark.parametrize("ms", [120, 250, 1000])
def test_a_steady_tone_and_silence_are_a_beep(hz: float, ms: float, codec: str) -> None:
    ((at_ms, beep),) = found(line(sine(hz, ms=ms), codec=codec))
    assert abs(beep.frequency_hz - hz) < 3
    assert abs(beep.length_ms - ms) <= 24
    assert abs(at_ms - beep.ago_ms - (100 + ms)) <= 32
    assert beep.ago_ms <= 200


@pytest.mark.parametrize("offset", range(0, 256, 37))
def test_it_does_not_matter_where_the_tone_lies_in_the_windows(offset: int) -> None:
    assert len(found(line(sine(613, ms=125), offset=offset))) == 1


@pytest.mark.parametrize(("dbov", "noise_dbov"), [(-8, -18), (-20, -32), (-36, -50), (-40, -70)])
def test_beeps_of_all_levels_are_found_in_noise(dbov: float, noise_dbov: float) -> None:
    ((_, beep),) = found(line(sine(900, dbov=dbov), noise_dbov=noise_dbov))
    assert abs(beep.frequency_hz - 900) < 5


def keys() -> list[np.ndarray]:
    return [np.concatenate(list(tones(key, 8000, ms, 50))) / 32768 for key in "147*0D" for ms in (60, 250)]


@pytest.mark.parametrize(
    "wave",
    [
        sine(1000, ms=70), sine(1000, ms=1200), sine(1000, ms=5000), sine(300), sine(2300), sine(1000, dbov=-50),
        sine(440, 480), sine(400, 450), sine(480, 620), sine(350, 440), sine(523.3, 659.3, 784), sine(600, 1200),
        np.random.default_rng(1).standard_normal(3200) * 0.1,
        0.2 * np.sin(2 * np.pi * np.cumsum(np.linspace(700, 760, 3200)) / 8000), sine(1000) + 0.56 * sine(1400),
        sine(800) * np.linspace(1, 0.05, 3200),
        *keys(),
    ],
)  # fmt: skip
def test_other_sounds_are_no_beep(wave: np.ndarray) -> None:
    assert found(line(wave)) == []


def test_a_tone_that_goes_on_in_another_sound_is_no_beep() -> None:
    assert found(line(sine(700), sine(900, ms=3000))) == []
    assert found(line(sine(700), np.random.default_rng(1).standard_normal(8000) * 0.1)) == []


def test_two_beeps_are_two() -> None:
    beeps = found(line(sine(700, ms=200), np.zeros(3200), sine(1100, ms=300)))
    assert [round(beep.frequency_hz, -1) for _, beep in beeps] == [700, 1100]


def test_our_own_echo_is_no_beep() -> None:
    assert found(line(sine(700)), is_heard=False) == []


def test_full_scale_and_silence_do_no_harm() -> None:
    for pcm in (np.zeros(4096, np.int16), np.full(4096, -32768, np.int16), np.tile([32767, -32768], 2048)):
        assert found(pcm.astype(np.int16)) == []
