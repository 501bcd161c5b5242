"""The features that replace torchaudio's equal torchaudio's own, where one is installed and loads (docs/adr/0017)."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from telephony_tts.engines.cosyvoice2.voices.features import TOKEN_RATE_HZ, kaldi_fbank, resample

torch.set_num_threads(1)


def torchaudio_module(name: str) -> ModuleType:
    """The module torchaudio.`name`; skips the test where torchaudio is missing or does not load."""
    try:
        return importlib.import_module(f"torchaudio.{name}")
    except ImportError as error:
        pytest.skip(f"torchaudio is not installed: {error}")
    except OSError as error:
        # Its extension is linked against one build of PyTorch: the wheel for CUDA needs libc10_cuda.so.
        pytest.skip(f"torchaudio does not load with PyTorch {torch.__version__}: {error.__cause__ or error}")


@pytest.fixture(scope="module")
def wave() -> torch.Tensor:
    """A second of a gliding tone with noise, at 44.1 kHz, in [-1, 1]."""
    t = torch.arange(44_100) / 44_100
    noise = torch.randn(t.numel(), generator=torch.Generator().manual_seed(1))
    return 0.5 * torch.sin(2 * torch.pi * (100 + 900 * t) * t) + 0.05 * noise


@pytest.mark.parametrize(("from_hz", "to_hz"), [(44_100, 16_000), (44_100, 24_000), (16_000, 24_000), (48_000, 16_000)])
def test_resampling_equals_torchaudio(wave: torch.Tensor, from_hz: int, to_hz: int) -> None:
    expected = torchaudio_module("functional").resample(wave, from_hz, to_hz)
    got = resample(wave, from_hz, to_hz)
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) < 1e-5


def test_the_filter_bank_equals_torchaudio(wave: torch.Tensor) -> None:
    kaldi = torchaudio_module("compliance.kaldi")
    wave = wave[:TOKEN_RATE_HZ]
    expected = kaldi.fbank(wave[None], num_mel_bins=80, dither=0.0, sample_frequency=TOKEN_RATE_HZ)
    got = kaldi_fbank(wave)
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) < 1e-4
