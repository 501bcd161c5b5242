"""The noise of the source: a function of the utterance's seed and the sample's position, whatever the chunks are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent

_U32 = 0xFFFFFFFF


class CounterNoise:
    """Standard normal noise that depends on (seed, position, channel) only, so chunks do not change it.

    A 32-bit mixing function of the counter with two keys gives 23 uniform bits. The inverse normal distribution turns
    them into a value of at most 5.2 standard deviations. All devices agree up to the last bits of `erfinv`.
    """

    def __init__(self, seed: int, n_channels: int, device: torch.device | str = "cpu") -> None:
        self._n_channels = n_channels
        self._device = torch.device(device)
        low, high = seed & _U32, seed >> 32 & _U32
        self._key1 = _mix_int(low + 0x9E3779B9 & _U32)
        self._key2 = _mix_int(self._key1 ^ high)

    def __call__(self, first: int, n: int) -> Tensor:
        """The noise of samples first .. first + n: [1, n, channels] float32."""
        bits = torch.arange(n * self._n_channels, dtype=torch.int32, device=self._device)
        bits.add_(_signed(first * self._n_channels)).bitwise_xor_(_signed(self._key1))
        return _normal(bits, _signed(self._key2)).view(1, n, self._n_channels)

    @staticmethod
    def batch(noises: Sequence[CounterNoise], firsts: Sequence[int], n: int) -> Tensor:
        """[B, n, channels]: row b is `noises[b](firsts[b], n)`. All must be on one device."""
        n_channels, device = noises[0]._n_channels, noises[0]._device
        keyed = [(first * n_channels, each._key1, each._key2) for each, first in zip(noises, firsts, strict=True)]
        numbers = sent([[_signed(x) for x in row] for row in keyed], device, torch.int32)
        begin, key1, key2 = numbers.T[..., None]
        bits = torch.arange(n * n_channels, dtype=torch.int32, device=device).add(begin).bitwise_xor_(key1)
        return _normal(bits, key2).view(len(noises), n, n_channels)


def _normal(bits: Tensor, key2: Tensor | int) -> Tensor:
    """Positions in the sequence with the first key applied, int32 -> standard normal float32. Changes `bits`."""
    _mix_(_mix_(bits).add_(key2))
    uniform = _shifted(bits, 9).float().add_(0.5).mul_(2.0**-22).sub_(1.0)  # (-1, 1), exact, never an end
    return uniform.erfinv_().mul_(math.sqrt(2))


def _mix_(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers, in place, in which every bit affects all others. Products wrap."""
    x.bitwise_xor_(_shifted(x, 16)).mul_(_signed(0x7FEB352D))
    x.bitwise_xor_(_shifted(x, 15)).mul_(_signed(0x846CA68B))
    return x.bitwise_xor_(_shifted(x, 16))


def _shifted(x: Tensor, n: int) -> Tensor:
    """A logical shift right of 32 bits by n: zeros come in from above whatever the sign is."""
    return (x >> n).bitwise_and_((1 << 32 - n) - 1)


def _signed(x: int) -> int:
    """The int32 with the same lowest 32 bits."""
    return ((x & _U32) ^ 1 << 31) - (1 << 31)


def _mix_int(x: int) -> int:
    return int(_mix_(torch.tensor(_signed(x), dtype=torch.int32)).item()) & _U32
