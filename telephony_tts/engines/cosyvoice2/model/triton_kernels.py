"""Kernels of a GPU, in Triton: what PyTorch needs many small operations for.

    rms_norm           the norm of a decoder layer, with the residual sum before it
    turn_and_keep      turns queries and keys by their positions, and stores keys and values
    attend_slots       rows of the language model attend to their slots
    gated              silu(gate) * up
    embedded           the embeddings of a prompt's ids, which are of several tables
    uniforms           the random numbers of a draw

Lengths that differ from call to call are not specialized, because a kernel would be compiled in the middle of calls.
Each reads its arguments on the device alone, so that graphs can record it. All sums are in float32, and products of
float32 are not rounded to TF32. Where Triton cannot be used, PyTorch's own operations compute the same (`gpu_kernels`).
"""

# Triton reads the annotations of a kernel: they are not types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.gpu_kernels import HALVES_AND_WHOLE

LEAST_ROWS = 16
"""A matrix product on a GPU takes at least so many rows and columns."""

PROMPT_ROWS = 512
"""From so many rows on `attend_slots` takes neighbours of a prompt together. A short prompt is sooner read row by row:
on an H200 one of 100 positions took 3.6 instead of 10.7 µs."""


def padded(n: int) -> int:
    """The power of two that is n or more."""
    return int(triton.next_power_of_2(n))


# ------------------------------------------------------------------------------------------------- norms


@triton.jit
def summed(x, added, total, at, inside, adds: tl.constexpr):
    """A row in float32, or its sum with another one, rounded to the dtype of `total`, which gets it."""
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if adds:
        value += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    return value


