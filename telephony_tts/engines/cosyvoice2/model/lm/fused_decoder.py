"""The layers of the language model on a GPU, with the kernels of `triton_kernels`.

It computes what `LanguageModel.run_layers` does, for rows of any slots and positions: for a decode step and for prompts
alike. Through PyTorch a layer takes some forty launches, and keys and values are copied before they are attended to;
here it takes nine.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.model.lm import lm


class FusedDecoder:
    """The layers of a language model whose matrices are all `FloatMatrix`, and its final norm."""

    def __init__(self, layers: Sequence[lm.DecoderLayer], norm: RmsNorm, kernels: ModuleType) -> None:
        self._layers, self._norm, self._kernels = tuple(layers), norm, kernels

    def embedded(self, of_table: Tensor, ids: Tensor, tables: Sequence[Tensor]) -> Tensor:
        """Row `ids[i]` of `tables[of_table[i]]`, for each i -> [N, D]. `of_table`, `ids` [N] int64."""
        made: Tensor = self._kernels.embedded(of_table, ids, tables)
        return made

    def __call__(self, x: Tensor, slots: Tensor, positions: Tensor, cache: lm.KvCache) -> Tensor:
        """Row i of x [N, D] becomes position `positions[i]` of `slots[i]`, both [N] int64, and goes through all layers
        and the final norm -> [N, D]. A row sees the positions of its slot up to its own, so rows may be a prompt."""
        kernels, n = self._kernels, len(x)
        total, normed = kernels.rms_norm(x, *_norm(self._layers[0].qkv))
        for i, layer in enumerate(self._layers):
            of_layer = cache.data[i]
            heads = F.linear(normed, _weight(layer.qkv), layer.qkv_bias).view(n, -1, of_layer.shape[4])
            kernels.turn_and_keep(heads, cache.rotary, slots, positions, of_layer)
            attended = kernels.attend_slots(heads, slots, positions, of_layer)
            attended = F.linear(attended, _weight(layer.out))
            total, normed = kernels.rms_norm(total, *_norm(layer.gate_up), added=attended)
            through = F.linear(kernels.gated(F.linear(normed, _weight(layer.gate_up))), _weight(layer.down))
            next_norm = self._norm if i + 1 == len(self._layers) else _norm(self._layers[i + 1].qkv)
            total, normed = kernels.rms_norm(total, *next_norm, added=through)
        hidden: Tensor = normed
        return hidden


def _weight(matrix: object) -> Tensor:
    assert isinstance(matrix, FloatMatrix)
    return matrix.weight


def _norm(matrix: object) -> RmsNorm:
    assert isinstance(matrix, FloatMatrix) and matrix.norm is not None
    return matrix.norm
