"""The layers of HiFT, and the reader that takes their weights out of `hift.pt` (specification 2.3, 6).

Activations are rows [B, T, C]: the channels of one column lie side by side in memory. So a convolution is a matrix
product without a transpose before or after it, and a range of columns is a view. On a CPU this is 10 to 40 % faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.gpu_kernels import kernels_of
from telephony_tts.engines.cosyvoice2.model.kernel_conv import KernelConv
from telephony_tts.engines.cosyvoice2.model.state import State, StateReader
from telephony_tts.engines.cosyvoice2.model.vocoder.bfloat16_layers import Bfloat16SnakeConv, fits
from telephony_tts.engines.cosyvoice2.model.vocoder.reach import block_reach

WEIGHT_G, WEIGHT_V = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
"""Names of a weight-normed weight in today's torch: the length along the first dimension, and the direction."""
CHANNELS = 8
"""On a GPU, cuDNN has fast kernels in half precision for multiples of this. Convolutions with the 18 channels of the
spectrum took nine tenths of the time of 32 streams on an H200."""


def _load_kernels() -> ModuleType:
    from telephony_tts.engines.cosyvoice2.model.vocoder import triton_kernels

    return triton_kernels


def vocoder_kernels(device: torch.device) -> ModuleType | None:
    """`vocoder.triton_kernels` if they run on the device."""
    return kernels_of(device, _load_kernels)


def on_accelerator(weight: Tensor) -> bool:
    """Whether weights are laid out as a GPU likes them."""
    return weight.device.type not in ("cpu", "meta")


@dataclass(frozen=True, slots=True)
class VocoderConv:
    """A convolution: weight [out, in, 1, k], which lies in memory as [out, k, in], and bias [out].

    On an accelerator both numbers of channels are padded with zeros to a multiple of `CHANNELS`."""

    weight: Tensor
    bias: Tensor
    d_out: int
    """Channels of the output without the padding"""
    dilation: int = 1
    stride: int = 1
    kernels: KernelConv | None = None
    """The same by the kernels, where they can do it."""

    @property
    def reach(self) -> int:
        """Columns that an output column sees on each side"""
        return (self.weight.shape[3] - 1) * self.dilation // 2

    def __call__(self, x: Tensor, left: int, right: int) -> Tensor:
        """x [B, T, in] with `left` zeros before it and `right` zeros after it -> [B, T', out] in the weight's dtype."""
        if self.kernels is not None:
            return self.kernels(x, left, right)
        n_padding = self.weight.shape[1] - x.shape[2]
        if left != right or n_padding:
            x, left = F.pad(x, (0, n_padding, left, right)), 0
        x = x.to(self.weight.dtype).transpose(1, 2).unsqueeze(2)
        y = F.conv2d(x, self.weight, self.bias, (1, self.stride), (0, left), (1, self.dilation))
        y = y.squeeze(2).transpose(1, 2)
        return y if y.shape[2] == self.d_out else y[:, :, : self.d_out]

    def bare(self, x: Tensor) -> Tensor:
        """x [B, T, in] in the weight's dtype, with the zeros around it and in the padding of its channels -> [B, T',
        out], padding included, without the bias."""
        x = x.transpose(1, 2).unsqueeze(2)
        y = F.conv2d(x, self.weight, None, (1, self.stride), 0, (1, self.dilation))
        return y.squeeze(2).transpose(1, 2).contiguous()  # without a copy, as the weight's channels lie side by side


@dataclass(frozen=True, slots=True)
class UpsampleConv:
    """A transposed convolution of stride `rate`, as a convolution with `rate` columns of output per column of input."""

    conv: VocoderConv
    """Weight [rate out, in, 1, ceil(k / rate)]. Taps beyond the transposed kernel are zero."""
    rate: int
    pad: int
    """Columns that are dropped at each end of the transposed convolution"""

    def __call__(self, x: Tensor, first: int, wanted_first: int, wanted_until: int) -> Tensor:
        """Input columns first .. first + T, [B, T, in] -> output columns wanted_first .. wanted_until, [B, n, out].

        Input columns beyond these are zero.
        """
        y = self.conv(x, *self.missing(first, x.shape[1], wanted_first, wanted_until))
        return self.wanted(y, wanted_first, wanted_until)

    def missing(self, first: int, n: int, wanted_first: int, wanted_until: int) -> tuple[int, int]:
        """The zeros that the convolution needs before and after n input columns from `first` on."""
        low, high = (wanted_first + self.pad) // self.rate, (wanted_until - 1 + self.pad) // self.rate + 1
        return first - (low - self.conv.weight.shape[3] + 1), high - first - n

    def wanted(self, y: Tensor, wanted_first: int, wanted_until: int) -> Tensor:
        """What the convolution makes of these [B, T', rate out] -> the wanted columns [B, n, out]."""
        y = y[:, :, : self.conv.d_out].flatten(1).view(y.shape[0], y.shape[1] * self.rate, -1)
        skip = (wanted_first + self.pad) % self.rate
        return y[:, skip : skip + wanted_until - wanted_first]


