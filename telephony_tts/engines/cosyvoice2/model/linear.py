"""Linear maps that several networks use: in the checkpoint's precision, or in int8 for a CPU.

    Linear       the weights as they are; NormedLinear has the norm before them
    Int8Linear   weights and activations in 8 bits, or in 15 bits as two bytes; sums exact

An int8 product sums whole numbers exactly. Its result therefore depends neither on the number of rows nor on the
processor. All else is computed row by row. So a row's result is bit-identical in any batch.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.weight_memory import WEIGHTS
from telephony_tts.engines.kernels.library import LAYER_NORM, NO_NORM, RMS_NORM, Map, functions


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


class LayerNorm(NamedTuple):
    """Layer norm over channels."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.bias, self.eps)


class RmsNorm(NamedTuple):
    """Division by the root mean square over channels, then times `weight` [K]."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K]; the root mean square is computed in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class NormedLinear(NamedTuple):
    """A linear map and the norm before it."""

    norm: LayerNorm
    linear: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N] in the weights' dtype"""
        return self.linear(self.norm(x))


class Int8Linear:
    """Weights on a CPU, rounded to int8 with a scale per output; activations are rounded with a scale per row.

    One call of `kernels.cpp` does all: the norm before the map, rounding, products, scales, bias, GELU. Takes and gives
    float32. A row that is not finite gives no finite value; other rows are not affected.
    """

    def __init__(
        self,
        linear: Linear,
        norm: LayerNorm | RmsNorm | Tensor | None = None,
        *,
        in_15_bits: bool = False,
        weights_in_15_bits: bool = False,
        gelu: bool = False,
    ) -> None:
        """`norm`: what precedes the map; a tensor [K] only multiplies. `in_15_bits`: the rest of the rounding of each
        activation is a second byte, and with `weights_in_15_bits` that of each weight; either doubles the products of
        the first bytes. Raises ValueError for weights that are not float32 on a CPU, RuntimeError if int8 is not
        available here (`kernels.library.problem`)."""
        if linear.weight.dtype is not torch.float32 or linear.weight.device.type != "cpu":
            of = f"{linear.weight.dtype} on {linear.weight.device}"
            raise ValueError(f"int8 weights are made of float32 on the CPU, not of {of}")
        library = functions()
        weight = linear.weight.contiguous()
        self.n, self.k = weight.shape
        panel = library.panel_outputs()
        n_padded = -(-self.n // panel) * panel
        n_bytes = n_padded * -(-self.k // 4) * 4
        self.weights = WEIGHTS.take(n_bytes)
        self._low = WEIGHTS.take(n_bytes) if weights_in_15_bits else None
        low = None if self._low is None else self._low.data_ptr()
        self.scale, self.bias = torch.empty(n_padded), torch.zeros(n_padded)
        if linear.bias is not None:
            self.bias[: self.n] = linear.bias
        library.pack(weight.data_ptr(), self.n, self.k, self.weights.data_ptr(), low, self.scale.data_ptr())
        self._norm_weight = self._norm_bias = None
        kind, eps = NO_NORM, 0.0
        if isinstance(norm, Tensor):
            self._norm_weight = norm.float().contiguous()
        elif norm is not None:
            self._norm_weight, eps = norm.weight.float().contiguous(), norm.eps
            kind = RMS_NORM
            if isinstance(norm, LayerNorm):
                self._norm_bias, kind = norm.bias.float().contiguous(), LAYER_NORM
        self._map = Map(
            self.weights.data_ptr(),
            low,
            self.scale.data_ptr(),
            self.bias.data_ptr(),
            None if self._norm_weight is None else self._norm_weight.data_ptr(),
            None if self._norm_bias is None else self._norm_bias.data_ptr(),
            self.n,
            self.k,
            kind,
            eps,
            in_15_bits,
            gelu,
        )
        self.address = ctypes.addressof(self._map)
        """Of the `Map`, which lives as long as this object."""
        self._run = library.linear

    def __call__(self, x: Tensor, add_to: Tensor | None = None) -> Tensor:
        """[..., K] of any float dtype -> [..., N] float32. With `add_to`, a contiguous float32 [..., N], the result is
        added to that instead, and it is returned. Raises ValueError if it is not contiguous."""
        if add_to is not None and not add_to.is_contiguous():
            raise ValueError("an int8 map adds to contiguous rows only")
        rows = x.to(torch.float32).contiguous()
        y = rows.new_empty(*x.shape[:-1], self.n) if add_to is None else add_to
        n_rows = rows.numel() // self.k
        self._run(self.address, rows.data_ptr(), self.k, 0, n_rows, 1, y.data_ptr(), self.n, 0, add_to is not None)
        return y

    def of_windows(self, x: Tensor, n_steps: int) -> Tensor:
        """The map of each `n_steps` neighbours: contiguous float32 [B, T, K / n_steps] -> [B, T - n_steps + 1, N]."""
        n_batch, n, d = x.shape
        n_out = n - n_steps + 1
        y = x.new_empty(n_batch, n_out, self.n)
        self._run(self.address, x.data_ptr(), d, n * d, n_out, n_batch, y.data_ptr(), self.n, n_out * self.n, False)
        return y
