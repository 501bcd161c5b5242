"""Features of a voice's reference recording (specification 3.5). Waveforms are float32 [N] in [-1, 1].

Three spectra and a resampler. Each equals the one on which its network was trained, so each has its own window,
padding, floor and scale. Tables are computed when they are needed and not kept, because a voice is made once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from telephony_tts.engines.cosyvoice2.model.config import N_MELS

MEL_RATE_HZ = 24_000
MEL_N_FFT, MEL_HOP = 1920, 480
MEL_TOP_HZ = 8000.0

TOKEN_RATE_HZ = 16_000
WHISPER_N_FFT, WHISPER_HOP, N_WHISPER_MELS = 400, 160, 128

KALDI_WINDOW, KALDI_HOP, KALDI_N_FFT, N_KALDI_MELS = 400, 160, 512, 80
KALDI_LOW_HZ = 20.0
PREEMPHASIS = 0.97

SINC_ZEROS, SINC_ROLLOFF = 6, 0.99

# The Slaney mel scale: linear to 1 kHz, logarithmic above.
_HZ_PER_MEL = 200.0 / 3.0
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27.0


def flow_mel(wave: Tensor) -> Tensor:
    """Waveform [N] at 24 kHz -> log-mel [F, 80], F = floor(N / 480): the prompt of the flow."""
    edge = (MEL_N_FFT - MEL_HOP) // 2
    padded = F.pad(wave[None], (edge, edge), mode="reflect")[0]
    magnitude = torch.sqrt(_power(padded, MEL_N_FFT, MEL_HOP) + 1e-9)
    mel = slaney_filters(MEL_RATE_HZ, MEL_N_FFT, N_MELS, MEL_TOP_HZ) @ magnitude
    return torch.log(torch.clamp(mel, min=1e-5)).T


def whisper_mel(wave: Tensor) -> Tensor:
    """Waveform [N] at 16 kHz -> Whisper's log-mel [128, floor(N / 160)]: the input of the speech tokenizer."""
    edge = WHISPER_N_FFT // 2
    padded = F.pad(wave[None], (edge, edge), mode="reflect")[0]
    power = _power(padded, WHISPER_N_FFT, WHISPER_HOP)[:, :-1]
    mel = slaney_filters(TOKEN_RATE_HZ, WHISPER_N_FFT, N_WHISPER_MELS, TOKEN_RATE_HZ / 2) @ power
    log = torch.log10(torch.clamp(mel, min=1e-10))
    return (torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0


def kaldi_fbank(wave: Tensor) -> Tensor:
    """Waveform [N] at 16 kHz -> Kaldi's log filter bank [T, 80], T = 1 + floor((N - 400) / 160): for the speaker."""
    frames = wave.unfold(0, KALDI_WINDOW, KALDI_HOP)
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    window = torch.hann_window(KALDI_WINDOW, periodic=False).pow(0.85)  # "povey"
    frames = F.pad((frames - PREEMPHASIS * before) * window, (0, KALDI_N_FFT - KALDI_WINDOW))
    power = torch.fft.rfft(frames).abs().square()
    floor = torch.finfo(torch.float32).eps
    return torch.log(torch.clamp(power @ _kaldi_filters().T, min=floor))


def centred(features: Tensor) -> Tensor:
    """Features [T, C] minus their mean over time."""
    return features - features.mean(dim=0, keepdim=True)


def resample(wave: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Waveform [N] -> [ceil(N * to / from)] at another rate, by a windowed sinc with the reference's defaults.

    The server's own resampler would give the networks other features than those on which they were trained.
    """
    divisor = math.gcd(from_hz, to_hz)
    n_in, n_out = from_hz // divisor, to_hz // divisor
    if n_in == n_out:
        return wave
    cutoff = min(n_in, n_out) * SINC_ROLLOFF
    reach = math.ceil(SINC_ZEROS * n_in / cutoff)
    taps = torch.arange(-reach, reach + n_in, dtype=torch.float64) / n_in
    phases = -torch.arange(n_out, dtype=torch.float64)[:, None] / n_out
    x = torch.clamp((taps + phases) * cutoff, -SINC_ZEROS, SINC_ZEROS)
    window = torch.cos(x * math.pi / SINC_ZEROS / 2.0).square()
    kernel = (torch.sinc(x) * window * (cutoff / n_in)).float()  # [n_out, taps]
    padded = F.pad(wave[None, None], (reach, reach + n_in))
    parts = F.conv1d(padded, kernel[:, None], stride=n_in)  # [1, n_out, blocks]
    return parts[0].T.reshape(-1)[: math.ceil(wave.numel() * n_out / n_in)]


def _power(wave: Tensor, n_fft: int, hop: int) -> Tensor:
    """Power spectrum [n_fft / 2 + 1, T] with a periodic Hann window and without padding."""
    window = torch.hann_window(n_fft)
    spectrum = torch.stft(wave, n_fft, hop, window=window, center=False, return_complex=True)
    return spectrum.real.square() + spectrum.imag.square()


def slaney_filters(rate_hz: int, n_fft: int, n_mels: int, top_hz: float) -> Tensor:
    """Triangles of equal area on the Slaney mel scale from 0 Hz, [n_mels, n_fft / 2 + 1]."""
    top_mel = _LOG_FROM_MEL + math.log(top_hz / _LOG_FROM_HZ) / _LOG_STEP
    mels = torch.linspace(0.0, top_mel, n_mels + 2, dtype=torch.float64)
    log = _LOG_FROM_HZ * torch.exp(_LOG_STEP * (mels - _LOG_FROM_MEL))
    edges = torch.where(mels < _LOG_FROM_MEL, mels * _HZ_PER_MEL, log)
    bins = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * rate_hz / n_fft
    filters = _triangles(edges, bins)
    return (filters * (2.0 / (edges[2:] - edges[:-2]))[:, None]).float()


def _kaldi_filters() -> Tensor:
    """Triangles of height 1 on Kaldi's mel scale from 20 Hz to Nyquist, [80, 257]. The Nyquist bin has no weight.

    In float32 as in the reference, because the rounding of the edges decides the bins of small weight.
    """
    low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (KALDI_LOW_HZ, TOKEN_RATE_HZ / 2))
    edges = low + torch.arange(N_KALDI_MELS + 2, dtype=torch.float32) * ((high - low) / (N_KALDI_MELS + 1))
    hz = torch.arange(KALDI_N_FFT // 2, dtype=torch.float32) * (TOKEN_RATE_HZ / KALDI_N_FFT)
    return F.pad(_triangles(edges, 1127.0 * torch.log(1.0 + hz / 700.0)), (0, 1))


def _triangles(edges: Tensor, bins: Tensor) -> Tensor:
    """Triangle m rises from edges[m] to 1 at edges[m + 1] and falls to edges[m + 2]: [M + 2] and [K] to [M, K]."""
    left, peak, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.clamp(torch.minimum((bins - left) / (peak - left), (right - bins) / (right - peak)), min=0.0)
