"""The operations of both flow networks, and the reader that takes their weights out of a checkpoint.

Activations are [B, T, C]. A causal convolution reads frames before the first one from its left context, which a
`ConvolutionContext` (`pass_context`) provides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.pass_context import ConvolutionContext
from telephony_tts.engines.cosyvoice2.model.kernel_conv import KernelConv
from telephony_tts.engines.cosyvoice2.model.linear import LayerNorm, Linear
from telephony_tts.engines.cosyvoice2.model.state import StateReader


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
        self._kernels: KernelConv | None = None

    def use_kernels(self) -> None:
        """Convolve by the kernels from now on, if they can do it."""
        if KernelConv.fits(self._weight):
            self._kernels = KernelConv(self._weight, self._bias)

    def windows(self) -> Linear:
        """The map of `kernel` neighbours: [..., kernel * C_in] -> [..., C_out]."""
        weight = self._weight.transpose(1, 2).flatten(1) if self._direct else self._weight
        return Linear(weight, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T - kernel + 1, C_out]"""
        if self._kernels is not None:
            return self._kernels(x)
        if self._direct:
            return F.conv1d(x.to(self._weight.dtype).transpose(1, 2), self._weight, self._bias).transpose(1, 2)
        n_batch, n, d = x.shape
        windows = x.flatten(1).unfold(1, self.kernel * d, d)
        # Copied to plain rows: a product of overlapping windows would run for each batch entry by itself.
        rows = windows.reshape(-1, self.kernel * d)
        return Linear(self._weight, self._bias)(rows).view(n_batch, n - self.kernel + 1, -1)

    def causal(self, x: Tensor, context: ConvolutionContext, slot: int) -> Tensor:
        """x [B, T, C_in] -> [B, T, C_out], behind the left context number `slot` of the streams in the batch."""
        return self(context.continued(x, slot, self.kernel - 1))