@dataclass(frozen=True, slots=True)
class VocoderLinear:
    """Weight [out, in] and bias [out]. A layer of the pitch has a kernel too: weight [out, in, k]."""

    weight: Tensor
    bias: Tensor
    kernels: KernelConv | None = None
    """A layer of the pitch by the kernels, where they can do it."""
    of_windows: Tensor | None = None
    """A layer of the pitch on an accelerator: the weight [k in, out] of a frame's neighbours, oldest first. In float64
    a matrix product takes a fraction of the time of cuDNN's convolution."""

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Snake:
    """x + sin(alpha x)^2 / (alpha + 1e-9), alpha [C] per channel."""

    alpha: Tensor
    inverse: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> a new tensor [B, T, C] in the dtype of alpha."""
        wave = sine_(x * self.alpha).square_()
        return torch.addcmul(x, wave, self.inverse, out=wave)


def sine_(x: Tensor) -> Tensor:
    """The sine, in place. In float32 on a CPU it is numpy's, which takes two fifths of the time of torch's."""
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        return x.sin_()
    values = x.numpy()
    with np.errstate(invalid="ignore"):  # the sine of an infinite value is NaN
        np.sin(values, out=values)
    return x


@dataclass(frozen=True, slots=True)
class ResidualStep:
    """x + conv2(snake(conv1_dilated(snake(x))))."""

    snake1: Snake
    conv1: VocoderConv
    snake2: Snake
    conv2: VocoderConv
    kernels: tuple[Bfloat16SnakeConv, Bfloat16SnakeConv] | None = None
    """Both halves by the kernels, where they can do it."""


class ContextShare(NamedTuple):
    """What a convolution of a residual block uses up of the context."""

    left: int
    right: int
    zeros: tuple[int, int]
    """Where the signal ends, so many stand for the context that is missing on each side."""


@dataclass(frozen=True, slots=True)
class ResBlock:
    """One residual step for each dilation."""

    steps: tuple[ResidualStep, ...]
    reach: int

    def __call__(self, x: Tensor, left: int = 0, right: int = 0) -> Tensor:
        """x [B, T, C], whose first `left` and last `right` columns are context -> [B, T - left - right, C].

        If a side has less context than `reach`, the signal ends there and zeros follow. Each convolution uses up its
        share of the context, so that the last one computes only the wanted columns.
        """
        shares = self.shares(left, right)
        for i, step in enumerate(self.steps):
            h, begin, end = x, 0, 0
            for half, (snake, conv) in enumerate(((step.snake1, step.conv1), (step.snake2, step.conv2))):
                share = shares[2 * i + half]
                begin, end = begin + share.left, end + share.right
                if step.kernels is None:
                    h = conv(snake(h), *share.zeros)
                else:
                    h = step.kernels[half](h, *share.zeros, x[:, begin : x.shape[1] - end] if half else None)
            x = h if step.kernels is not None else x[:, begin : x.shape[1] - end] + h
        return x

    def shares(self, left: int, right: int) -> list[ContextShare]:
        """Of each convolution, for the arguments of a call."""
        shares, after = [], self.reach
        for conv in (conv for step in self.steps for conv in (step.conv1, step.conv2)):
            after -= conv.reach
            drop_left, drop_right = max(0, left - after), max(0, right - after)
            shares.append(ContextShare(drop_left, drop_right, (conv.reach - drop_left, conv.reach - drop_right)))
            left, right = left - drop_left, right - drop_right
        return shares

    def seen_first(self, kernels: ModuleType, at: int, n: int, left: int, right: int) -> Any:
        """What the first convolution sees of a sum, `triton_kernels.Seen`. The block's n columns begin at column `at`
        of the sum."""
        return self._seen(kernels, 0, self.shares(left, right), n, at)

    def fused(self, kernels: ModuleType, x: Tensor, seen: Tensor, left: int, right: int) -> tuple[list[Tensor], Tensor]:
        """The same with the kernels of a GPU, a convolution and a launch for each half of a step: x [B, T, C or more],
        and what the first convolution sees of it -> the parts whose sum is the result, and their bias."""
        shares = self.shares(left, right)
        for i, step in enumerate(self.steps):
            sizes = step.conv1.d_out, step.conv1.weight.shape[1], step.conv1.weight.dtype
            h = step.conv1.bare(seen)
            middle = self._seen(kernels, 2 * i + 1, shares, h.shape[1])
            _, (seen,) = kernels.joined([h], [step.conv1.bias], h.shape[1], *sizes, [middle])
            h = step.conv2.bare(seen)
            first, second = shares[2 * i : 2 * i + 2]
            parts = [h, x[:, first.left + second.left : x.shape[1] - first.right - second.right]]
            if i + 1 < len(self.steps):
                after = self._seen(kernels, 2 * i + 2, shares, h.shape[1])
                x, (seen,) = kernels.joined(
                    parts, [step.conv2.bias], h.shape[1], *sizes, [after], total=step.snake1.alpha.dtype
                )
        return parts, step.conv2.bias

    def _seen(self, kernels: ModuleType, i: int, shares: list[ContextShare], n: int, at: int = 0) -> Any:
        """What convolution i sees of n columns, which begin at column `at` of a sum."""
        step = self.steps[i // 2]
        snake = step.snake2 if i % 2 else step.snake1
        before, after = shares[i].zeros
        assert not (at and before), "zeros stand for what lies beyond the signal"
        return kernels.Seen(before - at, before + n + after, snake.alpha, snake.inverse)


class VocoderReader(StateReader):
    """Reads layers and folds weight norm. Each layer gets the dtype of its part of the network."""

    def __init__(
        self,
        state: State,
        dtype: torch.dtype | None = None,
        sums: torch.dtype | None = None,
        wide: torch.dtype = torch.float32,
        *,
        outline: bool = False,
    ) -> None:
        """Number types as in `Vocoder.from_state`."""
        super().__init__(state, outline=outline)
        self._blocks = dtype or self.dtype
        self._sums = sums or self._blocks
        self._wide = wide

    def normed_conv(self, name: str, shape: tuple[int, int, int]) -> VocoderConv:
        """A weight-normed convolution in the dtype of the residual sums."""
        return self._by_kernels(_rowwise(*self._folded(name, shape), self._sums))

    def conv(self, name: str, shape: tuple[int, int, int], stride: int) -> VocoderConv:
        """A plain convolution in the dtype of the residual sums."""
        weight, bias = self._float(f"{name}.weight", *shape), self._float(f"{name}.bias", shape[0])
        return self._by_kernels(_rowwise(weight, bias, self._sums, stride=stride))

    def pitch_layer(self, name: str, shape: tuple[int, int, int]) -> VocoderLinear:
        """A weight-normed convolution, weight [out, in, k], laid out as it was trained.

        Another order of rounding moves the pitch by 1e-4 Hz (`_folded`).
        """
        weight, bias = (each.to(self._wide) for each in self._folded(name, shape))
        kernels = KernelConv(weight, bias) if self._fits(weight) else None
        of_windows = weight.permute(2, 1, 0).flatten(0, 1).contiguous() if on_accelerator(weight) else None
        return VocoderLinear(weight, bias, kernels, of_windows)

    def up(self, name: str, shape: tuple[int, int, int], rate: int) -> UpsampleConv:
        """A transposed convolution, weight [in, out, k].

        Column rate q + p of its output, before the ends are dropped, is the sum over j of w[:, :, p + rate j] times
        column q - j of its input.
        """
        weight, bias = self._folded(name, shape, transposed=True)
        d_in, d_out, kernel = shape
        if not self.outline:
            n_taps = -(-kernel // rate)
            taps = F.pad(weight, (0, n_taps * rate - kernel)).view(d_in, d_out, n_taps, rate)
            weight = taps.flip(2).permute(3, 1, 0, 2).reshape(rate * d_out, d_in, n_taps)
            bias = bias.repeat(rate)
        return UpsampleConv(self._by_kernels(_rowwise(weight, bias, self._sums)), rate, (kernel - rate) // 2)

    def linear(self, name: str, shape: tuple[int, int]) -> VocoderLinear:
        weight, bias = self._float(f"{name}.weight", *shape), self._float(f"{name}.bias", shape[0])
        return VocoderLinear(weight.to(self._wide), bias.to(self._wide))

    def snake(self, name: str, d: int) -> Snake:
        alpha = self._float(f"{name}.alpha", d)
        inverse = alpha if self.outline else (alpha + 1e-9).reciprocal()
        return Snake(alpha.to(self._sums), inverse.to(self._sums))

    def block(self, name: str, d: int, kernel: int, dilations: tuple[int, ...]) -> ResBlock:
        def conv(part: str, dilation: int) -> VocoderConv:
            return _rowwise(*self._folded(f"{name}.{part}", (d, d, kernel)), self._blocks, dilation)

        steps = tuple(
            _with_kernels(
                ResidualStep(
                    self.snake(f"{name}.activations1.{i}", d),
                    conv(f"convs1.{i}", dilation),
                    self.snake(f"{name}.activations2.{i}", d),
                    conv(f"convs2.{i}", 1),
                )
            )
            for i, dilation in enumerate(dilations)
        )
        return ResBlock(steps, block_reach(kernel, dilations))

    def _by_kernels(self, conv: VocoderConv) -> VocoderConv:
        """With the kernels' convolution, if they can do it."""
        if not self._fits(conv.weight):
            return conv
        return replace(conv, kernels=KernelConv(conv.weight[:, :, 0], conv.bias, conv.stride))

    def _fits(self, weight: Tensor) -> bool:
        """Whether the kernels compute a convolution with this weight, beside blocks in bfloat16."""
        is_mixed = self._blocks is torch.bfloat16 and self._sums is torch.float32
        return is_mixed and not self.outline and KernelConv.fits(weight)

    def _float(self, name: str, *shape: int) -> Tensor:
        return self(name, *shape).float()

    def _folded(self, name: str, shape: tuple[int, int, int], *, transposed: bool = False) -> tuple[Tensor, Tensor]:
        """Weight and bias in float32 with the weight norm folded: w = g v / |v| (specification 2.3).

        The norm |v| is over all dimensions but the first. The operator is the one that trained the weights: another
        order of rounding moves the pitch by 1e-4 Hz, and with it all phases.
        """
        weight, length = self._float(name + WEIGHT_V, *shape), self._float(name + WEIGHT_G, shape[0], 1, 1)
        if not self.outline:
            weight = torch.ops.aten._weight_norm(weight, length, 0)
        return weight, self._float(f"{name}.bias", shape[1] if transposed else shape[0])


