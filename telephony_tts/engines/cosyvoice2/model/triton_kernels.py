"""Kernels of a GPU, in Triton: what PyTorch needs many small operations for.

    rms_norm           the norm of a decoder layer, with the residual sum before it
    layer_norm         the same for a transformer block of the flow
    turn_and_keep      turns queries and keys by their positions, and stores keys and values
    attend_slots       rows of the language model attend to their slots
    gated              silu(gate) * up
    uniforms           the random numbers of a draw
    attend_pages       frames of the flow attend to pages and to their own block, and their keys and values are stored
    windows            the neighbours of each frame, for a causal convolution as one product
    norm_mish          what follows that product
    snake              the vocoder's activation

Lengths that differ from call to call are not specialized, because a kernel would be compiled in the middle of calls.
Each reads its arguments on the device alone, so that graphs can record it. All sums are in float32, and products of
float32 are not rounded to TF32. Where Triton cannot be used, PyTorch's own operations compute the same (`gpu_kernels`).
"""

# Triton reads the annotations of a kernel: they are not types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES

LEAST_ROWS = 16
"""A matrix product on a GPU takes at least so many rows and columns."""


def _padded(n: int) -> int:
    """The power of two that is n or more."""
    return int(triton.next_power_of_2(n))


# ------------------------------------------------------------------------------------------------- norms


@triton.jit
def _summed(x, added, total, at, inside, adds: tl.constexpr):
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
    value = _summed(x, added, total, row + at, inside, adds)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / d + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0)
    tl.store(normed + row + at, (value * scale).to(weights.dtype) * weights, mask=inside)


@triton.jit
def _layer_normed(value, weight, bias, at, inside, eps, d: tl.constexpr):
    """The layer norm of a row in float32."""
    centred = tl.where(inside, value - tl.sum(value) / d, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred) / d + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    biases = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    return centred * scale * weights + biases


