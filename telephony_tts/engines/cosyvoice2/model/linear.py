"""Linear maps that several networks use: in the checkpoint's precision, packed for oneDNN, or in int8 for a CPU.

    Linear          the weights as they are
    PackedLinear    bfloat16, laid out for oneDNN once instead of at each product
    Int8Linear      weights and activations in int8, sums exact

An int8 product sums whole numbers exactly. Its result therefore depends neither on the number of rows nor on the
processor. All else is elementwise. So a row's result is bit-identical in any batch.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES

PACKED_FOR = 2 * BLOCK_FRAMES
"""Rows that the packed layout is chosen for: both guidance branches of a block."""
SMALLEST_SCALE = 1e-30
"""Rows and channels are divided by their largest value. A smaller one counts as this, so that zeros stay zeros."""
LARGEST_WEIGHT = 127
LARGEST_ACTIVATION = 63
"""Activations are unsigned bytes with zero point 64, so the sum of two products fits 16 bits. Processors without VNNI
add products in pairs of that width."""
_BYTE_ZERO = 64
_TILE_BYTES = 600_000
_MOST_SINGLE_ROWS = 16

IntegerProduct = Callable[[Tensor], Tensor]
"""float32 [M, K] of whole numbers within 63 -> [M, N]: multiplied exactly by the integer weights, then scaled."""


class LinearMap(Protocol):
    """A linear map of the last dimension."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Linear(NamedTuple):
    """Weights [N, K] in the dtype and on the device that they have."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] of any float dtype -> [..., N] in the weights' dtype"""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class PackedLinear:
    """Weights of bfloat16 in oneDNN's own layout, which it otherwise makes at each product.

    A product of few rows takes a third of the time. The bits are those of `Linear`, in any batch.
    """

    def __init__(self, linear: Linear) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight, PACKED_FOR)
        self.bias = linear.bias

    def unpacked(self) -> Linear:
        return Linear(self.weight.to_dense(), self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] of any float dtype -> [..., N] bfloat16"""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(torch.bfloat16), self.weight, self.bias, "none", [], ""
        )
        return y


@functools.cache
def packing_is_exact() -> bool:
    """Whether packed weights give the bits of plain ones on this processor with this PyTorch."""
    g = torch.Generator().manual_seed(0)
    linear = Linear(torch.randn(48, 32, generator=g).bfloat16(), torch.randn(48, generator=g).bfloat16())
    x = torch.randn(2, 7, 32, generator=g).bfloat16()
    try:
        return torch.equal(PackedLinear(linear)(x), linear(x))
    except (AttributeError, RuntimeError):
        return False


class Int8Linear:
    """Weights rounded to int8 with a scale per output channel; activations with a scale per row. Gives float32.

    A row's result depends on no other row, because its scale is its own and sums of integers are exact.
    """

    def __init__(self, linear: Linear) -> None:
        integers, scale = quantized(linear.weight.float())
        self._product = fastest_product()(integers, scale)
        self._bias = None if linear.bias is None else linear.bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] of any float dtype -> [..., N] float32"""
        rows = x.reshape(-1, x.shape[-1]).float()
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST_SCALE).div_(LARGEST_ACTIVATION)
        y = self._product((rows / scale).round_()).mul_(scale)
        if self._bias is not None:
            y += self._bias
        return y.view(*x.shape[:-1], -1)


def packed(linear: LinearMap) -> LinearMap:
    """A `Linear` becomes packed; any other map is returned as it is."""
    return PackedLinear(linear) if isinstance(linear, Linear) else linear


def int8(linear: LinearMap) -> LinearMap:
    """A `Linear`, packed or not, becomes int8; any other map is returned as it is."""
    if isinstance(linear, PackedLinear):
        linear = linear.unpacked()
    return Int8Linear(linear) if isinstance(linear, Linear) else linear


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [N, K] -> int8 [N, K] within 127, and the scale of each row, float32 [N]."""
    scale = weight.abs().amax(dim=1).clamp_(min=SMALLEST_SCALE) / LARGEST_WEIGHT
    return (weight / scale[:, None]).round_().to(torch.int8), scale


class FbgemmProduct:
    """By FBGEMM, from weights in its layout: few rows cost about as much as reading the weights.

    FBGEMM takes rows as bytes. The rows are whole numbers already, so a scale of 1 with zero point 64 rounds nothing.
    """

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        zeros = torch.zeros(len(integers), dtype=torch.int64)
        with warnings.catch_warnings():
            # Deprecated. Once PyTorch removes it, `fastest_product` takes another product.
            warnings.simplefilter("ignore")
            tensor = torch._make_per_channel_quantized_tensor(integers, scale.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(tensor, None)
        self._run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._run(rows, 1.0, _BYTE_ZERO, self._packed)
        return product


class OneDnnProduct:
    """By oneDNN, from weights in their plain layout: fast for one row and for many, slow for a few.

    Exact with VNNI only. A few rows are multiplied one by one with a tile of the matrix, which stays in the
    processor's cache meanwhile.
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


class Float64Product:
    """In float64, which holds every possible sum exactly: slow, and exact on every processor."""

    def __init__(self, integers: Tensor, scale: Tensor) -> None:
        self._integers, self._scale = integers, scale

    def __call__(self, rows: Tensor) -> Tensor:
        finite = rows.nan_to_num(0.0, 0.0, 0.0)
        return F.linear(finite.double(), self._integers.double()).float().mul_(self._scale)


@functools.cache
def fastest_product() -> Callable[[Tensor, Tensor], IntegerProduct]:
    """The first kind of product that is exact here. Some processors saturate sums of two products at 16 bits."""
    return next(kind for kind in (FbgemmProduct, OneDnnProduct, Float64Product) if is_exact(kind))


def is_exact(kind: Callable[[Tensor, Tensor], IntegerProduct]) -> bool:
    """Whether this PyTorch has `kind` and it gets the largest sums right, for one row and for many."""
    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (48, 320), dtype=torch.int8, generator=generator)
    integers[:8], integers[8:16] = LARGEST_WEIGHT, -LARGEST_WEIGHT
    scale = torch.rand(48, generator=generator)
    rows = torch.randint(-LARGEST_ACTIVATION, LARGEST_ACTIVATION + 1, (40, 320), generator=generator).float()
    rows[:4], rows[4:8] = LARGEST_ACTIVATION, -LARGEST_ACTIVATION
    expected = Float64Product(integers, scale)(rows)
    try:
        product = kind(integers, scale)
        return all(torch.equal(product(rows[:n]), expected[:n]) for n in (1, 2, 10, 40))
    except (AttributeError, RuntimeError):
        return False
