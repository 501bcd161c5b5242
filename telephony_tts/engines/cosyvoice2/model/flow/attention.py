"""Attention of both flow networks, over keys and values that lie in one or two pieces.

Keys and values lie as they come, [B, H, T, D], and both products read a piece where it lies, a prompt's as well as the
filled part of a buffer that has spare room.

The pieces are never joined: what a stream shares with others of its voice would have to be copied for each of them. Nor
are the keys of several streams, padded to one length, for the same reason: that is the larger part of what attention
reads, copied at every layer of every step. A product for each stream and piece costs more calls, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LOG2_E = 1.4426950408889634
SUMS_WITHIN = 2.0**-60, 2.0**100
"""Sums of unshifted exponentials from which nothing that counts was lost, at either end of bfloat16."""

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
    """Block-causal visibility [n, n_past + n] of n new positions: j < (floor(i / block) + 1) * block (5.1 c).

    None where nothing is hidden: new positions that lie in one block see all there is.
    """
    if n_past // block == (n_past + n - 1) // block:
        return None
    i = torch.arange(n_past, n_past + n, device=device)[:, None]
    j = torch.arange(n_past + n, device=device)[None, :]
    return j < (i // block + 1) * block


def attend(q: Tensor, pieces: Sequence[Piece], mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """softmax((q k + bias) / sqrt(D)) v over all pieces. -> [B, N, H * D]

    q [B, H, N, D]; mask [N, T], True where visible, T being the keys of all pieces; bias [B, H, N, T].
    """
    n_batch, n_heads, n, d = q.shape
    quick = q.device.type == "cpu" and q.dtype == torch.bfloat16
    if len(pieces) == 1 and bias is None and not quick:
        ((k, v),) = pieces
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    keys, values = ([part.flatten(0, 1) for part in parts] for parts in zip(*pieces, strict=True))
    flat_bias = None if bias is None else bias.flatten(0, 1)
    flat_q = q.flatten(0, 1)
    out = unshifted(flat_q, keys, values, mask, flat_bias) if quick else shifted(flat_q, keys, values, mask, flat_bias)
    return out.view(n_batch, n_heads, n, d).transpose(1, 2).flatten(2)


def shifted(q: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """The softmax as everybody computes it. q [B * H, N, D], keys and values [B * H, T, D] each -> [B * H, N, D]"""
    # Scaled before the products: in float16 these would otherwise come close to its largest number.
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
    """The same without looking for each row's largest score first, unless scores are too large or too small for it.

    bfloat16 has the range of float32, so that 2^score loses nothing while a row's sum stays far from both ends. On a
    CPU the maximum costs more than the exponentials do, and the sum, looked at afterwards, next to nothing.

    Constants are arguments because TorchScript, as which this runs too, sees no others.
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
        # Summed in float32 and then rounded: as float32 all weights would be converted first.
        total.add_(weights.sum(dim=2, keepdim=True))
        out.baddbmm_(weights, values[i], beta=0 if i == 0 else 1)
        at = end
    least, most = torch.aminmax(total)
    if not bool((least >= sums[0]) & (most <= sums[1])):
        return shifted(q, keys, values, mask, bias)
    return out.div_(total)
