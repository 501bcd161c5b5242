"""Whether the kernels of `triton_kernels` run on a device.

Triton comes with PyTorch for CUDA. It needs a C compiler at the first start, and a GPU of Ampere or later.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType

import torch

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES

log = logging.getLogger(__name__)

LEAST_CAPABILITY = 8, 0
"""Triton supports no older GPUs."""


def kernels_for_heads(device: torch.device, d_head: int) -> ModuleType | None:
    """`kernels_of` for a network with attention: its kernels take heads of a power of two, 16 or more."""
    return kernels_of(device) if d_head >= 16 and d_head & (d_head - 1) == 0 else None


def _try(kernels: ModuleType, device: torch.device, dtype: torch.dtype) -> None:
    """Run the kernels that ask most of a GPU, with the official sizes of heads. Raises whatever Triton raises."""
    numbers = torch.zeros(2, dtype=torch.int64, device=device)
    heads, cache = torch.zeros(2, 18, 64, dtype=dtype, device=device), torch.zeros(2, 1, 2, 8, 64, device=device)
    kernels.attend_slots(heads, numbers, numbers, cache.to(dtype))
    qkv = torch.zeros(2, BLOCK_FRAMES, 3 * 512, dtype=dtype, device=device)
    memory = torch.zeros(2, 8, 4, BLOCK_FRAMES, 64, dtype=dtype, device=device)
    kernels.attend_pages(qkv, memory, numbers[:, None], numbers, numbers + BLOCK_FRAMES, 8)
    kernels.uniforms(numbers, numbers)
    torch.cuda.synchronize(device)


@functools.cache
def kernels_of(device: torch.device) -> ModuleType | None:
    """`triton_kernels` if they run on the device. Else None, and PyTorch's own operations compute the same, slower."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return None
    try:
        from telephony_tts.engines.cosyvoice2.model import triton_kernels

        with torch.cuda.device(device):
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                _try(triton_kernels, device, dtype)
    except Exception as error:  # whatever is missing, speech goes on
        log.warning("the speech model runs without its own kernels, which is slower: Triton cannot be used: %s", error)
        return None
    return triton_kernels
