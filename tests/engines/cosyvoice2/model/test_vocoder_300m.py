"""HiFT with the sizes and the source of CosyVoice-300M, against the formulas of its specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from reference_300m_vocoder import start_cycles, steady_sines
from reference_vocoder import SlowHift, push, whole_audio
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import vocoder_outline
from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import SIZES_300M
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import random_state
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.reach import Reach
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, push_chunks
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder

CONFIG = replace(SIZES_300M["tiny"].vocoder, res_kernels=(3, 7), res_dilations=(1, 3))
N_HARMONICS = CONFIG.n_harmonics + 1
SIZES: dict[str, Any] = {
    "nb_harmonics": CONFIG.n_harmonics,
    "nsf_alpha": CONFIG.sine_amplitude,
    "nsf_sigma": CONFIG.noise_std,
    "nsf_voiced_threshold": CONFIG.voiced_above_hz,
    "upsample_rates": CONFIG.up_rates,
    "upsample_kernel_sizes": CONFIG.up_kernels,
    "istft_n_fft": CONFIG.n_fft,
    "istft_hop_len": CONFIG.hop,
    "resblock_kernel_sizes": CONFIG.res_kernels,
    "resblock_dilation_sizes": [CONFIG.res_dilations],
    "lrelu_slope": CONFIG.leaky_slope,
    "audio_limit": CONFIG.audio_limit,
}


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return random_state("hift.pt", vocoder_outline(CONFIG, {}).shapes, 2)


@pytest.fixture(scope="module")
def vocoder(state: dict[str, Tensor]) -> Vocoder:
    return Vocoder.from_state(CONFIG, state, wide=torch.float64)


def mel_of(n: int, seed: int = 0) -> Tensor:
    return torch.randn(1, 80, n, generator=torch.Generator().manual_seed(seed)) * 2 - 5


def noise_of(seed: int = 4) -> CounterNoise:
    return CounterNoise(seed, N_HARMONICS)


def test_audio_equals_the_reference(state: dict[str, Tensor], vocoder: Vocoder) -> None:
    slow, mel, noise = SlowHift(state, SIZES), mel_of(23), noise_of()
    f0 = slow.f0(mel)
    f0[:, 5:9] = 0.0  # voiceless
    sines = steady_sines(slow, f0, noise(0, 23 * 256), start_cycles(noise(-1, 1)[0, 0]))
    want = slow.source(sines)
    source, _ = vocoder.excite(f0, 0, None, noise, last=True)
    torch.testing.assert_close(source.float(), want, rtol=1e-4, atol=1e-6)
    audio = vocoder.decode(mel, want.double(), 0, 23)
    torch.testing.assert_close(audio, slow.audio(mel, want), rtol=1e-3, atol=1e-5)
    assert audio.shape == (1, 23 * 256) and float(audio.abs().max()) > 0.01


def test_the_pitch_equals_the_reference(state: dict[str, Tensor], vocoder: Vocoder) -> None:
    torch.testing.assert_close(vocoder.f0(mel_of(30)).float(), SlowHift(state, SIZES).f0(mel_of(30)))


@pytest.mark.parametrize("sizes", [[60], [30, 30], [1, 29, 0, 30], [50, 1, 1, 8]])
def test_chunks_give_the_audio_of_the_whole(vocoder: Vocoder, sizes: list[int]) -> None:
    mel = mel_of(60)
    whole = whole_audio(vocoder, mel, noise_of())
    joint = ContinuousJoint(vocoder, noise_of())
    parts, at = [], 0
    for i, n in enumerate(sizes):
        parts.append(push(joint, mel[:, :, at : at + n], last=i == len(sizes) - 1))
        at += n
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-6)


def test_the_reach_is_what_a_sample_sees(vocoder: Vocoder) -> None:
    """The official kernels see 19 frames ahead; here a frame beyond the reach of these sizes changes nothing."""
    assert Reach.of(SIZES_300M["full"].vocoder) == Reach(5, 14, 19)
    n, at = 60, 20
    mel, other = mel_of(n), mel_of(n)
    ahead = vocoder.reach.lookahead
    other[:, :, at + ahead + 1 :] += 1.0
    a, b = (whole_audio(vocoder, each, noise_of()) for each in (mel, other))
    assert torch.equal(a[:, : (at + 1) * 256], b[:, : (at + 1) * 256])
    assert not torch.equal(a, b)


def test_each_utterance_begins_at_phases_of_its_own(vocoder: Vocoder) -> None:
    a, b = (vocoder.excite(torch.full((1, 4), 150.0), 0, None, noise_of(seed), last=True)[1] for seed in (1, 2))
    assert a.cycles[0, 0] == b.cycles[0, 0], "the fundamental begins at 0"
    assert (a.cycles[0, 1:] != b.cycles[0, 1:]).all()


def test_streams_in_a_batch_equal_each_alone(vocoder: Vocoder) -> None:
    mels = [mel_of(30, seed) for seed in (1, 2)]
    alone = [push(ContinuousJoint(vocoder, noise_of(i)), mel, last=True) for i, mel in enumerate(mels)]
    joints = [ContinuousJoint(vocoder, noise_of(i)) for i in range(2)]

    def fail(_: int, error: Exception) -> None:
        raise error

    together = push_chunks(joints, mels, [True, True], fail, batched=True)
    for one, other in zip(alone, together, strict=True):
        assert other is not None
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)
