"""Keys and values of a language model, one slot per utterance."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from telephony_tts.runtime.errors import EngineError


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A tensor of zeros. On a CPU its memory is taken page by page when it is first written: most slots of a cache are
    free, or filled in part. PyTorch's own zeros are written at once."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(memory).view(dtype).view(shape)


class SlotCache:
    """Keys and values of all slots: `data` [n_layers, 2, n_slots + 1, KV, max_len, d], never reallocated.

    `lengths[slot]` positions are filled. The host counts them itself, so it never waits for the device. The core knows
    which slots are taken (`core.scheduler.Slots`); a free slot is empty.

    The last slot, `scratch_slot`, is for the rows of a decode step that belong to no utterance. So the number of rows,
    and with it the arithmetic of every other row, stays the same while utterances begin and end.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        d_head: int,
        n_slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if n_slots < 1 or max_len < 1:
            raise ValueError(f"a cache needs slots and positions, not {n_slots} slots of {max_len} positions")
        self.data = zeros_on_demand((n_layers, 2, n_slots + 1, n_kv_heads, max_len, d_head), dtype, device)
        self.n_slots, self.max_len = n_slots, max_len
        self.scratch_slot = n_slots
        self.lengths = [0] * n_slots

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Empty a slot. Its values are zeroed: a masked position gets the weight zero, and zero times NaN is NaN."""
        if not 0 <= slot < self.n_slots:
            raise ValueError(f"no slot {slot} among {self.n_slots}")
        try:
            self.data[:, :, slot, :, : self.lengths[slot]] = 0
        finally:
            self.lengths[slot] = 0

    @torch.inference_mode()
    def cut(self, slot: int, n: int) -> None:
        """Forget the positions of a slot from `n` on."""
        self.data[:, :, slot, :, n:] = 0
        self.lengths[slot] = n

    @torch.inference_mode()
    def copied(self, slot: int, n: int) -> Tensor:
        """A copy of the first `n` positions of a slot, for `fill`: [n_layers, 2, KV, n, d]"""
        return self.data[:, :, slot, :, :n].clone()

    @torch.inference_mode()
    def fill(self, slot: int, positions: Tensor) -> None:
        """Begin an empty slot with positions that were copied from another one."""
        n = positions.shape[3]
        self.data[:, :, slot, :, :n] = positions
        self.lengths[slot] = n

    def room(self, slot: int, n: int) -> int:
        """The first of the next `n` positions of `slot`. Raises EngineError if they do not fit."""
        if slot == self.scratch_slot:
            return 0
        if not 0 <= slot < self.n_slots:
            raise ValueError(f"no slot {slot} among {self.n_slots}")
        if self.lengths[slot] + n > self.max_len:
            raise EngineError(f"prompt, text and speech exceed {self.max_len} tokens; speak it in shorter pieces")
        return self.lengths[slot]
