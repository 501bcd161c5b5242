"""Relative positions of attention, for the flow's encoders and for the language model of CosyVoice-300M.

A query i and a key j add q_i . W r(i - j) to their score. r of a distance is a row of sines and cosines (5.1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def relative_sinusoids(n_past: int, n: int, d_model: int, device: torch.device) -> Tensor:
    """r [T + n - 1, d_model] of the signed distances query minus key, T = n_past + n: from T - 1 down to 1 - n.

    Computed in float32 whatever the weights are: a distance of 2049 has no float16 (specification 5.1).
    """
    distance = torch.arange(n_past + n - 1, -n, -1, dtype=torch.float32, device=device)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float32, device=device)
    angle = distance * torch.exp(even * -(math.log(10_000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def by_key(x: Tensor) -> Tensor:
    """[B, H, N, T + N - 1] over distances as above -> [B, H, N, T] over keys.

    Row a holds key j at column N - 1 - a + j, so that in memory every row begins T + N - 2 after the one before.
    """
    n, n_distances = x.shape[-2:]
    n_keys = n_distances - n + 1
    return x.flatten(-2)[..., n - 1 :].unfold(-1, n_keys, max(1, n_distances - 1))
