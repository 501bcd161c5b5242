"""Weight matrices of the language model with the norm before them: in the checkpoint's precision, or int8 for a CPU.

A CPU spends most of a decode step on reading weights, so int8 makes it faster. First the columns of a matrix, its input
channels, are scaled to equal size. Then each row, an output channel, gets its own scale. Trained models have channels a
hundred times larger than others, and so they cost no precision. Activations have 15 bits (`model.linear`).
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, LayerNorm, Linear, RmsNorm

SMALLEST_SCALE = 1e-30
"""Columns are divided by their root mean square. A smaller one counts as this, so that zeros stay zeros."""


def int8_map(linear: Linear, norm: LayerNorm | RmsNorm | None = None) -> Int8Linear:
    """`linear` behind `norm`, in int8 as the module describes. The columns' sizes become a part of the norm.

    Raises ValueError for weights on another device, RuntimeError if int8 is not available here."""
    columns = linear.weight.square().mean(dim=0).sqrt_().clamp_(min=SMALLEST_SCALE)
    scaled: LayerNorm | RmsNorm | Tensor = columns
    if isinstance(norm, RmsNorm):
        scaled = RmsNorm(norm.weight * columns, norm.eps)
    elif norm is not None:
        scaled = LayerNorm(norm.weight * columns, norm.bias * columns, norm.eps)
    return Int8Linear(Linear(linear.weight / columns, linear.bias), scaled, in_15_bits=True)


class Matrix(Protocol):
    """A linear map of rows, with or without a norm before it."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times the transposed weights, and `bias` [N] -> [..., N]."""


class FloatMatrix:
    """Weights [N, K] in the dtype and on the device that they have."""

    def __init__(self, weight: Tensor, norm: RmsNorm | None = None) -> None:
        self.weight, self.norm = weight, norm

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x if self.norm is None else self.norm(x), self.weight, bias)


class Int8Matrix:
    """Weights [N, K] rounded to int8, on a CPU. Gives float32.

    A row with a NaN or an infinity gives no finite value. Other rows are not affected.
    """

    def __init__(self, weight: Tensor, norm: RmsNorm | None = None) -> None:
        """Raises ValueError for weights on another device, RuntimeError if int8 is not available here."""
        self.linear = int8_map(Linear(weight, None), norm)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        y = self.linear(x)
        return y if bias is None else y.add_(bias)
