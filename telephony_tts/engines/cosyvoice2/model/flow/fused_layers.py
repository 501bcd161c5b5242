"""The estimator's layers on a GPU, with the kernels of `triton_kernels`: an Euler step in half as many launches.

They compute what the layers of `decoder` do, in passes of an `EstimatorBatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.device_pages import EstimatorBatch
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowConv
from telephony_tts.engines.cosyvoice2.model.linear import LayerNorm

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.model.flow.decoder import CausalConvBlock, TransformerBlock


class FusedTransformers:
    """The transformer blocks of a stage, one after the other."""

    def __init__(self, blocks: Sequence[TransformerBlock], kernels: ModuleType) -> None:
        self._blocks, self._kernels = tuple(blocks), kernels

    def __call__(self, x: Tensor, past: EstimatorBatch, first: int, n_heads: int) -> Tensor:
        """x [B, T, C] -> [B, T, C]. The first block has the attention layer `first`."""
        kernels, blocks = self._kernels, self._blocks
        x, normed = kernels.layer_norm(x, *blocks[0].norm_1)
        for i, block in enumerate(blocks):
            x, normed = kernels.layer_norm(
                x, *block.norm_3, added=block.out(past.attend(first + i, block.qkv(normed), n_heads))
            )
            forward = block.ff_2(kernels.gelu_map(normed, *block.ff_1))
            if i + 1 == len(blocks):
                return x.add_(forward)
            x, normed = kernels.layer_norm(x, *blocks[i + 1].norm_1, added=forward)
        raise AssertionError("a stage without transformer blocks")


class FusedConv:
    """A causal convolution, and the norm and Mish behind it."""

    def __init__(self, conv: FlowConv, norm: LayerNorm, slot: int, kernels: ModuleType) -> None:
        self._map, self._norm, self._slot, self._kernels = conv.windows(), norm, slot, kernels

    def __call__(self, x: Tensor, past: EstimatorBatch, added: Tensor) -> Tensor:
        """x [B, T, C_in], `added` [M, C] for B * T / M frames each -> [B, T, C]"""
        rows = self._map(past.windows(x, self._slot))
        return self._kernels.norm_mish(rows, *self._norm, added).view(*x.shape[:2], -1)  # type: ignore[no-any-return]


class FusedResnet:
    """`ResnetBlock`."""

    def __init__(self, blocks: Sequence[CausalConvBlock], skip: FlowConv, kernels: ModuleType) -> None:
        self._first, self._second = (FusedConv(each.conv, each.norm, each.slot, kernels) for each in blocks)
        self._skip = skip.windows()

    def __call__(self, x: Tensor, time: Tensor, past: EstimatorBatch) -> Tensor:
        """x [B, T, C_in], time [B, C] -> [B, T, C]"""
        h = self._first(x, past, time)
        return self._second(h, past, self._skip(x).flatten(0, 1))
