"""Attention of the encoder and of the estimator, over keys and values that lie in one or more pieces.

Keys and values are [B, H, T, D]. Each piece is read where it lies, with one product for the scores and one for the
output. Pieces are never joined. What all streams of a voice share would otherwise be copied for each of them, at every
layer of every step, and that is the larger part of what attention reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LOG2_E = 1.4426950408889634
SUMS_WITHIN = 2.0**-60, 2.0**100
"""Row sums of exponentials between these two are far from both ends of bfloat16, so no relevant bit was lost."""

Piece = tuple[Tensor, Tensor]
"""Keys and values [B, H, T, D]."""


def by_head(x: Tensor, n_heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]"""
    n_batch, n, d = x.shape
    return x.view(n_batch, n, n_heads, d // n_heads).transpose(1, 2)


def split_heads(qkv: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T, 3 * H * D] -> queries, keys and values [B, H, T, D]."""
    q, k, v = (by_head(part, n_heads) for part in qkv.chunk(3, dim=-1))
    return q, k, v


def block_mask(n_past: int, n: int, block: int, device: torch.device) -> Tensor | None:
    """Block-causal visibility [n, n_past + n] of n new positions: j < (floor(i / block) + 1) * block.

    Specification 5.1 c. None if every new position sees all others, which is so if they lie in one block.
    """
    if n_past // block == (n_past + n - 1) // block:
        return None
    i = torch.arange(n_past, n_past + n, device=device)[:, None]
    j = torch.arange(n_past + n, device=device)[None, :]
    return j < (i // block + 1) * block


def attend(q: Tensor, pieces: Sequence[Piece], mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """softmax((q k + bias) / sqrt(D)) v over all pieces. -> [B, N, H * D]

    q [B, H, N, D]; mask [N, T] or [B * H, N or 1, T], True where visible; bias [B, H, N, T]. T counts the keys of all
    pieces.
    """
    n_batch, n_heads, n, d = q.shape
    without_maximum = q.device.type == "cpu" and q.dtype == torch.bfloat16
    if len(pieces) == 1 and bias is None and not without_maximum:
        ((k, v),) = pieces
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    keys, values = ([part.flatten(0, 1) for part in parts] for parts in zip(*pieces, strict=True))
    flat_bias = None if bias is None else bias.flatten(0, 1)
    flat_q = q.flatten(0, 1)
    compute = unshifted if without_maximum else shifted
    out = compute(flat_q, keys, values, mask, flat_bias)
    return out.view(n_batch, n_heads, n, d).transpose(1, 2).flatten(2)


def shifted(q: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """The usual softmax. q [B * H, N, D]; keys, values: [B * H, T, D] for each piece -> [B * H, N, D]"""
    # Scaled before the products, which could otherwise overflow in float16.
    scale = float(q.shape[2]) ** -0.5
    q = q * scale
    products = [torch.bmm(q, k.mT) for k in keys]
    scores = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
    if bias is not None:
        scores += bias * scale
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    at = values[0].shape[1]
    out = torch.bmm(weights[:, :, :at], values[0])
    for v in values[1:]:
        end = at + v.shape[1]
        out += torch.bmm(weights[:, :, at:end], v)
        at = end
    return out


def unshifted(
    q: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    mask: Tensor | None,
    bias: Tensor | None,
    sums: tuple[float, float] = SUMS_WITHIN,
    log2_e: float = LOG2_E,
) -> Tensor:
    """The same, without subtracting each row's largest score. It falls back to `shifted` if scores are too extreme.

    bfloat16 has the range of float32, so 2^score loses nothing while a row's sum stays far from both ends. On a CPU the
    maximum costs more time than the exponentials. To check the sums afterwards costs almost nothing.

    `sums` and `log2_e` are arguments, because this also runs as TorchScript, which does not see a module's constants.
    """
    scale = float(q.shape[2]) ** -0.5 * log2_e
    out, total = torch.empty_like(q), torch.zeros(q.shape[0], q.shape[1], 1, dtype=torch.float32, device=q.device)
    at = 0
    for i, k in enumerate(keys):
        weights = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
        weights.baddbmm_(q, k.mT, beta=0, alpha=scale)
        end = at + k.shape[1]
        if bias is not None:
            weights.add_(bias[:, :, at:end], alpha=scale)
        if mask is not None:
            weights.masked_fill_(~mask[..., at:end], float("-inf"))
        weights.exp2_()
        # Summed in float32 inside the operation, then rounded. With dtype=float32 all weights would be converted first.
        total.add_(weights.sum(dim=2, keepdim=True))
        out.baddbmm_(weights, values[i], beta=0 if i == 0 else 1)
        at = end
    least, most = torch.aminmax(total)
    if not bool((least >= sums[0]) & (most <= sums[1])):
        return shifted(q, keys, values, mask, bias)
    return out.div_(total)
