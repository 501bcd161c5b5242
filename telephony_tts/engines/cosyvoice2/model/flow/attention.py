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
    if len(pieces) == 1 and bias is None:
        ((k, v),) = pieces
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    keys, values = ([part.flatten(0, 1) for part in parts] for parts in zip(*pieces, strict=True))
    flat_bias = None if bias is None else bias.flatten(0, 1)
    flat_q = q.flatten(0, 1)
    out = _attend_pieces(flat_q, keys, values, mask, flat_bias)
    return out.view(n_batch, n_heads, n, d).transpose(1, 2).flatten(2)


def _attend_pieces(
    q: Tensor, keys: list[Tensor], values: list[Tensor], mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    """q [B * H, N, D]; keys, values: [B * H, T, D] for each piece -> [B * H, N, D]"""
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
