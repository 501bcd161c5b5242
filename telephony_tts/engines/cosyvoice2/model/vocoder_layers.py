"""The pieces of HiFT's convolutions, and their reading from `hift.pt` by official key names (specification 2.3, 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PREFIX = "generator."
"""Of every key in a checkpoint of the adversarial training; what lacks it there is the discriminator's."""
NOT_WEIGHTS = frozenset({"epoch", "step"})


@dataclass(frozen=True, slots=True)
class Conv:
    """Weight [out, in, k] (transposed: [in, out, k]) and bias [out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor, *, dilation: int = 1, stride: int = 1, padding: int | None = None) -> Tensor:
        """[B, in, T] -> [B, out, T'], by default with the padding that keeps T."""
        if padding is None:
            padding = (self.weight.shape[2] - 1) * dilation // 2
        return F.conv1d(x, self.weight, self.bias, stride, padding, dilation)


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight [out, in] and bias [out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Snake:
    """x + sin(alpha x)^2 / (alpha + 1e-9), alpha [C, 1] per channel."""

    alpha: Tensor
    inverse: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x).square() * self.inverse


@dataclass(frozen=True, slots=True)
class ResBlock:
    """One step per dilation: x + conv2(snake(conv1_dilated(snake(x))))."""

    steps: tuple[tuple[Snake, Conv, int, Snake, Conv], ...]

    def __call__(self, x: Tensor) -> Tensor:
        for snake1, conv1, dilation, snake2, conv2 in self.steps:
            x = x + conv2(snake2(conv1(snake1(x), dilation=dilation)))
        return x


class Reader:
    """Takes tensors by name and shape, and remembers what it did not find or nobody asked for."""

    def __init__(self, state: Mapping[str, Tensor], dtype: torch.dtype | None, wide: torch.dtype) -> None:
        prefixed = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
        self._left = prefixed or {key: value for key, value in state.items() if key not in NOT_WEIGHTS}
        self._dtype = dtype or next((v.dtype for v in self._left.values()), torch.float32)
        self._wide = wide
        self._problems: list[str] = []

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in float32, or zeros and a remark."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            self._problems.append(f"missing {name}")
        elif tuple(tensor.shape) != shape:
            self._problems.append(f"{name} is {list(tensor.shape)}, not {list(shape)}")
        else:
            return tensor.detach().float()
        return torch.zeros(shape)

    def conv(self, name: str, shape: tuple[int, int, int], *, transposed: bool = False, wide: bool = False) -> Conv:
        """Folds the weight norm: w = g v / |v|, the norm over all dimensions but the first (specification 2.3).

        By the operator that trained it: another order of rounding moves the pitch by 1e-4 Hz, and with it all phases.
        """
        for g, v in (
            (f"{name}.parametrizations.weight.original0", f"{name}.parametrizations.weight.original1"),
            (f"{name}.weight_g", f"{name}.weight_v"),
        ):
            if g in self._left or v in self._left:
                weight = torch.ops.aten._weight_norm(self._take(v, shape), self._take(g, (shape[0], 1, 1)), 0)
                break
        else:
            weight = self._take(f"{name}.weight", shape)
        bias = self._take(f"{name}.bias", (shape[1] if transposed else shape[0],))
        dtype = self._wide if wide else self._dtype
        return Conv(weight.to(dtype), bias.to(dtype))

    def linear(self, name: str, shape: tuple[int, int]) -> Linear:
        return Linear(
            self._take(f"{name}.weight", shape).to(self._wide), self._take(f"{name}.bias", shape[:1]).to(self._wide)
        )

    def snake(self, name: str, d: int) -> Snake:
        alpha = self._take(f"{name}.alpha", (d,))[:, None]
        return Snake(alpha.to(self._dtype), (alpha + 1e-9).reciprocal().to(self._dtype))

    def block(self, name: str, d: int, kernel: int, dilations: tuple[int, ...]) -> ResBlock:
        return ResBlock(
            tuple(
                (
                    self.snake(f"{name}.activations1.{i}", d),
                    self.conv(f"{name}.convs1.{i}", (d, d, kernel)),
                    dilation,
                    self.snake(f"{name}.activations2.{i}", d),
                    self.conv(f"{name}.convs2.{i}", (d, d, kernel)),
                )
                for i, dilation in enumerate(dilations)
            )
        )

    def finish(self) -> None:
        problems = self._problems + [f"unexpected {name}" for name in self._left]
        if problems:
            raise ValueError("hift.pt does not fit its configuration: " + "; ".join(problems))
