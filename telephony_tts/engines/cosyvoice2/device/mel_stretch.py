"""Changes the speed of speech: stretches the mel in time, block by block."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class MelStretch:
    """Makes the mel `speed` times as fast by linear interpolation between frame centres. The pitch does not change.

    The blocks together equal the interpolation of the whole utterance (specification 6.1), except that the reference
    rounds the rate so that the number of frames is whole.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._n_out = 0
        self._first = 0
        """The index of the first frame in `_mel`"""
        self._mel: Tensor | None = None

    def push(self, mel: Tensor, *, last: bool) -> Tensor:
        """The next block, [1, 80, n] -> [1, 80, k]. All blocks together give int(N / speed) frames."""
        if self._speed == 1.0:
            return mel
        self._mel = mel if self._mel is None else torch.cat([self._mel, mel], 2)
        n_known = self._first + self._mel.shape[2]
        # Output frame j lies at (j + 0.5) * speed - 0.5 of the input and needs the frames on both sides of it.
        until = int(n_known / self._speed) if last else math.floor((n_known - 0.5) / self._speed - 0.5)
        until = max(until, self._n_out)
        # Made on the mel's device, because sending the positions there would make the host wait.
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
