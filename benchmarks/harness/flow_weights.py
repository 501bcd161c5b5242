"""The estimator of the flow as plain weights, in the order of its stages, for paths that build a step of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FlowDecoderConfig

ROWS, KERNEL = 2, 3
"""Guidance branches; frames that a convolution sees."""
_PREFIX = "decoder.estimator."


class Map(NamedTuple):
    """A linear map: weight [N, K] float32, bias [N] or none. Of a convolution K is 3 C_in, the oldest frame first."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor


class Block(NamedTuple):
    """A convolution over this frame and the two before, LayerNorm, Mish."""

    conv: Map
    norm: Norm


class Layer(NamedTuple):
    norm_1: Norm
    qkv: Map
    out: Map
    norm_3: Norm
    ff_1: Map
    ff_2: Map


class Stage(NamedTuple):
    block_1: Block
    block_2: Block
    skip: Map
    layers: list[Layer]


@dataclass(frozen=True)
class EstimatorWeights:
    """Left contexts are numbered like those of the estimator: two a stage, then down, up and final."""

    config: FlowDecoderConfig
    stages: list[Stage]
    down: Map
    up: Map
    final: Block
    projection: Map

    @property
    def n_layers(self) -> int:
        return sum(len(stage.layers) for stage in self.stages)

    @property
    def context_widths(self) -> list[int]:
        """Channels of every left context."""
        convs = [conv for stage in self.stages for conv in (stage.block_1.conv, stage.block_2.conv)]
        return [conv.weight.shape[1] // KERNEL for conv in (*convs, self.down, self.up, self.final.conv)]

    @classmethod
    def of(cls, config: FlowDecoderConfig, state: Mapping[str, Tensor]) -> EstimatorWeights:
        """From the keys of `flow.pt`."""

        def get(key: str) -> Tensor:
            return state[_PREFIX + key].float()

        def linear(key: str) -> Map:
            return Map(get(f"{key}.weight"), get(f"{key}.bias"))

        def conv(key: str) -> Map:
            return Map(get(f"{key}.weight").transpose(1, 2).flatten(1).contiguous(), get(f"{key}.bias"))

        def norm(key: str) -> Norm:
            return Norm(get(f"{key}.weight"), get(f"{key}.bias"))

        def block(key: str) -> Block:
            return Block(conv(f"{key}.block.0"), norm(f"{key}.block.2"))

        def layer(key: str) -> Layer:
            qkv = torch.cat([get(f"{key}.attn1.to_{name}.weight") for name in "qkv"])
            out, ff_1, ff_2 = (linear(f"{key}.{name}") for name in ("attn1.to_out.0", "ff.net.0.proj", "ff.net.2"))
            return Layer(norm(f"{key}.norm1"), Map(qkv, None), out, norm(f"{key}.norm3"), ff_1, ff_2)

        def stage(key: str) -> Stage:
            layers = [layer(f"{key}.1.{i}") for i in range(config.n_blocks)]
            return Stage(block(f"{key}.0.block1"), block(f"{key}.0.block2"), conv(f"{key}.0.res_conv"), layers)

        names = ["down_blocks.0", *(f"mid_blocks.{i}" for i in range(config.n_mid_stages)), "up_blocks.0"]
        ends = conv("down_blocks.0.2"), conv("up_blocks.0.2"), block("final_block"), conv("final_proj")
        return cls(config, [stage(name) for name in names], *ends)
