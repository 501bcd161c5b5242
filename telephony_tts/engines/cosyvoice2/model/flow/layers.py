"""The operations of both flow networks, and the reader that takes their weights out of a checkpoint.

Activations are [B, T, C]. A causal convolution reads frames before the first one from its left context, which a
`ConvolutionContext` (`pass_context`) provides.

Linears come in two kinds: as the checkpoint has them, or in int8 (`Int8Linear`), which a CPU multiplies faster.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow.attention import LOG2_E
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import ConvolutionContext
from telephony_tts.engines.cosyvoice2.model.lm.weights import LARGEST, fastest, quantized
from telephony_tts.engines.cosyvoice2.model.state import StateReader

PACKED_FOR = 2 * BLOCK_FRAMES
"""Rows of most products: both guidance branches of a block."""
SMALLEST_ROW = 1e-30
"""A row whose values are all smaller is taken for zeros, which would otherwise be divided by their own size."""
MISH_IS_LINEAR = 30.0
"""For larger x, mish(x) equals x, in float64 too."""


class Reader(StateReader):
    """Reads the layers that both flow networks are made of."""

    def linear(self, key: str, d_out: int, d_in: int, *, bias: bool = True) -> Linear:
        return Linear(self(f"{key}.weight", d_out, d_in), self(f"{key}.bias", d_out) if bias else None)

    def stacked_linear(self, keys: Sequence[str], d_out: int, d_in: int, *, bias: bool = True) -> Linear:
        """Linears over the same input as one product; their outputs lie side by side."""
        parts = [self.linear(key, d_out, d_in, bias=bias) for key in keys]
        biases = [part.bias for part in parts if part.bias is not None]
        return Linear(self.joined([part.weight for part in parts]), self.joined(biases) if biases else None)

    def norm(self, key: str, d: int, eps: float) -> LayerNorm:
        return LayerNorm(self(f"{key}.weight", d), self(f"{key}.bias", d), eps)

    def conv(self, key: str, d_out: int, d_in: int, kernel: int) -> FlowConv:
        return FlowConv(self(f"{key}.weight", d_out, d_in, kernel), self(f"{key}.bias", d_out))


class Map(Protocol):
    """A linear map of the last dimension."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] of any float dtype -> [..., N] in the weights' dtype"""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class PackedLinear:
    """Weights of bfloat16 laid out for oneDNN, as it does otherwise at each product: a third of the time for few rows.

    The same bits as `Linear`, for a row whatever its neighbours are.
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
def packs() -> bool:
    """Whether this processor and this torch can do with packed weights what they do with others."""
    g = torch.Generator().manual_seed(0)
    linear = Linear(torch.randn(48, 32, generator=g).bfloat16(), torch.randn(48, generator=g).bfloat16())
    x = torch.randn(2, 7, 32, generator=g).bfloat16()
    try:
        return torch.equal(PackedLinear(linear)(x), linear(x))
    except (AttributeError, RuntimeError):
        return False


class Int8Linear:
    """Weights rounded to int8 for each output channel, activations for each row when they come; gives float32.

    A row's result depends on no other row: its scale is its own, and sums of integers are exact.
    """

    def __init__(self, linear: Linear) -> None:
        integers, scale = quantized(linear.weight.float())
        self._product = fastest()(integers, scale)
        self._bias = None if linear.bias is None else linear.bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] of any float dtype -> [..., N] float32"""
        rows = x.reshape(-1, x.shape[-1]).float()
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=SMALLEST_ROW).div_(LARGEST)
        y = self._product((rows / scale).round_()).mul_(scale)
        if self._bias is not None:
            y += self._bias
        return y.view(*x.shape[:-1], -1)


def packed(linear: Map) -> Map:
    """The same, packed if it can be."""
    return PackedLinear(linear) if isinstance(linear, Linear) else linear


def int8(linear: Map) -> Map:
    """The same in int8."""
    if isinstance(linear, PackedLinear):
        linear = linear.unpacked()
    return Int8Linear(linear) if isinstance(linear, Linear) else linear


class LayerNorm(NamedTuple):
    """Layer norm over channels."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.bias, self.eps)

    def to(self, dtype: torch.dtype) -> LayerNorm:
        return LayerNorm(self.weight.to(dtype), self.bias.to(dtype), self.eps)


class FlowConv:
    """A convolution over time, without padding.

    In half precision it is a product with windows of `kernel` frames, which takes a CPU half the time. In float32 it is
    the reference's operation, with the same bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight [C_out, C_in, kernel]"""
        self.kernel = weight.shape[2]
        self._direct = weight.dtype in (torch.float32, torch.float64)
        self._weight = weight if self._direct else weight.transpose(1, 2).flatten(1)
        self._bias = bias
        self.windows: Map = Linear(self._weight, bias)
        """The product: [..., kernel * C_in] -> [..., C_out]."""

    def pack(self) -> None:
        """From now on the product is packed (`PackedLinear`), in bfloat16."""
        self.windows, self._weight = packed(self.windows), self._weight[:0]

    def quantize(self) -> None:
        """From now on the product is in int8 (`Int8Linear`)."""
        if self._direct:
            self.windows = Linear(self._weight.transpose(1, 2).flatten(1), self._bias)
        self.windows, self._direct = int8(self.windows), False
        self._weight = self._weight[:0]

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T - kernel + 1, C_out]"""
        if self._direct:
            return F.conv1d(x.to(self._weight.dtype).transpose(1, 2), self._weight, self._bias).transpose(1, 2)
        n_batch, n, d = x.shape
        windows = x.flatten(1).unfold(1, self.kernel * d, d)
        # Copied to plain rows: a product of overlapping windows would run for each batch entry by itself.
        return self.windows(windows.reshape(-1, self.kernel * d)).view(n_batch, n - self.kernel + 1, -1)

    def causal(self, x: Tensor, context: ConvolutionContext, slot: int) -> Tensor:
        """x [B, T, C_in] -> [B, T, C_out], behind the left context number `slot` of the streams in the batch."""
        return self(context.continued(x, slot, self.kernel - 1))


def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)). In float32 it is the reference's operation, with the same bits."""
    return quick_mish(x) if x.device.type == "cpu" and x.dtype == torch.bfloat16 else F.mish(x)


def quick_mish(x: Tensor, most: float = MISH_IS_LINEAR, log2_e: float = LOG2_E) -> Tensor:
    """mish(x) as x n / (n + 2) with n = e^x (e^x + 2). It takes a third of the time on a CPU.

    `most` and `log2_e` are arguments because TorchScript does not see a module's constants.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    power = (wide.clamp(max=most) * log2_e).exp2_()
    n = power.mul_(power + 2)
    return (n / (n + 2)).mul_(wide).to(x.dtype)
