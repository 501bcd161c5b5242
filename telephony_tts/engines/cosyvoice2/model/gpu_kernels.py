"""Whether the kernels of `triton_kernels` run on a device.

Triton comes with PyTorch for CUDA. It needs a C compiler at the first start, and a GPU of Ampere or later.
"""

from __future__ import annotations

import functools
import logging
from types import ModuleType

import torch

log = logging.getLogger(__name__)

LEAST_CAPABILITY = 8, 0
"""Triton supports no older GPUs."""


def kernels_for_heads(device: torch.device, d_head: int) -> ModuleType | None:
    """`kernels_of` for a network with attention: its kernels take heads of a power of two, 16 or more."""
    return kernels_of(device) if d_head >= 16 and d_head & (d_head - 1) == 0 else None


@functools.cache
def kernels_of(device: torch.device) -> ModuleType | None:
    """`triton_kernels` if they run on the device. Else None, and PyTorch's own operations compute the same, slower."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return None
    try:
        from telephony_tts.engines.cosyvoice2.model import triton_kernels

        ones = torch.ones(1, 16, device=device)
        triton_kernels.rms_norm(ones, ones[0], 1e-6)
        torch.cuda.synchronize(device)
    except Exception as error:  # whatever is missing, speech goes on
        log.warning("the speech model runs without its own kernels, which is slower: Triton cannot be used: %s", error)
        return None
    return triton_kernels
