"""Whether the kernels of a GPU run on a device: the modules of this engine that are written in Triton.

Triton comes with PyTorch for CUDA. It needs a C compiler at the first start, and a GPU of Ampere or later.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType

import torch

log = logging.getLogger(__name__)

LEAST_CAPABILITY = 8, 0
"""Triton supports no older GPUs."""
HALVES_AND_WHOLE = torch.float16, torch.bfloat16, torch.float32
"""In which each module tries its kernels."""
Load = Callable[[], ModuleType]
"""Imports a module of kernels, which imports Triton."""


def kernels_for_heads(device: torch.device, d_head: int, load: Load) -> ModuleType | None:
    """`kernels_of` for a network with attention: its kernels take heads of a power of two, 16 or more."""
    return kernels_of(device, load) if d_head >= 16 and d_head & (d_head - 1) == 0 else None


@functools.cache
def kernels_of(device: torch.device, load: Load) -> ModuleType | None:
    """The module that `load` imports, if its kernels run on the device: its `run_once(device)` runs those that ask most
    of a GPU. Else None, and PyTorch's own operations compute the same, slower."""
    if device.type != "cuda":
        return None
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return None
    try:
        kernels = load()
        with torch.cuda.device(device):
            kernels.run_once(device)
            torch.cuda.synchronize(device)
    except Exception as error:  # whatever is missing, speech goes on
        log.warning("%s runs without the kernels of a GPU, which is slower: %s", load.__module__, error)
        return None
    return kernels
