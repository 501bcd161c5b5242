"""Voice activity: the network file that we ship, and its results for speech, silence, tones and noise."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.audio.voice_activity import (
    MODEL_FILE,
    RATE_HZ,
    WINDOW_SAMPLES,
    VoiceActivity,
    VoiceModel,
    level_dbov,
)
from telephony_tts.engines.fake.engine import render
from telephony_tts.runtime.errors import AudioError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model() -> VoiceModel:
    return VoiceModel()


@pytest.fixture(scope="module")
def voice() -> np.ndarray:
    """Three seconds of the embedded voice at 8 kHz."""
    import soxr

    from telephony_tts.engines.hibari.model import HibariModel

    speech = HibariModel().speak("Hold on a moment, I would like to ask you something else.")
    wave = soxr.resample(speech.pcm.astype(np.float32), speech.sample_rate_hz, RATE_HZ, "HQ")
    return np.rint(wave).clip(-32768, 32767).astype(np.int16)


def probabilities(model: VoiceModel, pcm: np.ndarray) -> np.ndarray:
    stream = VoiceActivity(model)
    ends = range(WINDOW_SAMPLES, len(pcm) + 1, WINDOW_SAMPLES)
    return np.array([stream.feed(pcm[end - WINDOW_SAMPLES : end]) for end in ends])


def test_the_model_file_is_the_one_that_was_evaluated() -> None:
    page = (ROOT / "docs" / "adr" / "0011-voice-activity.md").read_text(encoding="utf-8")
    assert hashlib.sha256(MODEL_FILE.read_bytes()).hexdigest() in page


def test_it_goes_with_the_package_and_its_licence_with_the_notice() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = project["tool"]["setuptools"]["package-data"]["telephony_tts"]
    assert str(MODEL_FILE.relative_to(ROOT / "telephony_tts")) in packed
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert MODEL_FILE.name in notice and "Copyright (c) 2020-present Silero Team" in notice


@pytest.mark.slow
def test_speech_is_detected_within_its_first_windows_at_any_usual_level(model: VoiceModel, voice: np.ndarray) -> None:
    for gain in (0.1, 0.5, 1.0):
        told = probabilities(model, (voice * gain).astype(np.int16)) > 0.5
        assert told[:4].any()
        assert told.mean() > 0.7


def test_silence_noise_tones_and_clicks_are_not_speech(model: VoiceModel) -> None:
    rng = np.random.default_rng(5)
    t = np.arange(4 * RATE_HZ) / RATE_HZ
    clicks = np.zeros(len(t))
    clicks[::1600] = 30000
    for name, wave in {
        "silence": np.zeros(len(t)),
        "noise": rng.standard_normal(len(t)) * 300,
        "a key pressed": 6000 * (np.sin(2 * np.pi * 697 * t) + np.sin(2 * np.pi * 1209 * t)),
        "dial tone": 8000 * np.sin(2 * np.pi * 425 * t),
        "clicks": clicks,
        "our tones for load tests": np.resize(render("abc def"), len(t)) / 2,
    }.items():
        assert (probabilities(model, wave.astype(np.int16)) > 0.5).mean() < 0.1, name


def test_streams_do_not_hear_each_other(model: VoiceModel, voice: np.ndarray) -> None:
    alone = probabilities(model, voice)
    one, other = VoiceActivity(model), VoiceActivity(model)
    together = []
    for n in range(len(alone)):
        together.append(one.feed(voice[n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES]))
        other.feed(voice[::-1][n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES])
    assert np.array_equal(alone, together)


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"\x08\x0a" * 50])
def test_a_file_that_is_not_a_model_is_an_error_that_says_what_to_do(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "silero_vad.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AudioError, match=r"cannot be loaded \(.+\); install .+ or leave barge_in off"):
        VoiceModel(file)


@given(st.floats(-90, -3))
def test_the_level_is_that_of_a_square_wave_at_overload_less_so_many_decibels(dbov: float) -> None:
    amplitude = 32768 * 10 ** (dbov / 20)
    pcm = np.tile(np.array([1, -1]) * max(1, round(amplitude)), 128).astype(np.int16)
    assert abs(level_dbov(pcm) - 20 * np.log10(max(1, round(amplitude)) / 32768)) < 0.001
    assert level_dbov(np.zeros(256, np.int16)) == level_dbov(np.zeros(0, np.int16)) == -100


def test_each_window_comes_with_the_end_of_the_one_before() -> None:
    given: list[np.ndarray] = []

    def network(window: np.ndarray, state: np.ndarray) -> tuple[float, np.ndarray]:
        given.append(window[0].copy())
        return 0.0, state

    stream = VoiceActivity(network)  # type: ignore[arg-type]
    pcm = np.arange(3 * WINDOW_SAMPLES).astype(np.int16)
    for at in range(0, len(pcm), WINDOW_SAMPLES):
        stream.feed(pcm[at : at + WINDOW_SAMPLES])
    before = np.concatenate([np.zeros(32), pcm]) / 32768
    for n, window in enumerate(given):
        assert np.allclose(window, before[n * WINDOW_SAMPLES : (n + 1) * WINDOW_SAMPLES + 32])
