"""The few operations both flow networks are made of, and the reader that takes their weights out of a checkpoint.

Activations are [B, T, C] throughout; only inside a convolution do they turn to [B, C, T]. What looks back takes the
left context of a stream, or None on the plain path that sees the whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


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


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def stacked(parts: Sequence[Linear]) -> Linear:
    """One product instead of several over the same input; the outputs lie side by side."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


class Norm(NamedTuple):
    """Layer norm over channels."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Conv(NamedTuple):
    """Convolution over time; pads nothing by itself."""

    weight: Tensor
    bias: Tensor

    @property
    def n_left(self) -> int:
        return self.weight.shape[2] - 1

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T - n_left, C_out]"""
        return F.conv1d(x.transpose(1, 2), self.weight, self.bias).transpose(1, 2)

    def causal(self, x: Tensor, left: list[Tensor] | None, slot: int) -> Tensor:
        """[B, T, C_in] -> [B, T, C_out]; continues from `left[slot]` [B, n_left, C_in] and puts the next one there.

        The context is cloned: a view of it would keep the whole chunk alive.
        """
        if left is None:
            return self(F.pad(x, (0, 0, self.n_left, 0)))
        x = torch.cat([left[slot], x], dim=1)
        left[slot] = x[:, -self.n_left :].clone()
        return self(x)


def heads(x: Tensor, n_heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]"""
    n_batch, n, d = x.shape
    return x.view(n_batch, n, n_heads, d // n_heads).transpose(1, 2)


def block_mask(n_past: int, n: int, block: int, device: torch.device) -> Tensor | None:
    """Block-causal visibility [n, n_past + n] of n new positions: j < (floor(i / block) + 1) * block (5.1 c).

    None where nothing is hidden: new positions that lie in one block see all there is.
    """
    if n_past // block == (n_past + n - 1) // block:
        return None
    i = torch.arange(n_past, n_past + n, device=device)[:, None]
    j = torch.arange(n_past + n, device=device)[None, :]
    return j < (i // block + 1) * block


def attend(
    q: Tensor, segments: Sequence[tuple[Tensor, Tensor]], mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """softmax((q k^T + bias) / sqrt(D)) v over keys that lie in several pieces. -> [B, N, H * D]

    q [B, H, N, D]; segments of (k, v), each [B, H, T_s, D], T = sum of T_s; mask [N, T], True where visible;
    bias [B, H, N, T]. The pieces are never joined: of a shared prompt and a stream's own part, the N * T scores are
    copied, not the T * D keys and values that other streams read as well.
    """
    if len(segments) == 1 and bias is None:
        ((k, v),) = segments
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    # Scaled before the products: in float16 these would otherwise come close to its largest number.
    scale = q.shape[-1] ** -0.5
    q = q * scale
    pieces = [q @ k.transpose(-1, -2) for k, _ in segments]
    scores = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)
    if bias is not None:
        scores = scores + bias * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    p = torch.split(scores.softmax(dim=-1), [k.shape[2] for k, _ in segments], dim=-1)
    out = torch.zeros_like(q)
    for p_s, (_, v) in zip(p, segments, strict=True):
        out = out + p_s @ v
    return out.transpose(1, 2).flatten(2)
