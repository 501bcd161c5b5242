"""Kernels of a GPU, in Triton, for the estimator of the flow.

    layer_norm         the norm of a transformer block, with the residual sum before it
    attend_pages       frames attend to pages and to their own block, and their keys and values are stored
    gelu_map           a map and its GELU
    windows            the neighbours of each frame, for a causal convolution as one product
    norm_mish          what follows that product

See `model.triton_kernels` for what holds for all kernels.
"""

# Triton reads the annotations of a kernel: they are not types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.gpu_kernels import HALVES_AND_WHOLE
from telephony_tts.engines.cosyvoice2.model.triton_kernels import padded, summed, weighed

GELU_TILES = (256, (16, 64, 4, 3)), (1 << 62, (64, 64, 4, 3))
"""For up to so many rows of `gelu_map`: rows and outputs of a program, its warps and stages."""
ROWS = 4
"""Rows of a program of the norms and of `windows`: one for each of its warps."""

# ------------------------------------------------------------------------------------------------- norms


@triton.jit
def _rows_of(n, d: tl.constexpr, width: tl.constexpr, n_rows: tl.constexpr):
    """The rows of this program and their channels: row [n_rows, 1], channel [1, width], and which exist."""
    row = tl.program_id(0).to(tl.int64) * n_rows + tl.arange(0, n_rows)[:, None]
    channel = tl.arange(0, width)[None, :]
    return row, channel, (row < n) & (channel < d)


@triton.jit
def _normed(value, weight, bias, channel, eps, d: tl.constexpr):
    """The layer norm of rows in float32 [N, width]; beyond their d channels they are zero."""
    inside = channel < d
    centred = tl.where(inside, value - (tl.sum(value, 1) / d)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / d + eps)
    weights = tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    biases = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    return centred * scale[:, None] * weights + biases


