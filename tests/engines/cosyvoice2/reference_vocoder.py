"""A plain HiFT from torch's own parts (weight norm, STFT, interpolation; specification 6), and calls for tests.

The pitch and the phase are float32 like the reference's: a phase grows with the time, and its rounding is heard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, Joint, push_chunks
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Noise, Vocoder

HOP = 480
CACHE = 8


@dataclass
class Parts:
    """Intermediate values of one run, for the vectors."""

    by_name: dict[str, Tensor] = field(default_factory=dict)


class SlowHift:
    def __init__(self, state: dict[str, Tensor], sizes: dict[str, Any]) -> None:
        self.w: dict[str, Tensor] = {}
        for name, tensor in state.items():
            base = name.removesuffix(".parametrizations.weight.original1")
            if base != name:
                self.w[f"{base}.weight"] = torch._weight_norm(
                    tensor, state[f"{base}.parametrizations.weight.original0"], 0
                )
            elif not name.endswith("original0"):
                self.w[name] = tensor
        self.sizes = sizes

    def _conv(self, x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight = self.w[f"{name}.weight"]
        pad = dilation * (weight.shape[2] - 1) // 2
        return F.conv1d(x, weight, self.w[f"{name}.bias"], padding=pad, dilation=dilation)

    def _residual(self, x: Tensor, name: str) -> Tensor:
        for i, dilation in enumerate(self.sizes["resblock_dilation_sizes"][0]):
            y = x
            for part, step in (("1", dilation), ("2", 1)):
                alpha = self.w[f"{name}.activations{part}.{i}.alpha"][None, :, None]
                y = y + torch.sin(y * alpha) ** 2 / (alpha + 1e-9)
                y = self._conv(y, f"{name}.convs{part}.{i}", step)
            x = x + y
        return x

    def f0(self, mel: Tensor) -> Tensor:
        x = mel
        for i in range(5):
            x = F.elu(self._conv(x, f"f0_predictor.condnet.{2 * i}"))
        last = "f0_predictor.classifier"
        return F.linear(x.transpose(1, 2), self.w[f"{last}.weight"], self.w[f"{last}.bias"])[..., 0].abs()

    def sines(self, f0: Tensor, noise: Tensor) -> Tensor:
        """f0 [1, L], noise [1, 480 L, H] -> [1, 480 L, H]."""
        s = self.sizes
        k = torch.arange(1, s["nb_harmonics"] + 2).float()
        rad = (f0[..., None] * k / 24_000) % 1
        phase = torch.cumsum(rad, 1) * 2 * math.pi
        phase = F.interpolate(phase.transpose(1, 2) * HOP, scale_factor=HOP, mode="linear").transpose(1, 2)
        voiced = (f0 > s["nsf_voiced_threshold"]).float().repeat_interleave(HOP, 1)[..., None]
        spread = voiced * s["nsf_sigma"] + (1 - voiced) * s["nsf_alpha"] / 3
        return torch.sin(phase) * s["nsf_alpha"] * voiced + spread * noise.float()

    def source(self, sines: Tensor) -> Tensor:
        at = "m_source.l_linear"
        return torch.tanh(F.linear(sines, self.w[f"{at}.weight"], self.w[f"{at}.bias"])).transpose(1, 2)

    def audio(self, mel: Tensor, source: Tensor, parts: Parts | None = None) -> Tensor:
        s = self.sizes
        n_fft, hop = s["istft_n_fft"], s["istft_hop_len"]
        window = torch.hann_window(n_fft)
        found = torch.stft(source[:, 0], n_fft, hop, window=window, return_complex=True)
        spectrum = torch.cat([found.real, found.imag], 1)
        x = self._conv(mel, "conv_pre")
        kept = {"stft_real": found.real, "stft_imag": found.imag, "conv_pre": x}
        n_stages, n_kernels = len(s["upsample_rates"]), len(s["resblock_kernel_sizes"])
        for i, (rate, kernel) in enumerate(zip(s["upsample_rates"], s["upsample_kernel_sizes"], strict=True)):
            x = F.conv_transpose1d(
                F.leaky_relu(x, s["lrelu_slope"]), self.w[f"ups.{i}.weight"], self.w[f"ups.{i}.bias"], rate,
                (kernel - rate) // 2,
            )  # fmt: skip
            if i == n_stages - 1:
                x = F.pad(x, (1, 0), mode="reflect")
            kept[f"ups{i}"] = x
            stride = math.prod(s["upsample_rates"][i + 1 :])
            at = f"source_downs.{i}"
            pad = stride // 2 if stride > 1 else 0
            part = F.conv1d(spectrum, self.w[f"{at}.weight"], self.w[f"{at}.bias"], stride, pad)
            x = x + self._residual(part, f"source_resblocks.{i}")
            x = torch.stack([self._residual(x, f"resblocks.{i * n_kernels + j}") for j in range(n_kernels)]).mean(0)
        x = self._conv(F.leaky_relu(x, 0.01), "conv_post")
        magnitude, phase = torch.exp(x[:, : n_fft // 2 + 1]), torch.sin(x[:, n_fft // 2 + 1 :])
        kept["mag"], kept["phase"] = magnitude, phase
        if parts is not None:
            parts.by_name.update(kept)
        made = torch.istft(torch.polar(magnitude.clip(max=100), phase), n_fft, hop, window=window)
        return made.clamp(-s["audio_limit"], s["audio_limit"])


class SlowStream:
    """Joins chunks as the reference does (specification 6.1). Each call takes the first rows of the noise table."""

    def __init__(self, hift: SlowHift, table: Tensor) -> None:
        self.hift, self.table = hift, table
        self.mel = self.source = self.speech = None
        self.window = np.hamming(2 * CACHE * HOP)

    def push(self, mel: Tensor, *, last: bool) -> Tensor:
        n = CACHE * HOP
        mel = mel if self.mel is None else torch.cat([self.mel, mel], 2)
        f0 = self.hift.f0(mel)
        source = self.hift.source(self.hift.sines(f0, self.table[:, : HOP * mel.shape[2]]))
        if self.source is not None:
            source[:, :, :n] = self.source
        audio = self.hift.audio(mel, source)
        if self.speech is not None:
            audio = fade(audio, self.speech, self.window)
        if last:
            return audio
        self.mel, self.source, self.speech = mel[:, :, -CACHE:], source[:, :, -n:], audio[:, -n:]
        return audio[:, :-n]


def fade(new: Tensor, tail: Tensor, window: np.ndarray) -> Tensor:
    n = tail.shape[1]
    out = new.numpy().copy()
    out[:, :n] = new.numpy()[:, :n] * window[:n] + tail.numpy() * window[n:]
    return torch.from_numpy(out)


def raise_failure(_: int, error: Exception) -> None:
    """For `push_chunks` where no chunk may fail."""
    raise error


def push(joint: Joint, mel: Tensor, *, last: bool = False) -> Tensor:
    """The next chunk of one utterance, mel [1, 80, n] -> audio [1, samples]."""
    (audio,) = push_chunks([joint], [mel], [last], raise_failure)
    assert audio is not None
    return audio


def n_bytes(joint: ContinuousJoint) -> int:
    """Bytes that the joint holds between chunks, except the phases and voicing of its sines."""
    tensors = [joint._mel, joint._source] + ([joint._tail] if joint._tail is not None else [])
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@torch.inference_mode()
def whole_audio(vocoder: Vocoder, mel: Tensor, noise: Noise) -> Tensor:
    """A whole utterance without chunks: [B, 80, L] -> [B, 480 L]."""
    if not mel.shape[2]:
        return mel.new_zeros(mel.shape[0], 0, dtype=torch.float32)
    source, _ = vocoder.excite(vocoder.f0(mel), 0, None, noise, last=True)
    return vocoder.decode(mel, source, 0, mel.shape[2])


def stretch_mel(mel: Tensor, speed: float) -> Tensor:
    """A whole utterance `speed` times as fast: [B, 80, L] -> [B, 80, int(L / speed)], linear (specification 6.1)."""
    n_frames = int(mel.shape[2] / speed)
    if speed == 1 or not n_frames:
        return mel[:, :, :n_frames]
    return F.interpolate(mel, size=n_frames, mode="linear")
