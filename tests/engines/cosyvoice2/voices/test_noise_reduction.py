"""What is found in a recording, and its version with less noise: length, place, and what cannot be reduced."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import numpy as np
import pytest
import soundfile
import torch

from telephony_tts.engines.cosyvoice2.voices.enrolment import check_recording, denoised_wav
from telephony_tts.engines.cosyvoice2.voices.noise_reduction import reduced
from telephony_tts.engines.cosyvoice2.voices.recording_check import checked
from telephony_tts.engines.cosyvoice2.voices.voice import MAX_CLIPPED, Recording, clipped_share
from telephony_tts.runtime.errors import AudioError, EngineUnavailable

NOISE = 0.005
"""The level of the noise: -46 dBFS."""


def syllables(seconds: float = 6.0, rate_hz: int = 24_000) -> torch.Tensor:
    """A voice of harmonics in syllables, with half a second of silence before it and a pause in the middle."""
    t = torch.arange(int(seconds * rate_hz)) / rate_hz
    pitch = 140 + 20 * torch.sin(2 * torch.pi * 0.7 * t)
    phase = 2 * torch.pi * torch.cumsum(pitch, 0) / rate_hz
    voice = sum(torch.sin(k * phase) / k for k in range(1, 30))
    loud = (torch.sin(2 * torch.pi * 3 * t) > -0.5) & (t > 0.5) & ((t < 3.0) | (t > 3.6))
    shape = torch.nn.functional.avg_pool1d(loud.float()[None, None], 481, 1, 240)[0, 0]
    return 0.1 * shape * torch.as_tensor(voice)


def hiss(n: int, level: float = NOISE) -> torch.Tensor:
    return level * torch.randn(n, generator=torch.Generator().manual_seed(0))


def noisy(rate_hz: int = 24_000) -> tuple[torch.Tensor, Recording]:
    """Clean speech, and the same with noise."""
    clean = syllables(rate_hz=rate_hz)
    return clean, Recording(clean + hiss(clean.numel()), rate_hz, provenance={"source": "anna.wav"})


def level_db(wave: torch.Tensor) -> float:
    return float(10 * torch.log10(wave.square().mean() + 1e-12))


def error_db(clean: torch.Tensor, wave: torch.Tensor) -> float:
    """The rest that no scaling of the clean speech explains, relative to the speech."""
    scale = float(clean @ wave) / float(clean @ clean)
    return level_db(wave - scale * clean) - level_db(scale * clean)


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 44_100, 48_000])
def test_the_noise_is_lower_and_the_speech_is_in_its_place(rate_hz: int) -> None:
    clean, recording = noisy(rate_hz)
    out = reduced(recording)
    assert out.wave.shape == clean.shape and out.rate_hz == rate_hz
    pause = slice(int(0.1 * rate_hz), int(0.4 * rate_hz))
    assert level_db(out.wave[pause]) < level_db(recording.wave[pause]) - 8
    # One sample too early or late would cost more than the noise does.
    assert error_db(clean, out.wave) < error_db(clean, recording.wave) - 2
    assert abs(level_db(out.wave) - level_db(clean)) < 0.5
    tail = slice(-int(0.2 * rate_hz), None)
    assert error_db(clean[tail], out.wave[tail]) < 0, "the end is there too"


def test_the_record_says_by_what_and_how_much() -> None:
    _, recording = noisy()
    out = reduced(recording)
    assert out.provenance["source"] == "anna.wav" and out.provenance["denoised_by"].startswith("afftdn of FFmpeg ")
    stretch = slice(int(0.1 * 24_000), int(0.4 * 24_000))
    measured = level_db(recording.wave[stretch]) - level_db(out.wave[stretch])
    assert float(out.provenance["denoised_db"]) == pytest.approx(measured, abs=2)
    assert "denoised_by" not in recording.provenance


@pytest.mark.parametrize(
    ("wave", "why"),
    [
        (syllables, "silent already"),
        (lambda: torch.zeros(24_000 * 4), "silent already"),
        (lambda: hiss(24_000 * 4, 0.1), "no pause"),
        (lambda: hiss(4_000), "too short"),
        (lambda: torch.zeros(0), "too short"),
    ],
    ids=["clean", "silence", "noise alone", "short", "empty"],
)
def test_what_has_no_noise_to_find_is_an_error(wave: Callable[[], torch.Tensor], why: str) -> None:
    with pytest.raises(AudioError, match=why):
        reduced(Recording(wave(), 24_000))


def test_without_the_package_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(EngineUnavailable, match=r"\.venv/bin/pip install -e '\.\[denoise\]'"):
        reduced(noisy()[1])


# ------------------------------------------------------------------------------ checks


def as_file(wave: torch.Tensor, rate_hz: int = 24_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, wave.numpy(), rate_hz, format="WAV", subtype="FLOAT")
    return file.getvalue()


def codes(recording: Recording) -> set[str]:
    return {each.code for each in checked(recording).findings}


def test_the_figures_of_a_recording() -> None:
    _, recording = noisy()
    check = checked(recording)
    assert check.length_s == pytest.approx(6.0) and check.kept_s == pytest.approx(6.0, abs=0.01)
    assert check.noise_dbfs == pytest.approx(20 * np.log10(NOISE), abs=1)
    assert check.snr_db == pytest.approx(check.level_dbfs - check.noise_dbfs) and check.clipped_share == 0
    assert check.findings == ()
    assert checked(Recording(recording.wave[: 24_000 * 2], 24_000)).told()["findings"][0]["is_problem"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "found"),
    [
        (lambda: Recording(syllables(), 24_000), set()),
        (lambda: Recording(syllables(4.0), 24_000), {"short"}),
        (lambda: Recording(syllables() + hiss(144_000, 0.03), 24_000), {"noisy"}),
        (lambda: Recording(syllables(2.0), 24_000), {"too_short"}),
        (lambda: Recording(syllables(36.0), 24_000), {"too_long"}),
        (lambda: Recording((30 * syllables()).clamp(-1, 1), 24_000), {"clipped"}),
        (lambda: Recording(syllables(rate_hz=8_000), 8_000), {"low_rate"}),
        (lambda: Recording(torch.zeros(144_000), 24_000), {"silent"}),
        (lambda: Recording(torch.zeros(0), 24_000), {"silent", "too_short"}),
    ],
    ids=["good", "short", "noisy", "too short", "too long", "clipped", "low rate", "silent", "empty"],
)
def test_what_is_found_has_a_word_for_programs(recording: Callable[[], Recording], found: set[str]) -> None:
    assert codes(recording()) == found


def test_a_clipped_recording_stays_clipped_when_its_noise_is_reduced() -> None:
    wave = (5.7 * syllables() + hiss(144_000, 0.07)).clamp(-1, 1)
    assert clipped_share(reduced(Recording(wave, 24_000)).wave) < MAX_CLIPPED, "it does not show any more"
    told = check_recording(as_file(wave), denoise=True)
    for version in ("recording", "denoised"):
        found = {each["code"]: each["is_problem"] for each in told[version]["findings"]}
        assert found.get("clipped"), (version, found)
    assert told["denoised"]["denoised_by"] and told["denoised"]["snr_db"] > told["recording"]["snr_db"]


def test_the_quieter_file_is_what_was_checked() -> None:
    _, recording = noisy()
    content = as_file(torch.stack((recording.wave, recording.wave), 1))
    told = check_recording(content, denoise=True)
    assert told["recording"]["channels"] == 2
    again = check_recording(denoised_wav(content))["recording"]
    assert again["channels"] == 1
    for name in ("length_s", "noise_dbfs", "level_dbfs"):
        assert again[name] == pytest.approx(told["denoised"][name], abs=0.3)
