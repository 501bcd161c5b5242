"""The pieces of HiFT's convolutions, and their reading from `hift.pt` by official key names (specification 2.3, 6).

Activations are rows [B, T, C], a column of sound in one piece of memory: the convolutions are then matrix products as
they stand, nothing is transposed between them, and a piece of time is a view. On a CPU that is 10 to 40 % faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.vocoder.reach import block_reach

PREFIX = "generator."
"""Of every key in a checkpoint of the adversarial training; what lacks it there is the discriminator's."""
NOT_WEIGHTS = frozenset({"epoch", "step"})


@dataclass(frozen=True, slots=True)
class Conv:
    """Weight [out, in, 1, k], in memory [out, k, in], and bias [out]."""

    weight: Tensor
    bias: Tensor
    dilation: int = 1
    stride: int = 1

    @property
    def reach(self) -> int:
        """Columns seen to either side."""
        return (self.weight.shape[3] - 1) * self.dilation // 2

    def __call__(self, x: Tensor, left: int, right: int) -> Tensor:
        """[B, T, in] after `left` zeros and before `right` zeros -> [B, T', out] in the weight's number type."""
        if left != right:
            x, left = F.pad(x, (0, 0, left, right)), 0
        x = x.to(self.weight.dtype).transpose(1, 2).unsqueeze(2)
        y = F.conv2d(x, self.weight, self.bias, (1, self.stride), (0, left), (1, self.dilation))
        return y.squeeze(2).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Up:
    """A transposed convolution of `rate`, as one that gives `rate` columns of output for each of input."""

    conv: Conv
    """Weight [rate out, in, 1, ceil(k / rate)]; taps that the transposed kernel lacks are zero."""
    rate: int
    pad: int
    """Columns that are dropped from the transposed convolution's two ends."""

    def __call__(self, x: Tensor, first: int, wanted_first: int, wanted_until: int) -> Tensor:
        """[B, T, in], which is columns first .. first + T -> columns wanted_first .. wanted_until, [B, n, out].

        Columns of input beyond the given ones are nought.
        """
        low, high = (wanted_first + self.pad) // self.rate, (wanted_until - 1 + self.pad) // self.rate + 1
        left = first - (low - self.conv.weight.shape[3] + 1)
        y = self.conv(x, left, high - first - x.shape[1]).flatten(1).view(x.shape[0], (high - low) * self.rate, -1)
        skip = wanted_first + self.pad - low * self.rate
        return y[:, skip : skip + wanted_until - wanted_first]


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight [out, in] and bias [out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Snake:
    """x + sin(alpha x)^2 / (alpha + 1e-9), alpha [C] per channel."""

    alpha: Tensor
    inverse: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> the same in alpha's number type, a tensor of its own."""
        wave = sine_(x * self.alpha).square_()
        return torch.addcmul(x, wave, self.inverse, out=wave)


def sine_(x: Tensor) -> Tensor:
    """The sine, in place. On a CPU numpy's: at float32 it takes two fifths of the time that torch takes."""
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        return x.sin_()
    values = x.numpy()
    with np.errstate(invalid="ignore"):  # of an infinite value, whose sine is no number
        np.sin(values, out=values)
    return x


@dataclass(frozen=True, slots=True)
class Step:
    """x + conv2(snake(conv1_dilated(snake(x))))."""

    snake1: Snake
    conv1: Conv
    snake2: Snake
    conv2: Conv


@dataclass(frozen=True, slots=True)
class ResBlock:
    """One step per dilation."""

    steps: tuple[Step, ...]
    reach: int

    def __call__(self, x: Tensor, left: int = 0, right: int = 0) -> Tensor:
        """[B, T, C], of which `left` and `right` columns are context -> [B, T - left - right, C].

        With less context than `reach` the signal ends there: zeros follow. Each convolution takes its share of the
        context, so that the last one computes the wanted columns alone.
        """
        after = self.reach
        for step in self.steps:
            h, begin, end = x, 0, 0
            for snake, conv in ((step.snake1, step.conv1), (step.snake2, step.conv2)):
                after -= conv.reach
                drop_left, drop_right = max(0, left - after), max(0, right - after)
                h = conv(snake(h), conv.reach - drop_left, conv.reach - drop_right)
                left, right = left - drop_left, right - drop_right
                begin, end = begin + drop_left, end + drop_right
            x = x[:, begin : x.shape[1] - end] + h
        return x


class Reader:
    """Takes tensors by name and shape, and remembers what it did not find or nobody asked for."""

    def __init__(
        self, state: Mapping[str, Tensor], dtype: torch.dtype | None, sums: torch.dtype | None, wide: torch.dtype
    ) -> None:
        prefixed = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
        self._left = prefixed or {key: value for key, value in state.items() if key not in NOT_WEIGHTS}
        self._dtype = dtype or next((v.dtype for v in self._left.values()), torch.float32)
        self._sums = sums or self._dtype
        self._wide = wide
        self._problems: list[str] = []

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in float32, or zeros and a remark."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            self._problems.append(f"missing {name}")
        elif tuple(tensor.shape) != shape:
            self._problems.append(f"{name} is {list(tensor.shape)}, not {list(shape)}")
        else:
            return tensor.detach().float()
        return torch.zeros(shape)

    def conv(self, name: str, shape: tuple[int, int, int], stride: int = 1) -> Conv:
        """One that gives what is summed: in the number type of the sums."""
        return _rowwise(*self._folded(name, shape), self._sums, stride=stride)

    def pitch_layer(self, name: str, shape: tuple[int, int, int]) -> Linear:
        """Weight [out, in, k], as it was trained: rounded in another order the pitch moves by 1e-4 Hz (`_folded`)."""
        weight, bias = self._folded(name, shape)
        return Linear(weight.to(self._wide), bias.to(self._wide))

    def up(self, name: str, shape: tuple[int, int, int], rate: int) -> Up:
        """A transposed convolution, weight [in, out, k]: column rate q + p of its output, before the ends are dropped,
        is the sum over j of w[:, :, p + rate j] times column q - j of its input."""
        weight, bias = self._folded(name, shape, transposed=True)
        d_in, d_out, kernel = shape
        n_taps = -(-kernel // rate)
        taps = F.pad(weight, (0, n_taps * rate - kernel)).view(d_in, d_out, n_taps, rate)
        weight = taps.flip(2).permute(3, 1, 0, 2).reshape(rate * d_out, d_in, n_taps)
        return Up(_rowwise(weight, bias.repeat(rate), self._sums), rate, (kernel - rate) // 2)

    def _folded(self, name: str, shape: tuple[int, int, int], *, transposed: bool = False) -> tuple[Tensor, Tensor]:
        """Weight and bias in float32, the weight norm folded: w = g v / |v|, the norm over all dimensions but the first
        (specification 2.3).

        By the operator that trained it: another order of rounding moves the pitch by 1e-4 Hz, and with it all phases.
        """
        for g, v in (
            (f"{name}.parametrizations.weight.original0", f"{name}.parametrizations.weight.original1"),
            (f"{name}.weight_g", f"{name}.weight_v"),
        ):
            if g in self._left or v in self._left:
                weight = torch.ops.aten._weight_norm(self._take(v, shape), self._take(g, (shape[0], 1, 1)), 0)
                break
        else:
            weight = self._take(f"{name}.weight", shape)
        return weight, self._take(f"{name}.bias", (shape[1] if transposed else shape[0],))

    def linear(self, name: str, shape: tuple[int, int]) -> Linear:
        return Linear(
            self._take(f"{name}.weight", shape).to(self._wide), self._take(f"{name}.bias", shape[:1]).to(self._wide)
        )

    def snake(self, name: str, d: int) -> Snake:
        alpha = self._take(f"{name}.alpha", (d,))
        return Snake(alpha.to(self._sums), (alpha + 1e-9).reciprocal().to(self._sums))

    def block(self, name: str, d: int, kernel: int, dilations: tuple[int, ...]) -> ResBlock:
        def conv(which: str, dilation: int) -> Conv:
            return _rowwise(*self._folded(f"{name}.{which}", (d, d, kernel)), self._dtype, dilation)

        steps = tuple(
            Step(
                self.snake(f"{name}.activations1.{i}", d),
                conv(f"convs1.{i}", dilation),
                self.snake(f"{name}.activations2.{i}", d),
                conv(f"convs2.{i}", 1),
            )
            for i, dilation in enumerate(dilations)
        )
        return ResBlock(steps, block_reach(kernel, dilations))

    def finish(self) -> None:
        problems = self._problems + [f"unexpected {name}" for name in self._left]
        if problems:
            raise ValueError("hift.pt does not fit its configuration: " + "; ".join(problems))


def _rowwise(weight: Tensor, bias: Tensor, dtype: torch.dtype, dilation: int = 1, stride: int = 1) -> Conv:
    """Weight [out, in, k] and bias [out]."""
    laid_out = weight.to(dtype)[:, :, None].contiguous(memory_format=torch.channels_last)
    return Conv(laid_out, bias.to(dtype), dilation, stride)
