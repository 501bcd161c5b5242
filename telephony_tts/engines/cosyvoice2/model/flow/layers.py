"""The few operations both flow networks are made of, and the reader that takes their weights out of a checkpoint.

Activations are [B, T, C] throughout. What looks back takes the left contexts of the streams in the batch, or None on
the plain path that sees the whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.attention import LOG2_E
from telephony_tts.engines.cosyvoice2.model.flow.pages import Batch
from telephony_tts.engines.cosyvoice2.model.linear import Linear, LinearMap, int8, packed

MISH_IS_LINEAR = 30.0
"""Beyond this mish(x) is x, in float64 as well."""


class Reader:
    """Takes tensors out of a state dict by name and shape, and collects everything that is wrong with it."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._like = next(iter(state.values()), torch.empty(0))
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def __call__(self, key: str, *shape: int) -> Tensor:
        self._taken.add(key)
        tensor = self._state.get(key)
        if tensor is None:
            self._problems.append(f"missing {key} {list(shape)}")
        elif tuple(tensor.shape) != shape:
            self._problems.append(f"{key} is {list(tensor.shape)}, not {list(shape)}")
        else:
            return tensor.detach()
        # A stand-in, so that one reading finds every problem; `finish` raises before anyone computes with it.
        return torch.empty(shape, dtype=self._like.dtype, device=self._like.device)

    def finish(self) -> None:
        """Raises ValueError naming every key that is missing, of another shape, or not ours."""
        problems = self._problems + [f"unexpected {key}" for key in self._state if key not in self._taken]
        if problems:
            raise ValueError("flow weights do not fit: " + "; ".join(problems))

    def linear(self, key: str, d_out: int, d_in: int, *, bias: bool = True) -> Linear:
        return Linear(self(f"{key}.weight", d_out, d_in), self(f"{key}.bias", d_out) if bias else None)

    def norm(self, key: str, d: int, eps: float) -> Norm:
        return Norm(self(f"{key}.weight", d), self(f"{key}.bias", d), eps)

    def conv(self, key: str, d_out: int, d_in: int, kernel: int) -> Conv:
        return Conv(self(f"{key}.weight", d_out, d_in, kernel), self(f"{key}.bias", d_out))


class Norm(NamedTuple):
    """Layer norm over channels."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.bias, self.eps)

    def to(self, dtype: torch.dtype) -> Norm:
        return Norm(self.weight.to(dtype), self.bias.to(dtype), self.eps)


class Conv:
    """Convolution over time; pads nothing by itself.

    In half precision a product with windows of `kernel` frames, which a CPU takes half the time for; in float32 as the
    reference computes it, to the bit.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight [C_out, C_in, kernel]"""
        self.kernel = weight.shape[2]
        self._direct = weight.dtype in (torch.float32, torch.float64)
        self._weight = weight if self._direct else weight.transpose(1, 2).flatten(1)
        self._bias = bias
        self.windows: LinearMap = Linear(self._weight, bias)
        """Of [..., kernel * C_in]."""

    def pack(self) -> None:
        """From now on packed, in bfloat16."""
        self.windows, self._weight = packed(self.windows), self._weight[:0]

    def quantize(self) -> None:
        """From now on in int8."""
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
        # As plain rows: a product of overlapping windows would be taken batch by batch.
        return self.windows(windows.reshape(-1, self.kernel * d)).view(n_batch, n - self.kernel + 1, -1)

    def causal(self, x: Tensor, lefts: Sequence[list[Tensor]] | Batch | None, slot: int) -> Tensor:
        """[S * B, T, C_in] -> [S * B, T, C_out]; S streams continue from their left[slot] [B, kernel - 1, C_in] and put
        the next one there.

        The context is cloned: a view of it would keep the whole chunk alive.
        """
        n_left = self.kernel - 1
        if lefts is None:
            return self(F.pad(x, (0, 0, n_left, 0)))
        if isinstance(lefts, Batch):
            return self(lefts.continued(x, slot))
        before = lefts[0][slot] if len(lefts) == 1 else torch.cat([left[slot] for left in lefts])
        x = torch.cat([before, x], dim=1)
        for left, last in zip(lefts, x[:, -n_left:].chunk(len(lefts)), strict=True):
            left[slot] = last.clone()
        return self(x)


def mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)), in float32 as the reference computes it, to the bit."""
    return quick_mish(x) if x.device.type == "cpu" and x.dtype == torch.bfloat16 else F.mish(x)


def quick_mish(x: Tensor, most: float = MISH_IS_LINEAR, log2_e: float = LOG2_E) -> Tensor:
    """The same as x n / (n + 2) with n = e^x (e^x + 2), a third of the time on a CPU.

    Constants are arguments because TorchScript sees no others.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    power = (wide.clamp(max=most) * log2_e).exp2_()
    n = power.mul_(power + 2)
    return (n / (n + 2)).mul_(wide).to(x.dtype)
