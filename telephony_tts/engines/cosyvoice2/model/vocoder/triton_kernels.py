"""Kernels of a GPU for the vocoder, in Triton: all that lies between its convolutions and its matrix products.

    joined             a sum of layers and what the next convolutions see of it: snakes or a leaky ReLU, behind zeros
    columns            the mel as the first convolution sees it
    spectrum           the columns of the source's spectrum that a convolution sees
    pitch_windows      the neighbours of each frame, for a convolution of the pitch as one product
    pitch              the last layer of the pitch
    excited            the source: sines that follow the pitch, with noise
    frames, overlapped the inverse transform

Every convolution gets exactly the rows that it needs, zeros included, and neither adds its bias nor pads: on a GPU each
of these would be a launch that reads and writes all values once more. The rest is as in `model.triton_kernels`, and
where a slice begins does not compile a kernel anew either.
"""

# Triton reads the annotations of a kernel: they are not types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.gpu_kernels import HALVES_AND_WHOLE
from telephony_tts.engines.cosyvoice2.model.triton_kernels import LEAST_ROWS, padded

N_VALUES = 1024
"""In a program of `joined`: 16 bytes in float16 for each thread."""
MOST_SEEN = 3
"""Layers that see one sum."""

# ------------------------------------------------------------------------------------- between convolutions


@triton.jit
def _seen(
    value, inside, out, alpha, inverse, at, n_out, batch, channel,
    d: tl.constexpr, row: tl.constexpr, slope: tl.constexpr,
):  # fmt: skip
    """One activation of a sum, stored at the rows `at` of `n_out`. Without a slope it is the snake."""
    if slope is None:
        rate = tl.load(alpha + channel, mask=channel < d, other=0.0).to(tl.float32)[None, :]
        share = tl.load(inverse + channel, mask=channel < d, other=0.0).to(tl.float32)[None, :]
        wave = tl.sin(value * rate)
        value = value + wave * wave * share
    else:
        value = tl.where(value > 0.0, value, value * slope)
    value = tl.where(inside, value, 0.0).to(out.dtype.element_ty)
    is_stored = ((at >= 0) & (at < n_out))[:, None] & (channel < row)[None, :]
    tl.store(out + (batch * n_out + at[:, None]) * row + channel[None, :], value, mask=is_stored)


@triton.jit(do_not_specialize=[
    "y_rows", "a_rows", "b_rows", "b_shift", "n", "first", "shift_0", "n_0", "shift_1", "n_1", "shift_2", "n_2",
])  # fmt: skip
def _joined(
    y, a, b, bias, bias_2, total,
    out_0, alpha_0, inverse_0, out_1, alpha_1, inverse_1, out_2, alpha_2, inverse_2,
    y_rows, a_rows, b_rows, b_shift, n, first, shift_0, n_0, shift_1, n_1, shift_2, n_2,
    scale: tl.constexpr, slope: tl.constexpr, d: tl.constexpr,
    y_row: tl.constexpr, a_row: tl.constexpr, b_row: tl.constexpr, total_row: tl.constexpr, out_row: tl.constexpr,
    width: tl.constexpr, n_per: tl.constexpr, n_parts: tl.constexpr, n_biases: tl.constexpr,
    stores: tl.constexpr, n_seen: tl.constexpr,
):  # fmt: skip
    # The strides of batches are numbers of rows times a constant, so that the compiler sees that rows are aligned.
    batch = tl.program_id(1).to(tl.int64)
    row = first + tl.program_id(0) * n_per + tl.arange(0, n_per)
    channel = tl.arange(0, width)
    is_row = (row >= 0) & (row < n)
    inside = is_row[:, None] & (channel < d)[None, :]
    value = tl.load(y + (batch * y_rows + row[:, None]) * y_row + channel[None, :], mask=inside, other=0.0)
    value = value.to(tl.float32)
    added = tl.load(bias + channel, mask=channel < d, other=0.0).to(tl.float32)
    if n_biases > 1:
        added += tl.load(bias_2 + channel, mask=channel < d, other=0.0).to(tl.float32)
    value += added[None, :]
    if n_parts > 1:
        of_a = (batch * a_rows + row[:, None]) * a_row + channel[None, :]
        value += tl.load(a + of_a, mask=inside, other=0.0).to(tl.float32)
    if n_parts > 2:
        mirrored = tl.where(row + b_shift < 0, -row - b_shift, row + b_shift)
        of_b = (batch * b_rows + mirrored[:, None]) * b_row + channel[None, :]
        value += tl.load(b + of_b, mask=inside, other=0.0).to(tl.float32)
    if scale != 1.0:
        value *= scale
    if stores:
        of_total = (batch * n + row[:, None]) * total_row + channel[None, :]
        tl.store(total + of_total, value.to(total.dtype.element_ty), mask=inside)
    if n_seen > 0:
        _seen(value, inside, out_0, alpha_0, inverse_0, row + shift_0, n_0, batch, channel, d, out_row, slope)
    if n_seen > 1:
        _seen(value, inside, out_1, alpha_1, inverse_1, row + shift_1, n_1, batch, channel, d, out_row, slope)
    if n_seen > 2:
        _seen(value, inside, out_2, alpha_2, inverse_2, row + shift_2, n_2, batch, channel, d, out_row, slope)


