"""The operations of both flow networks, and the reader that takes their weights out of a checkpoint.

Activations are [B, T, C]. A causal convolution reads frames before the first one from its left context, which a
`ConvolutionContext` (`pass_context`) provides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.attention import LOG2_E
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import ConvolutionContext
from telephony_tts.engines.cosyvoice2.model.linear import Linear, LinearMap, int8, packed
from telephony_tts.engines.cosyvoice2.model.state import StateReader

MISH_IS_LINEAR = 30.0
"""For larger x, mish(x) equals x, in float64 too."""


class FlowReader(StateReader):
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
        self.windows: LinearMap = Linear(self._weight, bias)
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
