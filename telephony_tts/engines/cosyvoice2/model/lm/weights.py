"""Weight matrices of the language model: as they are, or in int8 for a CPU, where reading weights is what takes time.

In int8 the columns of a matrix, which are its input channels, are made equally large, and then each row, an output
channel, gets a scale of its own: channels that are a hundred times larger than the others, as trained models have some,
cost no precision, whether their weights make up for it or not. An activation row is written as two rows of small whole
numbers, its rounded values and what the rounding left over: scale * (high + low / 126), about 14 bits.

Products of whole numbers are exact, so they depend neither on how many rows are multiplied at once nor on the
processor, and all else is done value by value: a row's result is the same to the bit whoever its neighbours are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST_WEIGHT = 127
LARGEST = 63
"""Of a row. As bytes around 64, two of them times two weights fit 16 bits, where processors without VNNI add them."""
LOW_PER_HIGH = 2 * LARGEST
"""Steps of the low row in one of the high: what rounding leaves, at most half a step, fills the same range."""
_BYTE_ZERO = 64
_SMALLEST_WEIGHT = 1e-30
"""Channels smaller than this are taken for zeros, which must not be divided by their own size."""
_TILE_BYTES = 600_000
_MOST_SINGLE_ROWS = 16

_STEPS = torch.tensor([[[float(LARGEST)]], [[float(LARGEST * LOW_PER_HIGH)]]])
"""[2, 1, 1]: of a row's largest value, in high and in low steps."""

Product = Callable[[Tensor], Tensor]
"""float32 [M, K], whole numbers within 63 -> [M, N]: times the weights' integers, exactly, times their scale."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] over its root mean square, taken in float32, times `weight` [D]."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype) * weight


@dataclass(frozen=True, slots=True)
class Norm:
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

    def __init__(self, weight: Tensor, norm: Norm | None = None) -> None:
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
        self, weight: Tensor, norm: Norm | None = None, kind: Callable[[Tensor, Tensor], Product] | None = None
    ) -> None:
        if weight.dtype is not torch.float32 or weight.device.type != "cpu":
            raise ValueError(f"int8 weights are made of float32 on the CPU, not of {weight.dtype} on {weight.device}")
        columns = weight.square().mean(dim=0).sqrt_().clamp_(min=_SMALLEST_WEIGHT)
        integers, scale = quantized(weight / columns)
        self._product = (kind or fastest())(integers, scale / LARGEST)
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


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [N, K] -> int8 [N, K] within 127, and float32 [N]: what a step of each row is worth."""
    scale = weight.abs().amax(dim=1).clamp_(min=_SMALLEST_WEIGHT) / LARGEST_WEIGHT
    return (weight / scale[:, None]).round_().to(torch.int8), scale


def split_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [M, K] -> [2 M, K], the high rows and then the low ones, and each row's largest value [M, 1].

    Whole numbers within 63; without meaning where the largest value is zero or no finite number.
    """
    largest = x.abs().amax(dim=-1, keepdim=True)
    halves = (x * (_STEPS / largest)).round_()
    high, low = halves.unbind(0)
    low.sub_(high, alpha=LOW_PER_HIGH)
    return halves.view(-1, x.shape[1]), largest


class PackedProduct:
    """By FBGEMM, from weights laid out for it: few rows cost about what reading the weights costs.

    It takes rows as bytes: they are whole numbers already, so a step of 1 around a zero of 64 rounds nothing.
    """

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        zeros = torch.zeros(len(integers), dtype=torch.int64)
        with warnings.catch_warnings():
            # Deprecated; where it is gone `fastest` takes another product.
            warnings.simplefilter("ignore")
            tensor = torch._make_per_channel_quantized_tensor(integers, scale.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(tensor, None)
        self._run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._run(rows, 1.0, _BYTE_ZERO, self._packed)
        return product


class PlainProduct:
    """By oneDNN, from weights as they are: quick for one row and for many, not for a few.

    Few rows therefore go one by one over a piece of the matrix that stays in the processor's cache meanwhile. Exact
    only with VNNI.
    """

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        self._scale = scale
        self._whole = integers.t()
        n_rows = max(1, _TILE_BYTES // integers.shape[1])
        self._tiles = [tile.t() for tile in torch.split(integers, n_rows)]

    def __call__(self, rows: Tensor) -> Tensor:
        whole = rows.to(torch.int8)
        if len(whole) > _MOST_SINGLE_ROWS:
            return torch._int_mm(whole, self._whole).float().mul_(self._scale)
        sums = torch.empty(len(whole), len(self._scale), dtype=torch.int32)
        singles, start = torch.split(whole, 1), 0
        for tile in self._tiles:
            end = start + tile.shape[1]
            for row, into in zip(singles, torch.split(sums[:, start:end], 1), strict=True):
                torch._int_mm(row, tile, out=into)
            start = end
        return sums.float().mul_(self._scale)


class WideProduct:
    """In float64, whose whole numbers reach far beyond any sum here: slow, and right on every processor."""

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        self._integers, self._scale = integers, scale

    def __call__(self, rows: Tensor) -> Tensor:
        finite = rows.nan_to_num(0.0, 0.0, 0.0)
        return F.linear(finite.double(), self._integers.double()).float().mul_(self._scale)


@functools.cache
def fastest() -> Callable[[Tensor, Tensor], Product]:
    """The first kind of product that is exact here: some processors cut off sums of two products at 16 bits."""
    return next(kind for kind in (PackedProduct, PlainProduct, WideProduct) if is_exact(kind))


def is_exact(kind: Callable[[Tensor, Tensor], Product]) -> bool:
    """Whether `kind` exists here and gets the largest sums right, for one row and for many."""
    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (48, 320), dtype=torch.int8, generator=generator)
    integers[:8], integers[8:16] = LARGEST_WEIGHT, -LARGEST_WEIGHT
    scale = torch.rand(48, generator=generator)
    rows = torch.randint(-LARGEST, LARGEST + 1, (40, 320), generator=generator).float()
    rows[:4], rows[4:8] = LARGEST, -LARGEST
    expected = WideProduct(integers, scale)(rows)
    try:
        product = kind(integers, scale)
        return all(torch.equal(product(rows[:n]), expected[:n]) for n in (1, 2, 10, 40))
    except (AttributeError, RuntimeError):
        return False
