"""Speech rate: stretches the mel in time while it streams."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class MelStretch:
    """Makes mel `speed` times as fast by linear interpolation between frame centres; the pitch stays.

    Block by block it gives the frames of `F.interpolate` over the whole utterance. Only the rate differs: here it is
    exact, and there the length is rounded to whole frames.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._n_out = 0
        self._first = 0
        """Index of the first frame of `_mel`."""
        self._mel: Tensor | None = None

    def push(self, mel: Tensor, *, last: bool) -> Tensor:
        """mel [1, 80, n] -> [1, 80, k]; in total int(N / speed) frames for N."""
        if self._speed == 1.0:
            return mel
        self._mel = mel if self._mel is None else torch.cat([self._mel, mel], 2)
        n_known = self._first + self._mel.shape[2]
        # Output frame j lies at (j + 0.5) * speed - 0.5 and needs the input frames on both sides.
        until = int(n_known / self._speed) if last else math.floor((n_known - 0.5) / self._speed - 0.5)
        until = max(until, self._n_out)
        # Computed on the mel's device: sending the positions there would make the host wait.
        at = torch.arange(self._n_out, until, dtype=torch.float64, device=mel.device)
        at = ((at + 0.5) * self._speed - 0.5).clamp(0, max(n_known - 1, 0))
        low = at.floor().long()
        high = (low + 1).clamp(max=max(n_known - 1, 0))
        weight = (at - low).to(mel)
        low, high = low - self._first, high - self._first
        out = self._mel[:, :, low] * (1.0 - weight) + self._mel[:, :, high] * weight
        self._n_out = until
        seen = max(0, math.floor((until + 0.5) * self._speed - 0.5))
        n_drop = min(max(0, seen - self._first), self._mel.shape[2])
        self._mel = self._mel[:, :, n_drop:].clone()
        self._first += n_drop
        return out
