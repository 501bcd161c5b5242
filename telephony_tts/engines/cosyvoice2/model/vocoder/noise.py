"""The noise of the source: a function of the utterance's seed and the sample's position, whatever the chunks are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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

    def numbers(self, first: int) -> list[int]:
        """What `NoiseRows` needs of an utterance to make its noise from sample `first` on."""
        return [_signed(each) for each in (first * self._n_channels, self._key1, self._key2)]


class NoiseRows:
    """The noise of several utterances, each from a sample of its own on, which counts as sample 0 here.

    All that differs between utterances lies in a tensor: `CounterNoise.numbers` of each. So work that is recorded as a
    graph makes other noise once the tensor has other numbers.
    """

    def __init__(self, numbers: Tensor, n_channels: int) -> None:
        """`numbers`: int32 [B, 3]"""
        self.numbers = numbers
        self._begin, self._key1, self._key2 = numbers[:, :, None].unbind(1)
        self._n_channels = n_channels

    def __call__(self, first: int, n: int) -> Tensor:
        """[B, n, channels]"""
        bits = torch.arange(n * self._n_channels, dtype=torch.int32, device=self._begin.device)
        bits = bits.add_(_signed(first * self._n_channels)).add(self._begin).bitwise_xor_(self._key1)
        return _normal(bits, self._key2).view(len(bits), n, self._n_channels)


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
    """`_mix_` of one number. As tensors it is 25 operations for each utterance."""
    x &= _U32
    x = (x ^ x >> 16) * 0x7FEB352D & _U32
    x = (x ^ x >> 15) * 0x846CA68B & _U32
    return x ^ x >> 16
