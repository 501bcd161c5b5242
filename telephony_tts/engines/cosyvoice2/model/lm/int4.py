"""Weight matrices of the language model in 4 bits for decode steps on a CPU, and in bfloat16 for prefill.

A decode step costs as much as reading its weights, and 4 bits are half of int8. The many rows of a prefill read them
once and are bound by arithmetic, which 4 bits make slower. So the weights are kept in bfloat16 too.

Each GROUP weights of a row share a scale and an offset: weight = (integer - 8) * scale + offset, integers 0 to 15.
Weights are rounded to nearest. The range of a group is narrowed if that reduces its squared error.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.linear import PACKED_FOR, SMALLEST_SCALE, packing_is_exact
from telephony_tts.engines.cosyvoice2.model.lm.weights import RmsNorm, rms_norm

INSTEAD = "use engines.cosyvoice2.lm_dtype: int8"
GROUP = 32
ROW_MULTIPLE = 16
MAX_INT4_ROWS = 16
"""Up to this many rows are multiplied by the weights in 4 bits."""
_LARGEST, _ZERO = 15, 8
_RANGES = (1.0, 0.92, 0.84)
"""Shares of a group's range that are tried. Weights outside are clipped."""
_INNER_TILES = 2


class Int4Matrix:
    """Weights [N, K] of float32 on a CPU. Takes float32 or bfloat16. Gives bfloat16, or float32 with a float32 bias.

    Raises ValueError for other weights, for sizes that are no multiples of ROW_MULTIPLE and GROUP, and if this
    processor or PyTorch lacks the products (`available`).

    A row's result is bit-identical in any batch.
    """

    def __init__(self, weight: Tensor, norm: RmsNorm | None = None) -> None:
        if weight.dtype is not torch.float32 or weight.device.type != "cpu":
            raise ValueError(f"int4 weights are made of float32 on the CPU, not of {weight.dtype} on {weight.device}")
        if weight.shape[0] % ROW_MULTIPLE or weight.shape[1] % GROUP:
            raise ValueError(
                f"{list(weight.shape)} is not a multiple of {ROW_MULTIPLE} rows and {GROUP} columns: {INSTEAD}"
            )
        if not weight.isfinite().all():
            raise ValueError("weights that are not finite cannot be rounded (see models check)")
        if not available():
            raise ValueError(f"int4 needs a processor and a PyTorch with bfloat16 products: {INSTEAD}")
        integers, self._scales = grouped(weight)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, _INNER_TILES)
        self._wide = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), PACKED_FOR)
        self._norm = norm

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if self._norm is not None:
            rows = rms_norm(rows, self._norm.weight, self._norm.eps)
        narrow = rows.bfloat16().contiguous()
        if len(rows) <= MAX_INT4_ROWS:
            y = _few(narrow, self._packed, self._scales)
        else:
            y = torch.ops.mkldnn._linear_pointwise(narrow, self._wide, None, "none", [], "")
        # A float32 bias makes the sum float32. Without a bias the product stays bfloat16, as the next matrix takes it.
        if bias is not None:
            y = y + bias
        return y.view(*x.shape[:-1], y.shape[-1])


def _few(rows: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, GROUP, scales)
    return y


def grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [N, K] -> int32 [N, K] from 0 to 15, and scale and offset of each group, bfloat16 [K / GROUP, N, 2]."""
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.aminmax(dim=2, keepdim=True)
    best = torch.full_like(low, torch.inf)
    integers = torch.zeros_like(groups)
    scales = groups.new_zeros(*low.shape[:2], 2)
    for part in _RANGES:
        # Rounded to bfloat16 before the integers are computed, so that they compensate for it.
        scale = ((high - low) * (part / _LARGEST)).bfloat16().float()
        offset = ((high + low) / 2 + scale / 2).bfloat16().float()
        tried = groups.sub(offset).div_(scale.clamp(min=SMALLEST_SCALE)).add_(_ZERO).round_().clamp_(0, _LARGEST)
        error = tried.sub(_ZERO).mul_(scale).add_(offset).sub_(groups).square_().sum(dim=2, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        integers = torch.where(better, tried, integers)
        scales = torch.where(better, torch.cat([scale, offset], dim=2), scales)
    return integers.flatten(1).to(torch.int32), scales.transpose(0, 1).bfloat16().contiguous()


def restored(integers: Tensor, scales: Tensor) -> Tensor:
    """The weights that `grouped` represents, float32 [N, K]."""
    scale, offset = torch.split(scales.float().transpose(0, 1), 1, dim=2)
    groups = integers.view(len(integers), -1, GROUP)
    return torch.flatten((groups - _ZERO) * scale + offset, 1)


@functools.cache
def available() -> bool:
    """Whether this processor and PyTorch multiply by 4-bit weights, and a row has the same bits in any batch."""
    if not packing_is_exact():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 2 * GROUP, generator=generator)
    x = torch.randn(MAX_INT4_ROWS, 2 * GROUP, generator=generator).bfloat16()
    try:
        integers, scales = grouped(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, _INNER_TILES)
        y = _few(x, packed, scales)
        alone = all(torch.equal(_few(x[i : i + n], packed, scales), y[i : i + n]) for n in (1, 2, 3) for i in range(4))
    except (AttributeError, RuntimeError):
        return False
    return alone and torch.allclose(y.float(), x.float() @ restored(integers, scales).t(), rtol=0.02, atol=0.1)