@triton.jit
def _rms_norm(x, added, weight, total, normed, eps, d: tl.constexpr, width: tl.constexpr, adds: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, width)
    inside = at < d
    value = summed(x, added, total, row + at, inside, adds)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / d + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0)
    tl.store(normed + row + at, (value * scale).to(weights.dtype) * weights, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x and `added` [N, D], contiguous -> x + added, and its norm times `weight` [D]."""
    n, d = x.shape
    normed = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    adds = added is not None
    _rms_norm[(n,)](x, x if added is None else added, weight, total, normed, eps, d, padded(d), adds)
    return total, normed


# ---------------------------------------------------------------------------------------------- attention


@triton.jit
def weighed(queries, k, v, is_seen, scale, highest, total, result):
    """One block of keys and values more: the softmax so far, rescaled by what is higher now.

    What a row holds before its first seen key is multiplied by zero then."""
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(is_seen, scores, -1e30)
    higher = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - higher[:, None])
    faded = tl.exp(highest - higher)
    result = result * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total * faded + tl.sum(weights, 1), result


# ----------------------------------------------------------------------------------------- language model


@triton.jit
def _turn_and_keep(
    heads, rotary, slots, positions, cache, cache_stride, max_len,
    n_heads: tl.constexpr, n_kv: tl.constexpr, half: tl.constexpr, n_padded: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position, slot = tl.load(positions + row), tl.load(slots + row)
    channel, head = tl.arange(0, half)[None, :], tl.arange(0, n_padded)[:, None]
    is_head = (head < n_heads + 2 * n_kv) & (channel >= 0)
    source = heads + (row * (n_heads + 2 * n_kv) + head) * (2 * half) + channel
    first = tl.load(source, mask=is_head, other=0.0)
    second = tl.load(source + half, mask=is_head, other=0.0)
    cos = tl.load(rotary + position * (2 * half) + channel)
    sin = tl.load(rotary + (max_len + position) * (2 * half) + half + channel)
    a, b = first.to(tl.float32), second.to(tl.float32)
    turns = head < n_heads + n_kv
    first = tl.where(turns, a * cos - b * sin, a).to(heads.dtype.element_ty)
    second = tl.where(turns, b * cos + a * sin, b).to(heads.dtype.element_ty)
    tl.store(source, first, mask=head + 0 * channel < n_heads)
    tl.store(source + half, second, mask=head + 0 * channel < n_heads)
    of_kept = head - n_heads
    kept = cache + (of_kept // n_kv) * cache_stride + ((slot * n_kv + of_kept % n_kv) * max_len + position) * (
        2 * half
    ) + channel
    is_kept = is_head & (of_kept >= 0)
    tl.store(kept, first, mask=is_kept)
    tl.store(kept + half, second, mask=is_kept)


@triton.jit
def _attend_slots(
    heads, slots, positions, cache, out, cache_stride, max_len, scale,
    n_heads: tl.constexpr, n_kv: tl.constexpr, d: tl.constexpr, n_rows: tl.constexpr, n_keys: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = n_heads // n_kv
    position, slot = tl.load(positions + row).to(tl.int32), tl.load(slots + row)
    member, channel = tl.arange(0, n_rows), tl.arange(0, d)
    inside = (member < group)[:, None]
    of_group = (kv_head * group + member)[:, None] * d + channel[None, :]
    queries = tl.load(heads + row * (n_heads + 2 * n_kv) * d + of_group, mask=inside, other=0.0)
    keys = cache + (slot * n_kv + kv_head) * max_len * d
    highest = tl.full((n_rows,), float("-inf"), tl.float32)
    total = tl.zeros((n_rows,), tl.float32)
    result = tl.zeros((n_rows, d), tl.float32)
    for first in range(0, position + 1, n_keys):
        seen = first + tl.arange(0, n_keys)
        is_seen = seen <= position
        where = keys + seen[:, None] * d + channel[None, :]
        k = tl.load(where, mask=is_seen[:, None], other=0.0)
        v = tl.load(where + cache_stride, mask=is_seen[:, None], other=0.0)
        highest, total, result = weighed(queries, k, v, is_seen[None, :], scale, highest, total, result)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + row * n_heads * d + of_group, result, mask=inside)


@triton.jit(do_not_specialize=["n"])
def _attend_prompts(
    heads, slots, positions, cache, out, cache_stride, max_len, scale, n,
    n_heads: tl.constexpr, n_kv: tl.constexpr, d: tl.constexpr,
    n_together: tl.constexpr, n_members: tl.constexpr, n_keys: tl.constexpr,
):  # fmt: skip
    first_row, kv_head = tl.program_id(0) * n_together, tl.program_id(1)
    group: tl.constexpr = n_heads // n_kv
    each, channel = tl.arange(0, n_together * n_members), tl.arange(0, d)
    row, member = first_row + each // n_members, each % n_members
    is_row = row < n
    position = tl.load(positions + row, mask=is_row, other=0).to(tl.int32)
    slot = tl.load(slots + row, mask=is_row, other=-1)
    inside = (is_row & (member < group))[:, None]
    head = (kv_head * group + member)[:, None] * d + channel[None, :]
    wide: tl.constexpr = n_heads + 2 * n_kv
    queries = tl.load(heads + row.to(tl.int64)[:, None] * (wide * d) + head, mask=inside, other=0.0)
    highest = tl.full((n_together * n_members,), float("-inf"), tl.float32)
    total = tl.zeros((n_together * n_members,), tl.float32)
    result = tl.zeros((n_together * n_members, d), tl.float32)
    begin, end = first_row, tl.minimum(first_row + n_together, n)
    while begin < end:  # the rows of one slot after the other
        of_slot = tl.load(slots + begin)
        is_here = (slot == of_slot) & is_row
        keys = cache + (of_slot * n_kv + kv_head) * max_len * d
        until = tl.max(tl.where(is_here, position, 0), 0) + 1
        for first in range(0, until, n_keys):
            seen = first + tl.arange(0, n_keys)
            where = keys + seen[:, None] * d + channel[None, :]
            k = tl.load(where, mask=(seen < until)[:, None], other=0.0)
            v = tl.load(where + cache_stride, mask=(seen < until)[:, None], other=0.0)
            is_seen = is_here[:, None] & (seen[None, :] <= position[:, None])
            highest, total, result = weighed(queries, k, v, is_seen, scale, highest, total, result)
        begin += tl.sum((is_here & (member == 0)).to(tl.int32), 0)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64)[:, None] * (n_heads * d) + head, result, mask=inside)


@triton.jit
def _gated(gate_up, out, d, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * width + tl.arange(0, width)
    inside = at < d
    gate = tl.load(gate_up + row * 2 * d + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * d + d + at, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(up.dtype)
    tl.store(out + row * d + at, silu * up, mask=inside)


def turn_and_keep(heads: Tensor, rotary: Tensor, slots: Tensor, positions: Tensor, cache: Tensor) -> None:
    """Turn the queries of `heads` [N, H + 2 KV, d] in place, and store its keys, turned, and values in `cache`
    [2, slots, KV, L, d], a layer's. Row i is at `positions[i]` of `slots[i]`; `rotary` is `lm.rotary_table`'s."""
    n, _, d = heads.shape
    n_kv, max_len = cache.shape[2:4]
    n_heads = heads.shape[1] - 2 * n_kv
    n_padded = padded(heads.shape[1])
    _turn_and_keep[(n,)](
        heads, rotary, slots, positions, cache, cache.stride(0), max_len, n_heads, n_kv, d // 2, n_padded, num_warps=2
    )


def attend_slots(heads: Tensor, slots: Tensor, positions: Tensor, cache: Tensor) -> Tensor:
    """The queries of `heads` [N, H + 2 KV, d] attend to the positions of their slots up to their own -> [N, H * d].

    The rows of a slot lie one after the other. More rows than slots are prompts."""
    n, _, d = heads.shape
    n_slots, n_kv, max_len = cache.shape[1:4]
    n_heads = heads.shape[1] - 2 * n_kv
    out = heads.new_empty(n, n_heads * d)
    is_narrow = heads.element_size() == 2
    group = padded(n_heads // n_kv)
    numbers = heads, slots, positions, cache, out, cache.stride(0), max_len, d**-0.5
    if n > n_slots and n >= PROMPT_ROWS:
        n_together = max(1, LEAST_ROWS // group, (128 if is_narrow else 32) // group)
        _attend_prompts[(triton.cdiv(n, n_together), n_kv)](
            *numbers, n, n_heads, n_kv, d, n_together, group, 64 if is_narrow else 32
        )
    else:
        _attend_slots[(n, n_kv)](
            *numbers, n_heads, n_kv, d, max(LEAST_ROWS, group), 128 if is_narrow else 32
        )
    return out


def gated(gate_up: Tensor) -> Tensor:
    """[N, 2 F], the gate and what it lets through -> [N, F]"""
    n, d = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(n, d)
    width = min(1024, padded(d))
    _gated[(n, triton.cdiv(d, width))](gate_up, out, d, width)
    return out


@triton.jit(do_not_specialize_on_alignment=["of_table", "ids"])
def _embedded(of_table, ids, table_0, table_1, table_2, out, d: tl.constexpr, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    source = tl.load(ids + row) * d
    table = tl.load(of_table + row) + 0 * at  # the same number for each channel, as masks are
    inside = at < d
    value = tl.load(table_0 + source + at, mask=inside & (table == 0), other=0.0)
    value = tl.where(table == 1, tl.load(table_1 + source + at, mask=inside & (table == 1), other=0.0), value)
    value = tl.where(table == 2, tl.load(table_2 + source + at, mask=inside & (table == 2), other=0.0), value)
    tl.store(out + row * d + at, value, mask=inside)


def embedded(of_table: Tensor, ids: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Row `ids[i]` of `tables[of_table[i]]`, for each i -> [N, D]. `of_table`, `ids` [N] int64; up to three tables
    [*, D], contiguous."""
    n, d = len(ids), tables[0].shape[1]
    assert len(tables) <= 3
    out = tables[0].new_empty(n, d)
    _embedded[(n,)](of_table, ids, *tables, *[tables[0]] * (3 - len(tables)), out, d, padded(d))
    return out


@triton.jit
def _splitmix64(x):
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _uniforms(seeds, n_drawn, out, n, width: tl.constexpr):
    at = tl.arange(0, width)
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    seed = tl.load(seeds + at, mask=at < n, other=0).to(tl.uint64, bitcast=True)
    drawn = tl.load(n_drawn + at, mask=at < n, other=0).to(tl.uint64, bitcast=True)
    counter = _splitmix64(seed + golden) + drawn * (golden + golden)
    for k in tl.static_range(2):
        counter += golden
        bits = (_splitmix64(counter) >> 11).to(tl.int64, bitcast=True)
        tl.store(out + k * n + at, bits.to(tl.float64) * (1.0 / 9007199254740992.0), mask=at < n)


def uniforms(seeds: Tensor, n_drawn: Tensor) -> tuple[Tensor, Tensor]:
    """`sampling.uniforms`: [B] int64 each -> u1, u2 [B] float64 in [0, 1), the same bits."""
    n = len(seeds)
    out = seeds.new_empty(2, n, dtype=torch.float64)
    _uniforms[(1,)](seeds, n_drawn, out, n, padded(n))
    u1, u2 = out.unbind()
    return u1, u2


def run_once(device: torch.device) -> None:
    """Run the kernels with the official sizes of heads. Raises whatever Triton raises."""
    numbers = torch.zeros(2, dtype=torch.int64, device=device)
    for dtype in HALVES_AND_WHOLE:
        heads, cache = torch.zeros(2, 18, 64, dtype=dtype, device=device), torch.zeros(2, 3, 2, 8, 64, device=device)
        attend_slots(heads, numbers, numbers, cache.to(dtype))
        of_prompt = numbers[:1].expand(PROMPT_ROWS).contiguous()
        attend_slots(heads[:1].repeat(PROMPT_ROWS, 1, 1), of_prompt, of_prompt, cache.to(dtype))
    uniforms(numbers, numbers)
