"""Weight matrices of the language model with the norm before them: in the checkpoint's precision, or int8 for a CPU.

A CPU spends most of a decode step on reading weights, so int8 makes it faster. First the columns of a matrix, its input
channels, are scaled to equal size. Then each row, an output channel, gets its own scale. Trained models have channels a
hundred times larger than others, and so they cost no precision.

An activation row becomes two rows of small whole numbers: the rounded values and the rest of the rounding. Its value is
scale * (high + low / 126), about 14 bits. Integer products are exact and all else is computed value by value. So a
row's result is the same to the bit in any batch (`model.linear`).
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
"""Steps of the low row in one step of the high row. The rest of a rounding, half a step at most, fills the range."""
_STEPS = torch.tensor([[[float(LARGEST_ACTIVATION)]], [[float(LARGEST_ACTIVATION * LOW_PER_HIGH)]]])
"""[2, 1, 1]: the largest value of a row, in high steps and in low steps."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] divided by its root mean square, which is computed in float32, times `weight` [D]."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype) * weight


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """The norm of the rows before a matrix (`rms_norm`)."""

    weight: Tensor
    """[K]"""
    eps: float


class Matrix(Protocol):
    """A linear map of rows, with or without a norm before it."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times the transposed weights, and `bias` [N] -> [..., N]."""


class FloatMatrix:
    """Weights [N, K] in the dtype and on the device that they have."""

    def __init__(self, weight: Tensor, norm: RmsNorm | None = None) -> None:
        self.weight, self._norm = weight, norm

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._norm is not None:
            x = rms_norm(x, self._norm.weight, self._norm.eps)
        return F.linear(x, self.weight, bias)


class Int8Matrix:
    """float32 weights [N, K] rounded to int8, on a CPU. Takes and gives float32. Raises ValueError for other weights.

    A row with a NaN or an infinity gives no finite value. Other rows are not affected.
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
            # One factor for the whole row. The root of the width is in the columns already.
            length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            factor.div_(length.hypot_(self._least_length))
        high, low = self._product(halves).view(2, len(rows), -1).unbind(0)
        y = torch.add(high, low, alpha=1 / LOW_PER_HIGH, out=high).mul_(factor)
        if bias is not None:
            y.add_(bias)
        return y.view(*x.shape[:-1], -1)


def split_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [M, K] -> [2 M, K], all high rows and then all low rows, and the largest value of each row [M, 1].

    The values are whole numbers within 63. They are undefined if the largest value is zero or not finite.
    """
    largest = x.abs().amax(dim=-1, keepdim=True)
    halves = (x * (_STEPS / largest)).round_()
    high, low = halves.unbind(0)
    low.sub_(high, alpha=LOW_PER_HIGH)
    return halves.view(-1, x.shape[1]), largest