def _with_kernels(step: ResidualStep) -> ResidualStep:
    """With the kernels' convolutions, if it is on a CPU, has convolutions in bfloat16 and sums in float32, and fits."""
    weight = step.conv1.weight
    is_mixed = weight.dtype is torch.bfloat16 and step.snake1.alpha.dtype is torch.float32
    if not is_mixed or weight.device.type != "cpu" or not fits(weight.shape[0]):
        return step
    first, second = (
        Bfloat16SnakeConv((snake.alpha, snake.inverse), conv.weight[:, :, 0], conv.bias, conv.dilation)
        for snake, conv in ((step.snake1, step.conv1), (step.snake2, step.conv2))
    )
    return replace(step, kernels=(first, second))


def _rowwise(weight: Tensor, bias: Tensor, dtype: torch.dtype, dilation: int = 1, stride: int = 1) -> VocoderConv:
    """Weight [out, in, k] and bias [out]."""
    d_out, d_in, _ = weight.shape
    if on_accelerator(weight):
        weight = F.pad(weight, (0, 0, 0, -d_in % CHANNELS, 0, -d_out % CHANNELS))
        bias = F.pad(bias, (0, -d_out % CHANNELS))
    laid_out = weight.to(dtype)[:, :, None].contiguous(memory_format=torch.channels_last)
    return VocoderConv(laid_out, bias.to(dtype), d_out, dilation, stride)
