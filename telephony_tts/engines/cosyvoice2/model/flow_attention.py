"""Attention of both flow networks, over keys and values that lie in one or two pieces.

Keys lie transposed, [B, H, D, T], values as they are, [B, H, T, D]: so both products read a piece where it lies, a
prompt's as well as the filled part of a buffer that has spare room.

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
"""Keys [B, H, D, T] and values [B, H, T, D]."""


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


def attend(q: Tensor, pieces: Sequence[Piece], mask: Tensor | None, bias: Tensor | None = None) -> Tensor:
    """softmax((q k + bias) / sqrt(D)) v over all pieces. -> [B, N, H * D]

    q [B, H, N, D]; mask [N, T], True where visible, T being the keys of all pieces; bias [B, H, N, T].
    """
    n_batch, n_heads, n, d = q.shape
    quick = q.device.type == "cpu" and q.dtype == torch.bfloat16
    if len(pieces) == 1 and bias is None and not quick and pieces[0][0].stride(2) == 1:
        ((k, v),) = pieces
        return F.scaled_dot_product_attention(q, k.mT, v, attn_mask=mask).transpose(1, 2).flatten(2)
    flat = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in pieces]
    flat_bias = None if bias is None else bias.flatten(0, 1)
    out = _unshifted(q, flat, mask, flat_bias) if quick else None
    if out is None:
        out = _shifted(q, flat, mask, flat_bias)
    return out.view(n_batch, n_heads, n, d).transpose(1, 2).flatten(2)


def _shifted(q: Tensor, pieces: Sequence[Piece], mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """The softmax as everybody computes it. -> [B * H, N, D]"""
    # Scaled before the products: in float16 these would otherwise come close to its largest number.
    scale = q.shape[-1] ** -0.5
    flat_q = (q * scale).flatten(0, 1)
    products = [torch.bmm(flat_q, k) for k, _ in pieces]
    scores = products[0] if len(pieces) == 1 else torch.cat(products, dim=-1)
    if bias is not None:
        scores += bias * scale
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    parts = torch.split(scores.softmax(dim=-1), [v.shape[1] for _, v in pieces], dim=-1)
    out = torch.bmm(parts[0], pieces[0][1])
    for p, (_, v) in zip(parts[1:], pieces[1:], strict=True):
        out += torch.bmm(p, v)
    return out


def _unshifted(q: Tensor, pieces: Sequence[Piece], mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """The same without looking for each row's largest score first; None where scores are too large or too small for it.

    bfloat16 has the range of float32, so that 2^score loses nothing while a row's sum stays far from both ends. On a
    CPU the maximum costs more than the exponentials do, and the sum, looked at afterwards, next to nothing.
    """
    scale = q.shape[-1] ** -0.5 * LOG2_E
    flat_q = (q * scale).flatten(0, 1)
    out, total, at = None, None, 0
    for k, v in pieces:
        weights = torch.bmm(flat_q, k)
        end = at + k.shape[2]
        if bias is not None:
            weights.add_(bias[:, :, at:end], alpha=scale)
        if mask is not None:
            weights.masked_fill_(~mask[:, at:end], float("-inf"))
        weights.exp2_()
        part, product = weights.sum(dim=-1, keepdim=True, dtype=torch.float32), torch.bmm(weights, v)
        total = part if total is None else total.add_(part)
        out = product if out is None else out.add_(product)
        at = end
    if out is None or total is None:
        raise ValueError("attention over no keys")
    least, most = torch.aminmax(total)
    if not (float(least) >= SUMS_WITHIN[0] and float(most) <= SUMS_WITHIN[1]):
        return None
    return out.div_(total)