@triton.jit(do_not_specialize=["n"])
def _layer_norm(
    x, added, weight, bias, total, normed, eps, n,
    d: tl.constexpr, width: tl.constexpr, n_rows: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    row, channel, inside = _rows_of(n, d, width, n_rows)
    at = row * d + channel
    value = _normed(summed(x, added, total, at, inside, adds), weight, bias, channel, eps, d)
    tl.store(normed + at, value.to(normed.dtype.element_ty), mask=inside)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, added: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x and `added` [..., D], contiguous -> x + added, and its norm times `weight` [D] plus `bias` [D]."""
    d = x.shape[-1]
    n = x.numel() // d
    normed = torch.empty_like(x)
    total = x if added is None else torch.empty_like(x)
    numbers = x, x if added is None else added, weight, bias, total, normed, eps, n
    _layer_norm[(triton.cdiv(n, ROWS),)](*numbers, d, padded(d), ROWS, added is not None)
    return total, normed


# -------------------------------------------------------------------------------------- transformer blocks


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
    # A page at a time: its keys lie one after the other, and one number says where.
    seen = tl.arange(0, n_keys)
    is_past = seen < page
    of_page = seen[:, None] * d + channel[None, :]
    for i in range(0, past // page):
        where = keys + tl.load(pages + i) * (page * d) + of_page
        k = tl.load(where, mask=is_past[:, None], other=0.0)
        v = tl.load(where + memory_stride, mask=is_past[:, None], other=0.0)
        highest, total, result = weighed(queries, k, v, is_past[None, :], scale, highest, total, result)
    # A frame sees its own block of 50 and those before, but no padding.
    ends = tl.minimum((frame // page + 1) * page, own)[:, None]
    last = tl.minimum(((tl.program_id(1) + 1) * n_rows - 1) // page * page + page, n)
    for first in range(0, last, n_keys):
        own_frame = first + seen
        of_own = own_frame[:, None] * (3 * wide) + channel[None, :]
        k = tl.load(new + wide + of_own, mask=(own_frame < n)[:, None], other=0.0)
        v = tl.load(new + 2 * wide + of_own, mask=(own_frame < n)[:, None], other=0.0)
        highest, total, result = weighed(queries, k, v, own_frame[None, :] < ends, scale, highest, total, result)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * n + frame[:, None]) * wide + head * d + channel[None, :], result, mask=is_frame)


def attend_pages(
    qkv: Tensor, memory: Tensor, table: Tensor, n_past: Tensor, n_frames: Tensor, n_heads: int
) -> Tensor:
    """qkv [R, T, 3 * H * D], contiguous -> [R, T, H * D]; T is a multiple of 50.

    `memory` [2, H, rows, 50, D] has keys and values in pages. `table` [R, P + T / 50]: the rows of each past, then
    those that keep the block. A frame sees `n_past[r]` frames of the past, a multiple of 50, and of the block what is
    in its own 50 frames or before, and is not padding: `n_frames[r]`. All numbers are int64.
    """
    n_all, n, _ = qkv.shape
    d = memory.shape[4]
    out = qkv.new_empty(n_all, n, n_heads * d)
    n_rows, n_keys = (64, 64) if qkv.element_size() == 2 else (32, 64)
    grid = (n_all * n_heads, triton.cdiv(n, n_rows))
    _attend_pages[grid](
        qkv, memory, table, n_past, n_frames, out, memory.stride(0), memory.stride(1), table.shape[1], n, d**-0.5,
        n_heads, d, BLOCK_FRAMES, n_rows, n_keys, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n"])
def _gelu_map(
    x, weight, bias, out, n, d_in: tl.constexpr, d_out: tl.constexpr,
    n_rows: tl.constexpr, n_outputs: tl.constexpr, n_inputs: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * n_rows + tl.arange(0, n_rows)[:, None]
    output, at = tl.program_id(1) * n_outputs + tl.arange(0, n_outputs), tl.arange(0, n_inputs)
    is_output = output < d_out
    total = tl.zeros((n_rows, n_outputs), tl.float32)
    for first in range(0, d_in, n_inputs):
        is_input = first + at < d_in
        of_x = tl.load(x + row * d_in + first + at[None, :], mask=(row < n) & is_input[None, :], other=0.0)
        of_weight = tl.load(
            weight + output[:, None] * d_in + first + at[None, :],
            mask=is_output[:, None] & is_input[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(of_x, tl.trans(of_weight), total, input_precision="ieee")
    total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    # Rounded between the map and its GELU, as by two operations.
    total = total.to(out.dtype.element_ty).to(tl.float32)
    total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    where = out + row * d_out + output[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=(row < n) & is_output[None, :])


def gelu_map(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(x weight^T + bias) of x [..., K], contiguous, weight [N, K] and bias [N] -> [..., N]"""
    (d_out, d_in), n = weight.shape, x.numel() // x.shape[-1]
    out = x.new_empty(*x.shape[:-1], d_out)
    n_rows, n_outputs, n_warps, n_stages = (32, 32, 4, 2)
    if x.element_size() == 2:
        n_rows, n_outputs, n_warps, n_stages = next(tile for most, tile in GELU_TILES if n <= most)
    grid = triton.cdiv(n, n_rows), triton.cdiv(d_out, n_outputs)
    _gelu_map[grid](
        x, weight, bias, out, n, d_in, d_out, n_rows, n_outputs, 64 if x.element_size() == 2 else 32,
        num_warps=n_warps, num_stages=n_stages,
    )  # fmt: skip
    return out


# ------------------------------------------------------------------------------------------- convolutions


@triton.jit(do_not_specialize=["n", "n_all"])
def _windows(
    x, before, n_frames, out, after, before_stride, n, n_all,
    n_left: tl.constexpr, d: tl.constexpr, width: tl.constexpr, n_rows: tl.constexpr,
):  # fmt: skip
    at_frame, channel, inside = _rows_of(n_all, d, width, n_rows)
    row, frame = at_frame // n, at_frame % n
    ends_after = tl.load(n_frames + row, mask=at_frame < n_all, other=0)
    value = tl.zeros((n_rows, width), x.dtype.element_ty)
    for i in tl.static_range(n_left + 1):
        source = frame + i - n_left
        of_before = tl.load(
            before + row * before_stride + (source + n_left) * d + channel, mask=inside & (source < 0), other=0.0
        )
        of_block = tl.load(x + (row * n + source) * d + channel, mask=inside & (source >= 0), other=0.0)
        value = tl.where(source < 0, of_before, of_block)
        tl.store(out + (at_frame * (n_left + 1) + i) * d + channel, value, mask=inside)
    # The last frames before the padding are the next block's left context.
    kept = frame - ends_after + n_left
    is_kept = (kept >= 0) & (kept < n_left)
    tl.store(after + (row * n_left + kept) * d + channel, value, mask=inside & is_kept)


@triton.jit(do_not_specialize=["n", "n_per_row"])
def _norm_mish(
    y, weight, bias, added, out, eps, n, n_per_row, d: tl.constexpr, width: tl.constexpr, n_rows: tl.constexpr
):
    row, channel, inside = _rows_of(n, d, width, n_rows)
    value = tl.load(y + row * d + channel, mask=inside, other=0.0).to(tl.float32)
    value = _normed(value, weight, bias, channel, eps, d)
    # x tanh(log(1 + e^x)); above 20 it is x.
    power = tl.exp(tl.minimum(value, 20.0))
    ratio = power * (power + 2.0)
    mish = value * (ratio / (ratio + 2.0))
    mish += tl.load(added + (row // n_per_row) * d + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * d + channel, mish.to(out.dtype.element_ty), mask=inside)


def windows(x: Tensor, before: Tensor, n_frames: Tensor) -> tuple[Tensor, Tensor]:
    """x [R, T, C], contiguous, behind the frames `before` [R, n, C] -> each frame and the n before it, oldest first,
    [R * T, (n + 1) C], and the last n of the first `n_frames[r]` frames [R, n, C]. `n_frames` is n or more."""
    n_rows, n, d = x.shape
    n_left = before.shape[1]
    out, after = x.new_empty(n_rows * n, (n_left + 1) * d), x.new_empty(n_rows, n_left, d)
    _windows[(triton.cdiv(n_rows * n, ROWS),)](
        x, before, n_frames, out, after, before.stride(0), n, n_rows * n, n_left, d, padded(d), ROWS
    )
    return out, after


def norm_mish(y: Tensor, weight: Tensor, bias: Tensor, eps: float, added: Tensor) -> Tensor:
    """mish(layer norm(y)) + `added`, of y [N, C] and `added` [M, C], each row of which is for N / M rows."""
    n, d = y.shape
    out = torch.empty_like(y)
    _norm_mish[(triton.cdiv(n, ROWS),)](y, weight, bias, added, out, eps, n, n // len(added), d, padded(d), ROWS)
    return out


def run_once(device: torch.device) -> None:
    """Run the kernels with the official sizes. Raises whatever Triton raises."""
    numbers = torch.zeros(2, dtype=torch.int64, device=device)
    for dtype in HALVES_AND_WHOLE:
        qkv = torch.zeros(2, BLOCK_FRAMES, 3 * 512, dtype=dtype, device=device)
        memory = qkv.new_zeros(2, 8, 4, BLOCK_FRAMES, 64)
        attend_pages(qkv, memory, numbers[:, None], numbers, numbers + BLOCK_FRAMES, 8)
        gelu_map(qkv[..., :256].contiguous(), qkv.new_zeros(1024, 256), qkv.new_zeros(1024))
