"""A decode step or a prompt of the language model in int8 on a CPU: all layers in one call of the kernels.

It computes what `LanguageModel.run_layers` does. Through PyTorch, a fifth of a step goes to calling some four hundred
small operations, and idle lanes cannot help with a prompt's attention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.lm.weights import Int8Matrix
from telephony_tts.engines.kernels.library import DecoderLayer, Slots, functions

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.model.lm import lm


class Int8Decoder:
    """The layers of a language model whose matrices are all `Int8Matrix`."""

    def __init__(self, layers: Sequence[lm.DecoderLayer]) -> None:
        self._kept = [(layer, layer.qkv_bias.float().contiguous()) for layer in layers]
        addresses = [
            DecoderLayer(*map(_address, (each.qkv, each.out, each.gate_up, each.down)), bias.data_ptr())
            for each, bias in self._kept
        ]
        self._layers = (DecoderLayer * len(layers))(*addresses)
        self._run = functions().decode

    def __call__(self, x: Tensor, slots: Sequence[int], starts: Sequence[int], cache: lm.KvCache) -> Tensor:
        """Row i of x [B, D] becomes position `starts[i]` of `slots[i]`, and goes through all layers -> [B, D] float32.

        A row sees the positions of its slot up to its own, so the rows may be a prompt."""
        x = x.to(torch.float32, copy=True).contiguous()
        n_slots, n_kv, max_len, d = cache.data.shape[2:]
        cos, sin = cache.rotary
        of_cache = Slots(cache.data.data_ptr(), cos.data_ptr(), sin.data_ptr(), n_slots, n_kv, max_len, d)
        numbers = ctypes.c_int * len(slots)
        c_slots, c_starts = numbers(*slots), numbers(*starts)
        self._run(
            ctypes.addressof(self._layers),
            len(self._layers),
            ctypes.addressof(of_cache),
            ctypes.addressof(c_slots),
            ctypes.addressof(c_starts),
            len(slots),
            x.data_ptr(),
        )
        return x


def _address(matrix: object) -> int:
    assert isinstance(matrix, Int8Matrix)
    return matrix.linear.address
