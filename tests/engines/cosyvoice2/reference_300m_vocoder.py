"""The source of HiFT in CosyVoice-300M, slowly (specification 300M, 7): the phase is summed sample by sample.

The rest of the network is `reference_vocoder.SlowHift`, which has no rate of its own.
"""

from __future__ import annotations

import math

import torch
from reference_vocoder import SlowHift
from torch import Tensor

HOP, RATE_HZ = 256, 22_050


def steady_sines(hift: SlowHift, f0: Tensor, noise: Tensor, starts: Tensor) -> Tensor:
    """f0 [1, L], noise [1, 256 L, H], the phase in cycles at which each harmonic begins [H] -> [1, 256 L, H]."""
    s = hift.sizes
    pitch = f0.double().repeat_interleave(HOP, 1)[..., None]
    k = torch.arange(1, s["nb_harmonics"] + 2).double()
    cycles = (pitch * k / RATE_HZ).cumsum(1) + starts.double()
    voiced = (pitch > s["nsf_voiced_threshold"]).double()
    spread = voiced * s["nsf_sigma"] + (1 - voiced) * s["nsf_alpha"] / 3
    return (torch.sin(2 * math.pi * cycles) * s["nsf_alpha"] * voiced + spread * noise).float()


def start_cycles(noise: Tensor) -> Tensor:
    """Uniform from standard normal [H], by their distribution function; the fundamental begins at 0."""
    uniform = torch.distributions.Normal(0.0, 1.0).cdf(noise.double()) - 0.5
    return torch.cat([torch.zeros(1).double(), uniform[1:]])
