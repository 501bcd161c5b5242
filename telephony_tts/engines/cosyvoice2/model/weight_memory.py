"""Memory for int8 weights, in pages of 2 MB where the system has them.

Each id reads all weights of the language model once. With pages of 4 KB a processor waits for the addresses of pages
more than for their bytes: on a Zen 4 in a virtual machine it reads 24 GB/s, and 27 GB/s with pages of 2 MB. Systems
give them only to memory that asks for them, and most weights are smaller than one. So many weights share a mapping.
"""

from __future__ import annotations

import mmap
import threading

import torch
from torch import Tensor

MAPPING_BYTES = 64 << 20
"""Of a mapping that many weights share. What is not written yet takes no room in the machine's memory."""
PAGE_BYTES = 2 << 20
LINE_BYTES = 64
"""Weights begin at multiples of this."""


class WeightMemory:
    """Gives out memory. A mapping is freed when nothing refers to its weights any more. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, n_bytes: int) -> Tensor:
        """uint8 [n_bytes], zeros."""
        n_taken = -(-n_bytes // LINE_BYTES) * LINE_BYTES
        if n_taken > MAPPING_BYTES:
            return _mapping(n_taken)[:n_bytes]
        with self._lock:
            if len(self._left) < n_taken:
                self._left = _mapping(MAPPING_BYTES)
            taken, self._left = self._left[:n_bytes], self._left[n_taken:]
        return taken


WEIGHTS = WeightMemory()


def _mapping(n_bytes: int) -> Tensor:
    """uint8, at least `n_bytes`, from the beginning of a page of 2 MB on."""
    n_pages = -(-n_bytes // PAGE_BYTES)
    # Private: of shared memory, which is what `mmap` gives unless asked, most systems have small pages only.
    mapped = mmap.mmap(-1, (n_pages + 1) * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapped, dtype=torch.uint8)
    begin = -memory.data_ptr() % PAGE_BYTES
    return memory[begin : begin + n_pages * PAGE_BYTES]