class Seen(NamedTuple):
    """What a convolution sees of a sum: the snake of n columns from -shift on. Beyond the sum are zeros."""

    shift: int
    n: int
    alpha: Tensor | None = None
    """[C], as `inverse`; without them it is the leaky ReLU."""
    inverse: Tensor | None = None


def joined(
    parts: Sequence[Tensor],
    biases: Sequence[Tensor],
    n: int,
    d: int,
    width: int,
    into: torch.dtype,
    seen: Sequence[Seen] = (),
    *,
    total: torch.dtype | None = None,
    scale: float = 1.0,
    slope: float | None = None,
    shift: int = 0,
) -> tuple[Tensor, list[Tensor]]:
    """The sum of the parts [B, n or more, d or more], of which there are up to three, and one or two biases, times
    `scale`: the first d channels of [B, n, width] in the dtype `total`, if it is given; and what is `seen` of it
    [B, seen.n, width] in the dtype `into`, with zeros in the channels after the first d.

    `shift` is added to the columns of the third part. If that is below 0, the column is mirrored there. With a `slope`
    a leaky ReLU is seen.
    """
    y, a, b = (*parts, parts[0], parts[0])[:3]
    assert 1 <= len(parts) <= 3 and 1 <= len(biases) <= 2 and len(seen) <= MOST_SEEN
    assert all(each.stride(2) == 1 and (len(y) == 1 or each.stride(0) % each.stride(1) == 0) for each in parts)
    n_batch = len(y)
    sums = y if total is None else y.new_empty(n_batch, n, width, dtype=total)
    outs = [y.new_empty(n_batch, each.n, width, dtype=into) for each in seen]
    first = min(0, *(-each.shift for each in seen)) if seen else 0
    until = max(n, *(each.n - each.shift for each in seen)) if seen else n
    pointers: list[Tensor] = []
    numbers: list[int] = []
    for i in range(MOST_SEEN):
        if i < len(seen):
            pointers += [outs[i], *(y if each is None else each for each in (seen[i].alpha, seen[i].inverse))]
            numbers += [seen[i].shift, seen[i].n]
        else:
            pointers, numbers = [*pointers, y, y, y], [*numbers, 0, 0]
    n_channels = padded(width)
    n_per = max(1, N_VALUES // n_channels)
    _joined[(triton.cdiv(until - first, n_per), n_batch)](
        y, a, b, biases[0], biases[-1], sums, *pointers,
        *(each.stride(0) // each.stride(1) for each in (y, a, b)), shift, n, first, *numbers,
        scale, slope, d, y.stride(1), a.stride(1), b.stride(1), width, width,
        n_channels, n_per, len(parts), len(biases), total is not None, len(seen),
    )  # fmt: skip
    return sums, outs


@triton.jit(
    do_not_specialize=["batch_stride", "channel_stride", "row_stride", "n", "left", "n_out"],
    do_not_specialize_on_alignment=["x"],
)
def _columns(
    x, out, batch_stride, channel_stride, row_stride, n, left, n_out,
    d: tl.constexpr, d_out: tl.constexpr, width: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * n_per + tl.arange(0, n_per)
    row, channel = at - left, tl.arange(0, width)
    inside = ((row >= 0) & (row < n))[:, None] & (channel < d)[None, :]
    of_x = batch * batch_stride + row[:, None] * row_stride + channel[None, :] * channel_stride
    value = tl.load(x + of_x, mask=inside, other=0.0).to(out.dtype.element_ty)
    is_stored = (at < n_out)[:, None] & (channel < d_out)[None, :]
    tl.store(out + (batch * n_out + at[:, None]) * d_out + channel[None, :], value, mask=is_stored)


def columns(x: Tensor, left: int, right: int, d_out: int, dtype: torch.dtype) -> Tensor:
    """x [B, C, n] -> [B, left + n + right, d_out], zeros beyond x. Of a negative number so many columns are dropped."""
    n_batch, d, n = x.shape
    n_out = left + n + right
    out = x.new_empty(n_batch, n_out, d_out, dtype=dtype)
    n_per = 16
    _columns[(triton.cdiv(n_out, n_per), n_batch)](
        x, out, x.stride(0), x.stride(1), x.stride(2), n, left, n_out, d, d_out, padded(d_out), n_per
    )
    return out


# -------------------------------------------------------------------------------------------------- transforms


@triton.jit(
    do_not_specialize=["batch_stride", "n", "first", "n_out", "n_columns"], do_not_specialize_on_alignment=["source"]
)
def _spectrum(
    source, transform, out, batch_stride, n, first, n_out, n_columns,
    hop: tl.constexpr, n_fft: tl.constexpr, d: tl.constexpr, d_out: tl.constexpr,
    n_taps: tl.constexpr, width: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * n_per + tl.arange(0, n_per)
    column, tap, channel = first + at, tl.arange(0, n_taps), tl.arange(0, width)
    sample = column[:, None] * hop + tap[None, :] - n_fft // 2
    sample = tl.where(sample < 0, -sample, sample)  # the ends are reflected
    sample = tl.where(sample >= n, 2 * (n - 1) - sample, sample)
    is_column = (column >= 0) & (column < n_columns)
    inside = is_column[:, None] & (tap < n_fft)[None, :]
    samples = tl.load(source + batch * batch_stride + sample, mask=inside, other=0.0).to(tl.float32)
    is_weight = (tap < n_fft)[:, None] & (channel < d)[None, :]
    weights = tl.load(transform + channel[None, :] * n_fft + tap[:, None], mask=is_weight, other=0.0).to(tl.float32)
    value = tl.dot(samples, weights, input_precision="ieee").to(out.dtype.element_ty)
    is_stored = (at < n_out)[:, None] & (channel < d_out)[None, :]
    tl.store(out + (batch * n_out + at[:, None]) * d_out + channel[None, :], value, mask=is_stored)


def spectrum(
    source: Tensor, transform: Tensor, hop: int, first: int, n_out: int, d_out: int, dtype: torch.dtype
) -> Tensor:
    """Source [B, 1, n], transform [18, 1, 16] -> columns first .. first + n_out of its spectrum [B, n_out, d_out].
    Zeros are what lies beyond the n / hop + 1 columns, and the channels after the first 18."""
    n_batch, _, n = source.shape
    d, _, n_fft = transform.shape
    out = source.new_empty(n_batch, n_out, d_out, dtype=dtype)
    n_per = 64
    n_taps, width = (max(LEAST_ROWS, padded(each)) for each in (n_fft, d_out))
    assert source.stride(2) == 1
    _spectrum[(triton.cdiv(n_out, n_per), n_batch)](
        source, transform, out, source.stride(0), n, first, n_out, n // hop + 1,
        hop, n_fft, d, d_out, n_taps, width, n_per,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["n"])
def _frames(
    y, bias, transform, out, n, highest: tl.constexpr,
    row: tl.constexpr, n_fft: tl.constexpr, n_bins: tl.constexpr,
    width: tl.constexpr, n_taps: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * n_per + tl.arange(0, n_per)
    band, tap = tl.arange(0, width), tl.arange(0, n_taps)
    is_band = band < n_bins
    inside = (column < n)[:, None] & is_band[None, :]
    of_band = y + column[:, None] * row + band[None, :]
    log_magnitude = tl.load(of_band, mask=inside, other=0.0).to(tl.float32)
    log_magnitude += tl.load(bias + band, mask=is_band, other=0.0).to(tl.float32)[None, :]
    angle = tl.load(of_band + n_bins, mask=inside, other=0.0).to(tl.float32)
    angle += tl.load(bias + n_bins + band, mask=is_band, other=0.0).to(tl.float32)[None, :]
    phase = tl.sin(angle)
    magnitude = tl.exp(log_magnitude)
    magnitude = tl.where(magnitude > highest, highest, magnitude)  # what is not a number stays so
    is_weight = is_band[:, None] & (tap < n_fft)[None, :]
    of_weight = transform + band[:, None] * n_fft + tap[None, :]
    real = tl.load(of_weight, mask=is_weight, other=0.0).to(tl.float32)
    imaginary = tl.load(of_weight + n_bins * n_fft, mask=is_weight, other=0.0).to(tl.float32)
    frame = tl.dot(magnitude * tl.cos(phase), real, input_precision="ieee")
    frame += tl.dot(magnitude * tl.sin(phase), imaginary, input_precision="ieee")
    is_stored = (column < n)[:, None] & (tap < n_fft)[None, :]
    tl.store(out + column[:, None] * n_fft + tap[None, :], frame, mask=is_stored)


@triton.jit(do_not_specialize=["n_columns", "begin", "n"])
def _overlapped(
    frames, window, out, n_columns, begin, n, limit,
    hop: tl.constexpr, n_fft: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    batch, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * n_per + tl.arange(0, n_per)
    sample = begin + at + n_fft // 2
    value, weight = tl.zeros((n_per,), tl.float32), tl.zeros((n_per,), tl.float32)
    for i in tl.static_range((n_fft + hop - 1) // hop):
        column, tap = sample // hop - i, sample % hop + hop * i
        inside = (at < n) & (column >= 0) & (column < n_columns) & (tap < n_fft)
        value += tl.load(frames + (batch * n_columns + column) * n_fft + tap, mask=inside, other=0.0)
        weight += tl.load(window + tap, mask=inside, other=0.0).to(tl.float32)
    value = value / weight
    value = tl.where(value > limit, limit, value)
    value = tl.where(value < -limit, -limit, value)
    tl.store(out + batch * n + at, value, mask=at < n)


def frames(y: Tensor, bias: Tensor, transform: Tensor, highest: float) -> Tensor:
    """y [B, M, 18 or more], contiguous, plus `bias`, are nine logarithms of magnitudes and nine angles, the sines of
    which are phases -> the windowed frames [B, M, 16] float32 of the inverse `transform` [18, 1, 16]."""
    n_batch, n, row = y.shape
    d, _, n_fft = transform.shape
    out = y.new_empty(n_batch, n, n_fft, dtype=torch.float32)
    width, n_taps, n_per = max(LEAST_ROWS, padded(d // 2)), max(LEAST_ROWS, padded(n_fft)), 64
    grid = (triton.cdiv(n_batch * n, n_per),)
    _frames[grid](y, bias, transform, out, n_batch * n, highest, row, n_fft, d // 2, width, n_taps, n_per)
    return out


def overlapped(frames: Tensor, window: Tensor, hop: int, begin: int, n: int, limit: float) -> Tensor:
    """Frames [B, M, 16] float32 added with a hop, over the sum of the squared windows [1, 1, 16]: samples begin ..
    begin + n of the 4 (M - 1), within +- limit, [B, n]."""
    n_batch, n_columns, n_fft = frames.shape
    out = frames.new_empty(n_batch, n)
    n_per = 512
    grid = (triton.cdiv(n, n_per), n_batch)
    _overlapped[grid](frames, window, out, n_columns, begin, n, limit, hop, n_fft, n_per)
    return out


# ---------------------------------------------------------------------------------------- pitch and source


@triton.jit
def _elu(x, bias, channel, inside):
    value = x + tl.load(bias + channel, mask=inside, other=0.0)
    return tl.where(value > 0.0, value, tl.exp(value) - 1.0)


@triton.jit(
    do_not_specialize=["batch_stride", "row_stride", "channel_stride", "n"],
    do_not_specialize_on_alignment=["x", "bias"],
)
def _pitch_windows(
    x, bias, out, batch_stride, row_stride, channel_stride, n,
    d: tl.constexpr, width: tl.constexpr, activates: tl.constexpr,
):  # fmt: skip
    at_frame, channel = tl.program_id(0).to(tl.int64), tl.arange(0, width)
    batch, frame = at_frame // n, at_frame % n
    inside = channel < d
    if activates:
        value = tl.load(x + at_frame * d + channel, mask=inside, other=0.0)
        value = _elu(value, bias, channel, inside)
    else:
        of_x = batch * batch_stride + frame * row_stride + channel * channel_stride
        value = tl.load(x + of_x, mask=inside, other=0.0).to(out.dtype.element_ty)
    at = frame + 0 * channel  # the same number for each channel, as masks are
    # This frame is the middle of its own window, the last of the one before, and the first of the one after.
    own = out + at_frame * (3 * d) + channel
    tl.store(own + d, value, mask=inside)
    tl.store(own - d, value, mask=inside & (at > 0))
    tl.store(own + 3 * d, value, mask=inside & (at < n - 1))
    nothing = tl.zeros((width,), out.dtype.element_ty)
    tl.store(own, nothing, mask=inside & (at == 0))
    tl.store(own + 2 * d, nothing, mask=inside & (at == n - 1))


@triton.jit
def _pitch(x, bias, weight, out_bias, out, d: tl.constexpr, width: tl.constexpr):
    frame, channel = tl.program_id(0).to(tl.int64), tl.arange(0, width)
    inside = channel < d
    value = _elu(tl.load(x + frame * d + channel, mask=inside, other=0.0), bias, channel, inside)
    total = tl.sum(value * tl.load(weight + channel, mask=inside, other=0.0)) + tl.load(out_bias)
    tl.store(out + frame, tl.abs(total))


def pitch_windows(x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [B, T, C] -> the frame before, the frame and the frame after of each, zeros beyond, [B * T, 3 C]. With a bias
    they are of elu(x + bias), and x is contiguous."""
    n_batch, n, d = x.shape
    out = x.new_empty(n_batch * n, 3 * d, dtype=dtype)
    _pitch_windows[(n_batch * n,)](
        x, x if bias is None else bias, out, x.stride(0), x.stride(1), x.stride(2), n, d, padded(d), bias is not None
    )
    return out


def pitch(x: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor) -> Tensor:
    """x [B, T, C], contiguous -> |weight elu(x + bias) + out_bias| [B, T]"""
    n_batch, n, d = x.shape
    out = x.new_empty(n_batch, n)
    _pitch[(n_batch * n,)](x, bias, weight, out_bias, out, d, padded(d))
    return out


@triton.jit
def _mixed_bits(x):
    x = (x ^ (x >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full((), 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _normal(x):
    """The inverse of the normal distribution at (1 + x) / 2, after M. Giles, "Approximating the erfinv function", 2012:
    within 4e-7 of it, relatively."""
    w = -tl.log((1.0 - x) * (1.0 + x))
    near, far = w - 2.5, tl.sqrt(w) - 3.0
    a = near * 2.81022636e-08 + 3.43273939e-07
    a = a * near + -3.5233877e-06
    a = a * near + -4.39150654e-06
    a = a * near + 0.00021858087
    a = a * near + -0.00125372503
    a = a * near + -0.00417768164
    a = a * near + 0.246640727
    a = a * near + 1.50140941
    b = far * -0.000200214257 + 0.000100950558
    b = b * far + 0.00134934322
    b = b * far + -0.00367342844
    b = b * far + 0.00573950773
    b = b * far + -0.0076224613
    b = b * far + 0.00943887047
    b = b * far + 1.00167406
    b = b * far + 2.83297682
    return tl.where(w < 5.0, a, b) * x * 1.4142135623730951


@triton.jit(
    do_not_specialize=["f0_stride", "n_frames", "n", "first"],
    do_not_specialize_on_alignment=["f0", "cycles", "voiced", "numbers"],
)
def _excited(
    f0, cycles, voiced, numbers, weight, bias, out, cycles_after, voiced_after, f0_stride, n_frames, n, first,
    rate_hz: tl.constexpr, voiced_above_hz: tl.constexpr, amplitude: tl.constexpr, noise_std: tl.constexpr,
    n_sines: tl.constexpr, n_frame: tl.constexpr, goes_on: tl.constexpr,
    width: tl.constexpr, n_lanes: tl.constexpr, n_per: tl.constexpr,
):  # fmt: skip
    frame, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    half: tl.constexpr = n_frame // 2
    f0 += batch * f0_stride
    sine = tl.arange(0, width)
    multiple = (sine + 1).to(tl.float64)
    # The phase at the centre of the frame before this one.
    start = tl.zeros((width,), tl.float64)
    for begin in range(0, n_frames, n_per):
        earlier = begin + tl.arange(0, n_per)
        hz = tl.load(f0 + earlier, mask=earlier < frame, other=0.0).to(tl.float64)
        turns = hz[:, None] * multiple[None, :] / rate_hz
        start += tl.sum((turns - tl.floor(turns)) * n_frame, 0)
    if goes_on:
        start += tl.load(cycles + batch * n_sines + sine, mask=sine < n_sines, other=0.0)
    at = frame + 0 * sine
    own_hz = tl.load(f0 + at, mask=at < n_frames, other=0.0).to(tl.float64)
    step = own_hz * multiple / rate_hz
    step -= tl.floor(step)
    if not goes_on:  # the first half frame has the phase of its end
        start = tl.where(at == 0, step * n_frame, start)
        step = tl.where(at == 0, 0.0, step)
    start -= tl.floor(start)
    is_end = (at == n_frames) & (sine < n_sines)
    tl.store(cycles_after + batch * n_sines + sine, start, mask=is_end)
    last_hz = tl.load(f0 + n_frames - 1)
    tl.store(voiced_after + batch + 0 * sine, (last_hz > voiced_above_hz + 0 * sine).to(tl.uint8), mask=is_end)

    lane = tl.arange(0, n_lanes)
    sample = frame * n_frame + lane
    if goes_on:
        of_frame, skip = (sample + half) // n_frame - 1, half
    else:
        sample -= half
        of_frame, skip = sample // n_frame, 0
    inside = (lane < n_frame) & (sample >= 0) & (sample < n)
    hz = tl.load(f0 + of_frame, mask=inside & (of_frame >= 0), other=0.0)
    is_voiced = hz > voiced_above_hz
    if goes_on:
        was_voiced = tl.load(voiced + batch + 0 * lane, mask=inside, other=0) != 0
        is_voiced = tl.where(of_frame < 0, was_voiced, is_voiced)
    loud = tl.where(is_voiced, amplitude, 0.0)
    deviation = tl.where(is_voiced, noise_std, amplitude / 3)
    counter = tl.load(numbers + batch * 3).to(tl.uint32, bitcast=True)
    key_1 = tl.load(numbers + batch * 3 + 1).to(tl.uint32, bitcast=True)
    key_2 = tl.load(numbers + batch * 3 + 2).to(tl.uint32, bitcast=True)
    position = (first - skip + sample) * n_sines
    mix = tl.zeros((n_lanes,), tl.float32) + tl.load(bias).to(tl.float32)
    for k in tl.static_range(n_sines):
        begins = tl.sum(tl.where(sine == k, start, 0.0))
        steps = tl.sum(tl.where(sine == k, step, 0.0))
        turns = begins + (lane + 0.5).to(tl.float64) * steps
        turns -= tl.floor(turns + 0.5)
        wave = tl.sin(turns.to(tl.float32) * 6.283185307179586)
        bits = ((position + k).to(tl.uint32, bitcast=True) + counter) ^ key_1
        bits = _mixed_bits(_mixed_bits(bits) + key_2) >> 9
        noise = _normal((bits.to(tl.float32) + 0.5) * 2.384185791015625e-07 - 1.0)
        mix += tl.load(weight + k).to(tl.float32) * (loud * wave + deviation * noise)
    # tanh
    power = tl.exp(2.0 * tl.where(mix > 20.0, 20.0, mix))
    mix = 1.0 - 2.0 / (power + 1.0)
    tl.store(out + batch * n + sample, mix.to(out.dtype.element_ty), mask=inside)


def excited(
    f0: Tensor,
    state: tuple[Tensor, Tensor] | None,
    numbers: Tensor,
    weight: Tensor,
    bias: Tensor,
    settings: tuple[int, float, float, float],
    n_frame: int,
    first: int,
    *,
    last: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`Vocoder.excite` for a pitch that ramps: f0 [B, L] in Hz, the state (cycles [B, H] float64, voiced [B, 1]), the
    `numbers` [B, 3] of `NoiseRows`, and the mix, weight [1, H] and bias [1] -> source [B, 1, n] in the dtype of f0, and
    the state after it. `settings`: rate, least pitch of a voice, amplitude of a sine and deviation of its noise."""
    n_batch, n_frames = f0.shape
    n_sines = weight.shape[1]
    n = n_frames * n_frame + (n_frame // 2) * (last - (state is None))
    out = f0.new_empty(n_batch, 1, n)
    cycles_after = f0.new_empty(n_batch, n_sines, dtype=torch.float64)
    voiced_after = f0.new_empty(n_batch, 1, dtype=torch.uint8)
    cycles, voiced = cycles_after, voiced_after
    if state is not None:
        cycles, voiced = state[0].contiguous(), state[1].contiguous().view(torch.uint8)
    assert f0.stride(1) == 1 and numbers.is_contiguous()
    _excited[(n_frames + 1, n_batch)](
        f0, cycles, voiced, numbers, weight, bias, out, cycles_after, voiced_after, f0.stride(0), n_frames, n,
        n_frame * first, *settings, n_sines, n_frame, state is not None, padded(n_sines), padded(n_frame), 64,
    )  # fmt: skip
    return out, cycles_after, voiced_after.view(torch.bool)


def run_once(device: torch.device) -> None:
    """Run the kernels that ask most of a GPU. Raises whatever Triton raises."""
    f0 = torch.zeros(1, 2, dtype=torch.float64, device=device)
    mix, numbers = f0.new_zeros(1, 9), f0.new_zeros(1, 3, dtype=torch.int32)
    source, *_ = excited(f0, None, numbers, mix, mix[0, :1], (24_000, 10.0, 0.1, 0.003), 480, 0, last=True)
    transform, window = source.new_zeros(18, 1, 16), source.new_ones(1, 1, 16)
    for dtype in HALVES_AND_WHOLE:
        seen = spectrum(source, transform, 4, 0, 8, 24, dtype)
        alpha = seen.new_ones(24)
        joined([seen], [alpha], 8, 24, 24, dtype, [Seen(1, 10, alpha, alpha)])
        overlapped(frames(seen, alpha, transform, 100.0), window, 4, 0, 28, 0.99)
