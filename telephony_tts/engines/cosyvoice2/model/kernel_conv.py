"""Convolutions in float32 and float64 by the kernels, for networks of which other parts are in int8 or bfloat16.

On a Zen 4 they take a quarter less time than PyTorch's, and idle lanes help with them. Their sums have another order,
so a network in float32 throughout does not use them.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from telephony_tts.engines.kernels.library import Conv, available, functions


class KernelConv:
    """conv(x) in the dtype of its weights. A column has the same bits whatever the others are."""

    def __init__(self, weight: Tensor, bias: Tensor, stride: int = 1) -> None:
        """weight [C_out, C_in, k] that fits (`fits`), bias [C_out]"""
        library, n = functions(), _n_outputs(weight.dtype)
        d_out, d_in, kernel = weight.shape
        panels = weight.view(d_out // n, n, d_in, kernel).permute(0, 3, 2, 1).contiguous()
        self._kept = panels, bias.contiguous()
        self._of = Conv(*(each.data_ptr() for each in self._kept), d_in, d_out, kernel, stride)
        self._dtype = weight.dtype
        self._run = library.double_conv if weight.dtype is torch.float64 else library.float_conv

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether the kernels can convolve with this weight [C_out, ...] here."""
        if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64) or not available():
            return False
        return weight.shape[0] % _n_outputs(weight.dtype) == 0

    def __call__(self, x: Tensor, left: int = 0, right: int = 0) -> Tensor:
        """x [B, T, C_in] with `left` zeros before it and `right` zeros after it -> [B, T', C_out]. Of a negative number
        so many columns are dropped instead."""
        x = x.to(self._dtype)[:, max(0, -left) : x.shape[1] - max(0, -right)]
        left, right = max(0, left), max(0, right)
        n_batch, n, _ = x.shape
        n_out = (n + left + right - self._of.kernel) // self._of.stride + 1
        y = x.new_empty(n_batch, n_out, self._of.d_out)
        for i in range(n_batch):
            row = x[i].contiguous()
            self._run(ctypes.addressof(self._of), row.data_ptr(), n, left, right, y[i].data_ptr())
        return y


def _n_outputs(dtype: torch.dtype) -> int:
    n: int = functions().double_outputs() if dtype is torch.float64 else functions().float_outputs()
    return n
