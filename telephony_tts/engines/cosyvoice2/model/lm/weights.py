"""Weight matrices of the language model: as they are, or in int8 for a CPU, where reading weights is what takes time.

In int8 the columns of a matrix, which are its input channels, are made equally large, and then each row, an output
channel, gets a scale of its own: channels that are a hundred times larger than the others, as trained models have some,
cost no precision, whether their weights make up for it or not. An activation row is written as two rows of small whole
numbers, its rounded values and what the rounding left over: scale * (high + low / 126), about 14 bits.

Products of whole numbers are exact, so they depend neither on how many rows are multiplied at once nor on the
processor, and all else is done value by value: a row's result is the same to the bit whoever its neighbours are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.linear import (
    LARGEST_ACTIVATION,
    SMALLEST_SCALE,
    IntegerProduct,
    fastest_product,
    quantized,
)

LOW_PER_HIGH = 2 * LARGEST_ACTIVATION
"""Steps of the low row in one of the high: what rounding leaves, at most half a step, fills the same range."""
_STEPS = torch.tensor([[[float(LARGEST_ACTIVATION)]], [[float(LARGEST_ACTIVATION * LOW_PER_HIGH)]]])
"""[2, 1, 1]: of a row's largest value, in high and in low steps."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] over its root mean square, taken in float32, times `weight` [D]."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype) * weight


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """What `rms_norm` does to the rows before a matrix."""

    weight: Tensor
    """[K]"""
    eps: float


class Matrix(Protocol):
    """A linear map of rows, which may be normed before."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times the transposed weights, and `bias` [N] -> [..., N]."""


class FloatMatrix:
    """Weights [N, K] in the dtype and on the device they have."""

    def __init__(self, weight: Tensor, norm: RmsNorm | None = None) -> None:
        self.weight, self._norm = weight, norm

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._norm is not None:
            x = rms_norm(x, self._norm.weight, self._norm.eps)
        return F.linear(x, self.weight, bias)


class Int8Matrix:
    """Weights [N, K] of float32 rounded to int8, on the CPU; takes and gives float32. Raises ValueError for others.

    A row that holds a NaN or an infinity comes out without a finite number, and no other row does.
    """

    def __init__(
        self,
        weight: Tensor,
        norm: RmsNorm | None = None,
        kind: Callable[[Tensor, Tensor], IntegerProduct] | None = None,
    ) -> None:
        if weight.dtype is not torch.float32 or weight.device.type != "cpu":
            raise ValueError(f"int8 weights are made of float32 on the CPU, not of {weight.dtype} on {weight.device}")
        columns = weight.square().mean(dim=0).sqrt_().clamp_(min=SMALLEST_SCALE)
        integers, scale = quantized(weight / columns)
        self._product = (kind or fastest_product())(integers, scale / LARGEST_ACTIVATION)
        width = weight.shape[1]
        self._is_normed = norm is not None
        self._columns = columns if norm is None else columns * norm.weight * width**0.5
        self._least_length = torch.tensor([[0.0 if norm is None else (width * norm.eps) ** 0.5]])

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        halves, factor = split_rows(rows * self._columns)
        if self._is_normed:
            # One factor of the whole row; the width under the root is with the columns.
            length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            factor.div_(length.hypot_(self._least_length))
        high, low = self._product(halves).view(2, len(rows), -1).unbind(0)
        y = torch.add(high, low, alpha=1 / LOW_PER_HIGH, out=high).mul_(factor)
        if bias is not None:
            y.add_(bias)
        return y.view(*x.shape[:-1], -1)


def split_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [M, K] -> [2 M, K], the high rows and then the low ones, and each row's largest value [M, 1].

    Whole numbers within 63; without meaning where the largest value is zero or no finite number.
    """
    largest = x.abs().amax(dim=-1, keepdim=True)
    halves = (x * (_STEPS / largest)).round_()
    high, low = halves.unbind(0)
    low.sub_(high, alpha=LOW_PER_HIGH)
    return halves.view(-1, x.shape[1]), largest