@triton.jit
def _layer_norm(x, added, weight, bias, total, normed, eps, d: tl.constexpr, width: tl.constexpr, adds: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, width)
    inside = at < d
    value = _summed(x, added, total, row + at, inside, adds)
    value = _layer_normed(value, weight, bias, at, inside, eps, d)
    tl.store(normed + row + at, value.to(normed.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x and `added` [N, D], contiguous -> x + added, and its norm times `weight` [D]."""
    n, d = x.shape
    normed = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    adds = added is not None
    _rms_norm[(n,)](x, x if added is None else added, weight, total, normed, eps, d, _padded(d), adds)
    return total, normed


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, added: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x and `added` [..., D], contiguous -> x + added, and its norm times `weight` [D] plus `bias` [D]."""
    d = x.shape[-1]
    normed = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    adds = added is not None
    grid = (x.numel() // d,)
    _layer_norm[grid](x, x if added is None else added, weight, bias, total, normed, eps, d, _padded(d), adds)
    return total, normed


# ---------------------------------------------------------------------------------------------- attention


@triton.jit
def _weighed(queries, k, v, is_seen, scale, highest, total, result):
    """One block of keys and values more: the softmax so far, rescaled by what is higher now."""
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(is_seen, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - higher[:, None])
    faded = tl.exp(highest - higher)
    result = result * faded[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return higher, total * faded + tl.sum(weights, 1), result


# ----------------------------------------------------------------------------------------- language model


@triton.jit
def _turn_and_keep(
    heads, rotary, slots, positions, cache, cache_stride, max_len,
    n_heads: tl.constexpr, n_kv: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    at = tl.arange(0, half)
    source = heads + (row * (n_heads + 2 * n_kv) + head) * (2 * half)
    first, second = tl.load(source + at), tl.load(source + half + at)
    if head < n_heads + n_kv:
        cos = tl.load(rotary + position * (2 * half) + at)
        sin = tl.load(rotary + (max_len + position) * (2 * half) + half + at)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first = (a * cos - b * sin).to(heads.dtype.element_ty)
        second = (b * cos + a * sin).to(heads.dtype.element_ty)
    target = source
    if head >= n_heads:
        of_value = (head - n_heads) // n_kv
        slot = tl.load(slots + row)
        target = cache + of_value * cache_stride + ((slot * n_kv + (head - n_heads) % n_kv) * max_len + position) * (
            2 * half
        )
    tl.store(target + at, first)
    tl.store(target + half + at, second)


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
        highest, total, result = _weighed(queries, k, v, is_seen[None, :], scale, highest, total, result)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + row * n_heads * d + of_group, result, mask=inside)


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
    grid = (n, n_heads + 2 * n_kv)
    _turn_and_keep[grid](
        heads, rotary, slots, positions, cache, cache.stride(0), max_len, n_heads, n_kv, d // 2, num_warps=1
    )


def attend_slots(heads: Tensor, slots: Tensor, positions: Tensor, cache: Tensor) -> Tensor:
    """The queries of `heads` [N, H + 2 KV, d] attend to the positions of their slots up to their own -> [N, H * d]."""
    n, _, d = heads.shape
    n_kv, max_len = cache.shape[2:4]
    n_heads = heads.shape[1] - 2 * n_kv
    out = heads.new_empty(n, n_heads * d)
    n_rows = max(LEAST_ROWS, _padded(n_heads // n_kv))
    n_keys = 128 if heads.element_size() == 2 else 32
    _attend_slots[(n, n_kv)](
        heads, slots, positions, cache, out, cache.stride(0), max_len, d**-0.5, n_heads, n_kv, d, n_rows, n_keys
    )
    return out


def gated(gate_up: Tensor) -> Tensor:
    """[N, 2 F], the gate and what it lets through -> [N, F]"""
    n, d = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(n, d)
    width = min(1024, _padded(d))
    _gated[(n, triton.cdiv(d, width))](gate_up, out, d, width)
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
    _uniforms[(1,)](seeds, n_drawn, out, n, _padded(n))
    u1, u2 = out.unbind()
    return u1, u2


# --------------------------------------------------------------------------------------------------- flow


@triton.jit(do_not_specialize=["n_columns", "n"])
def _attend_pages(
    qkv, memory, table, n_past, n_frames, out, memory_stride, head_stride, n_columns, n, scale,
    n_heads: tl.constexpr, d: tl.constexpr, page: tl.constexpr, n_rows: tl.constexpr, n_keys: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // n_heads).to(tl.int64), (tl.program_id(0) % n_heads).to(tl.int64)
    # Numbers of 32 bits: dividing those of 64 takes long.
    past, own = tl.load(n_past + row).to(tl.int32), tl.load(n_frames + row).to(tl.int32)
    wide: tl.constexpr = n_heads * d
    frame, channel = tl.program_id(1) * n_rows + tl.arange(0, n_rows), tl.arange(0, d)
    is_frame = (frame < n)[:, None]
    new = qkv + row * n * 3 * wide + head * d
    of_frame = frame[:, None] * (3 * wide) + channel[None, :]
    queries = tl.load(new + of_frame, mask=is_frame, other=0.0)
    pages = table + row * n_columns
    keys = memory + head * head_stride
    # These frames' own keys and values, for the blocks after this one.
    kept_in = tl.load(pages + n_columns - n // page + frame // page, mask=frame < n, other=0)
    kept = (kept_in * page + frame % page)[:, None] * d + channel[None, :]
    tl.store(keys + kept, tl.load(new + wide + of_frame, mask=is_frame, other=0.0), mask=is_frame)
    tl.store(keys + memory_stride + kept, tl.load(new + 2 * wide + of_frame, mask=is_frame, other=0.0), mask=is_frame)
    highest = tl.full((n_rows,), float("-inf"), tl.float32)
    total = tl.zeros((n_rows,), tl.float32)
    result = tl.zeros((n_rows, d), tl.float32)
    for first in range(0, past, n_keys):
        seen = first + tl.arange(0, n_keys)
        is_past = (seen < past)[:, None]
        lies_in = tl.load(pages + seen // page, mask=seen < past, other=0)
        where = keys + (lies_in * page + seen % page)[:, None] * d + channel[None, :]
        k = tl.load(where, mask=is_past, other=0.0)
        v = tl.load(where + memory_stride, mask=is_past, other=0.0)
        highest, total, result = _weighed(queries, k, v, (seen < past)[None, :], scale, highest, total, result)
    # A frame sees its own block of 50 and those before, but no padding.
    ends = tl.minimum((frame // page + 1) * page, own)[:, None]
    last = tl.minimum(((tl.program_id(1) + 1) * n_rows - 1) // page * page + page, n)
    for first in range(0, last, n_keys):
        seen = first + tl.arange(0, n_keys)
        of_seen = seen[:, None] * (3 * wide) + channel[None, :]
        k = tl.load(new + wide + of_seen, mask=(seen < n)[:, None], other=0.0)
        v = tl.load(new + 2 * wide + of_seen, mask=(seen < n)[:, None], other=0.0)
        highest, total, result = _weighed(queries, k, v, seen[None, :] < ends, scale, highest, total, result)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * n + frame[:, None]) * wide + head * d + channel[None, :], result, mask=is_frame)


def attend_pages(
    qkv: Tensor, memory: Tensor, table: Tensor, n_past: Tensor, n_frames: Tensor, n_heads: int
) -> Tensor:
    """qkv [R, T, 3 * H * D], contiguous -> [R, T, H * D]; T is a multiple of 50.

    `memory` [2, H, rows, 50, D] has keys and values in pages. `table` [R, P + T / 50]: the rows of each past, then
    those that keep the block. A frame sees `n_past[r]` frames of the past, and of the block what is in its own 50
    frames or before, and is not padding: `n_frames[r]`. All numbers are int64.
    """
    n_all, n, _ = qkv.shape
    d = memory.shape[4]
    out = qkv.new_empty(n_all, n, n_heads * d)
    n_rows, n_keys = (64, 64) if qkv.element_size() == 2 else (32, 32)
    grid = (n_all * n_heads, triton.cdiv(n, n_rows))
    _attend_pages[grid](
        qkv, memory, table, n_past, n_frames, out, memory.stride(0), memory.stride(1), table.shape[1], n, d**-0.5,
        n_heads, d, BLOCK_FRAMES, n_rows, n_keys,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n"])
def _windows(
    x, before, n_frames, out, after, before_stride, n,
    n_left: tl.constexpr, d: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    at_frame = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, width)
    inside = channel < d
    row, frame = at_frame // n, at_frame % n + 0 * channel  # the same number for each channel, as masks are
    ends_after = tl.load(n_frames + row)
    value = tl.zeros((width,), x.dtype.element_ty)
    for i in tl.static_range(n_left + 1):
        source = frame + i - n_left
        is_before = source < 0
        of_before = tl.load(
            before + row * before_stride + (source + n_left) * d + channel, mask=inside & is_before, other=0.0
        )
        of_block = tl.load(x + (row * n + source) * d + channel, mask=inside & (source >= 0), other=0.0)
        value = tl.where(is_before, of_before, of_block)
        tl.store(out + (at_frame * (n_left + 1) + i) * d + channel, value, mask=inside)
    # The last frames before the padding are the next block's left context.
    kept = frame - ends_after + n_left
    is_kept = (kept >= 0) & (kept < n_left)
    tl.store(after + (row * n_left + kept) * d + channel, value, mask=inside & is_kept)


@triton.jit
def _norm_mish(y, weight, bias, added, out, eps, n_per_row, d: tl.constexpr, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    inside = at < d
    value = tl.load(y + row * d + at, mask=inside, other=0.0).to(tl.float32)
    value = _layer_normed(value, weight, bias, at, inside, eps, d)
    # x tanh(log(1 + e^x)); above 20 it is x.
    power = tl.exp(tl.minimum(value, 20.0))
    ratio = power * (power + 2.0)
    mish = value * (ratio / (ratio + 2.0))
    mish += tl.load(added + (row // n_per_row) * d + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * d + at, mish.to(out.dtype.element_ty), mask=inside)


def windows(x: Tensor, before: Tensor, n_frames: Tensor) -> tuple[Tensor, Tensor]:
    """x [R, T, C], contiguous, behind the frames `before` [R, n, C] -> each frame and the n before it, oldest first,
    [R * T, (n + 1) C], and the last n of the first `n_frames[r]` frames [R, n, C]. `n_frames` is n or more."""
    n_rows, n, d = x.shape
    n_left = before.shape[1]
    out, after = x.new_empty(n_rows * n, (n_left + 1) * d), x.new_empty(n_rows, n_left, d)
    _windows[(n_rows * n,)](x, before, n_frames, out, after, before.stride(0), n, n_left, d, _padded(d))
    return out, after


def norm_mish(y: Tensor, weight: Tensor, bias: Tensor, eps: float, added: Tensor) -> Tensor:
    """mish(layer norm(y)) + `added`, of y [N, C] and `added` [M, C], each row of which is for N / M rows."""
    n, d = y.shape
    out = torch.empty_like(y)
    _norm_mish[(n,)](y, weight, bias, added, out, eps, n // len(added), d, _padded(d))
    return out


# ------------------------------------------------------------------------------------------------ vocoder


@triton.jit(do_not_specialize=["n_rows"])
def _snake(
    x, alpha, inverse, out, batch_stride, row_stride, n_rows,
    d: tl.constexpr, width: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    batch, row = tl.program_id(1).to(tl.int64), tl.program_id(0) * n_per + tl.arange(0, n_per)
    channel = tl.arange(0, width)
    inside = (row < n_rows)[:, None] & (channel < d)[None, :]
    of_row = row[:, None] * row_stride + channel[None, :]
    value = tl.load(x + batch * batch_stride + of_row, mask=inside, other=0.0).to(tl.float32)
    rate = tl.load(alpha + channel, mask=channel < d, other=0.0).to(tl.float32)[None, :]
    share = tl.load(inverse + channel, mask=channel < d, other=0.0).to(tl.float32)[None, :]
    wave = tl.sin(value * rate)
    result = (value + wave * wave * share).to(out.dtype.element_ty)
    tl.store(out + (batch * n_rows + row[:, None]) * d + channel[None, :], result, mask=inside)


def snake(x: Tensor, alpha: Tensor, inverse: Tensor) -> Tensor:
    """x + sin(alpha x)^2 * inverse of x [B, T, C], whose channels lie side by side; alpha, inverse [C]."""
    n_batch, n_rows, d = x.shape
    if x.stride(2) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=alpha.dtype, device=x.device)
    n_per = max(1, 2048 // _padded(d))
    grid = (triton.cdiv(n_rows, n_per), n_batch)
    _snake[grid](x, alpha, inverse, out, x.stride(0), x.stride(1), n_rows, d, _padded(d), n_per)
    return out
