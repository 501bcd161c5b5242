"""Flow decoder: a velocity field over mel frames, and the ten Euler steps along it (specification 5.2, 5.3).

    estimator  v(x, mu, t, spk, cond): a U-Net in shape only, with one level and one frame rate
                 [B, T, 320] -> down: R, 4 TB, conv -> 12 x mid: R, 4 TB -> with skip, up: R, 4 TB, conv -> [B, T, 80]
    solver     x = noise; ten times x += dt * (1.7 v(x | text, voice) - 0.7 v(x | nothing))

R is a `ResnetBlock`, TB a `TransformerBlock`. Both guidance branches of a stream are two rows of one batch.
In int8 on a CPU the first step computes one row, because the other one is known (`unconditional_start`).

A frame depends on no frame after its own block of 50. So a new block computes its own frames only, and reads what each
Euler step has kept of the frames before from an `EstimatorContext` (`pass_context`). Time enters each R as one vector
per Euler step; these vectors are a table that is made when the weights are read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN, N_NOISE_FRAMES, FlowDecoderConfig
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import EstimatorBatch
from telephony_tts.engines.cosyvoice2.model.flow.fused_layers import FusedResnet, FusedTransformers
from telephony_tts.engines.cosyvoice2.model.flow.int8_layers import (
    Int8Conv,
    Int8ConvBlock,
    Int8Resnet,
    Int8TransformerBlock,
    Int8Transformers,
    check_heads,
)
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Pass
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowConv, FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PassLayout
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import ConvolutionContext, EstimatorContext

NORM_EPS = 1e-5
KERNEL = 3
N_BRANCHES = 2
"""Guidance branches, in this order: with text and voice, and without."""
NOISE_SEED = 0


def fixed_noise(d_mel: int) -> Tensor:
    """z [1, d_mel, 15000], the same for every utterance. Frame f starts from column f (specification 5.3)."""
    return torch.randn(1, d_mel, N_NOISE_FRAMES, generator=torch.Generator().manual_seed(NOISE_SEED))


def euler_times(n_steps: int) -> list[tuple[float, float]]:
    """(t, dt) of every step: tau_k = 1 - cos(pi k / 2n), summed in float32 as in the reference."""
    tau = 1 - torch.cos(torch.linspace(0, 1, n_steps + 1) * 0.5 * torch.pi)
    t, dt = tau[0], tau[1] - tau[0]
    times = []
    for k in range(1, n_steps + 1):
        times.append((float(t), float(dt)))
        t = t + dt
        if k < n_steps:
            dt = tau[k + 1] - t
    return times


def time_sinusoids(t: Tensor, d: int) -> Tensor:
    """t [B] in 0..1 -> [B, d]: sines, then cosines, of 1000 t at d/2 frequencies from 1 down to 1/10000."""
    half = d // 2
    f = torch.exp(torch.arange(half, dtype=torch.float32, device=t.device) * -(math.log(10_000.0) / (half - 1)))
    angle = 1000.0 * t.float()[:, None] * f
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def check_length(n_frames: int) -> None:
    """Raises ValueError if there are more frames, with those of the prompt, than noise."""
    if n_frames > N_NOISE_FRAMES:
        raise ValueError(f"{n_frames} frames with the prompt; the flow can make {N_NOISE_FRAMES}")


class CausalConvBlock:
    """Convolution over this frame and the two before, LayerNorm, Mish."""

    def __init__(self, take: FlowReader, key: str, d_in: int, d_out: int, slot: int) -> None:
        self.conv = take.conv(f"{key}.block.0", d_out, d_in, KERNEL)
        self.norm = take.norm(f"{key}.block.2", d_out, NORM_EPS)
        self.slot = slot

    def quantized(self, *, in_15_bits: bool = False) -> Int8ConvBlock:
        return Int8ConvBlock(self.conv, self.norm, self.slot, in_15_bits=in_15_bits)

    def __call__(self, x: Tensor, context: ConvolutionContext) -> Tensor:
        return F.mish(self.norm(self.conv.causal(x, context, self.slot)))


class ResnetBlock:
    """R(x) = CB(CB(x) + Linear(Mish(temb))) + Conv1x1(x)."""

    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str, d_in: int, slot: int) -> None:
        d = config.n_channels
        self.time = take.linear(f"{key}.mlp.1", d, config.d_time)
        self.block_1: CausalConvBlock | Int8ConvBlock = CausalConvBlock(take, f"{key}.block1", d_in, d, slot)
        self.block_2: CausalConvBlock | Int8ConvBlock = CausalConvBlock(take, f"{key}.block2", d, d, slot + 1)
        self.skip: FlowConv | Int8Conv = take.conv(f"{key}.res_conv", d, d_in, 1)
        self.int8: Int8Resnet | None = None
        """All of it in one call, once it is in int8."""
        self.fused: FusedResnet | None = None
        """With the kernels of a GPU, for an `EstimatorBatch`."""

    def __call__(self, x: Tensor, time: Tensor, context: ConvolutionContext) -> Tensor:
        """x [B, T, C_in], time [B or 1, C], which is Linear(Mish(temb)) -> [B, T, C]"""
        if self.int8 is not None and isinstance(context, Int8Pass):
            return self.int8(x, time, context)
        if self.fused is not None and isinstance(context, EstimatorBatch):
            return self.fused(x, time, context)
        h = self.block_1(x, context).add_(time[:, None])
        return self.block_2(h, context).add_(self.skip(x))

    def fuse(self, kernels: ModuleType) -> None:
        assert isinstance(self.block_1, CausalConvBlock) and isinstance(self.block_2, CausalConvBlock)
        assert isinstance(self.skip, FlowConv)
        self.fused = FusedResnet((self.block_1, self.block_2), self.skip, kernels)

    def quantize(self, *, in_15_bits: bool) -> None:
        """`in_15_bits`: the activations of the two maps that read x."""
        assert isinstance(self.block_1, CausalConvBlock) and isinstance(self.block_2, CausalConvBlock)
        assert isinstance(self.skip, FlowConv)
        self.block_1, self.block_2 = self.block_1.quantized(in_15_bits=in_15_bits), self.block_2.quantized()
        self.skip = Int8Conv(self.skip, in_15_bits=in_15_bits)
        self.int8 = Int8Resnet(self.block_1, self.block_2, self.skip)


class TransformerBlock:
    """x += MHA(LN(x)); x += FF(LN(x)) on [B, T, C]."""

    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str) -> None:
        d, d_attention = config.n_channels, config.n_heads * config.d_head
        self.norm_1 = take.norm(f"{key}.norm1", d, NORM_EPS)
        self.qkv = take.stacked_linear([f"{key}.attn1.to_{name}" for name in "qkv"], d_attention, d, bias=False)
        self.out = take.linear(f"{key}.attn1.to_out.0", d, d_attention)
        self.norm_3 = take.norm(f"{key}.norm3", d, NORM_EPS)
        self.ff_1 = take.linear(f"{key}.ff.net.0.proj", 4 * d, d)
        self.ff_2 = take.linear(f"{key}.ff.net.2", d, 4 * d)

    def __call__(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Changes and returns x."""
        x += self.out(attend(self.qkv(self.norm_1(x))))
        x += self.ff_2(F.gelu(self.ff_1(self.norm_3(x))))
        return x

    def quantized(self) -> Int8TransformerBlock:
        return Int8TransformerBlock((self.norm_1, self.norm_3), (self.qkv, self.out, self.ff_1, self.ff_2))


class StepContext(NamedTuple):
    """What the stages of one pass have in common."""

    times: Tensor
    """[n_stages, B or 1, C] of `Estimator.time_vectors`"""
    past: EstimatorContext


class EstimatorStage:
    """One R and its transformer blocks: two convolution slots and n_blocks attention layers."""

    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str, d_in: int, index: int) -> None:
        self.index, self.n_heads = index, config.n_heads
        self.resnet = ResnetBlock(config, take, f"{key}.0", d_in, slot=2 * index)
        self.transformers: Sequence[TransformerBlock | Int8TransformerBlock] = [
            TransformerBlock(config, take, f"{key}.1.{i}") for i in range(config.n_blocks)
        ]
        self.int8: Int8Transformers | None = None
        """All of them in one call, once they are in int8."""
        self.fused: FusedTransformers | None = None
        """With the kernels of a GPU, for an `EstimatorBatch`."""

    def quantize(self, *, in_15_bits: bool = False) -> None:
        self.resnet.quantize(in_15_bits=in_15_bits)
        blocks = [each.quantized() for each in self.transformers if isinstance(each, TransformerBlock)]
        self.transformers, self.int8 = blocks, Int8Transformers(blocks)

    def __call__(self, x: Tensor, context: StepContext) -> Tensor:
        x = self.resnet(x, context.times[self.index], context.past)
        if self.int8 is not None and isinstance(context.past, Int8Pass):
            return self.int8(x, context.past, self.index * len(self.transformers), self.n_heads)
        if self.fused is not None and isinstance(context.past, EstimatorBatch):
            return self.fused(x, context.past, self.index * len(self.transformers), self.n_heads)
        for layer, transformer in enumerate(self.transformers, self.index * len(self.transformers)):
            x = transformer(x, functools.partial(context.past.attend, layer, n_heads=self.n_heads))
        return x


class Estimator:
    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str) -> None:
        d = config.n_channels
        self.config = config
        self.n_stages = config.n_mid_stages + 2
        self.time_1 = take.linear(f"{key}.time_mlp.linear_1", config.d_time, config.d_in)
        self.time_2 = take.linear(f"{key}.time_mlp.linear_2", config.d_time, config.d_time)
        self.down = EstimatorStage(config, take, f"{key}.down_blocks.0", config.d_in, 0)
        self.down_conv: FlowConv | Int8Conv = take.conv(f"{key}.down_blocks.0.2", d, d, KERNEL)
        self.mid = [EstimatorStage(config, take, f"{key}.mid_blocks.{i}", d, i + 1) for i in range(config.n_mid_stages)]
        self.up = EstimatorStage(config, take, f"{key}.up_blocks.0", 2 * d, self.n_stages - 1)
        self.up_conv: FlowConv | Int8Conv = take.conv(f"{key}.up_blocks.0.2", d, d, KERNEL)
        self.slot_down, self.slot_up, slot_final = (2 * self.n_stages + i for i in range(3))
        self.final: CausalConvBlock | Int8ConvBlock = CausalConvBlock(take, f"{key}.final_block", d, d, slot_final)
        self.projection: FlowConv | Int8Conv = take.conv(f"{key}.final_proj", config.d_mel, d, 1)
        self.dtype = self.time_1.weight.dtype
        """The dtype of activations."""
        self.is_int8 = False

    @property
    def stages(self) -> list[EstimatorStage]:
        return [self.down, *self.mid, self.up]

    def quantize(self) -> None:
        """Converts all maps but those of the time to int8, on a CPU. Activations are float32 from then on.

        The first convolution's input holds mels beside noise, and the last maps make the velocity. They take few
        products, so their activations have 15 bits. Raises ValueError for heads that the kernels cannot attend with.
        """
        check_heads(self.config.d_head)
        assert isinstance(self.down_conv, FlowConv) and isinstance(self.up_conv, FlowConv)
        assert isinstance(self.final, CausalConvBlock) and isinstance(self.projection, FlowConv)
        for stage in self.stages:
            stage.quantize(in_15_bits=stage is self.down)
        self.down_conv, self.up_conv, self.projection = (
            Int8Conv(conv, in_15_bits=True) for conv in (self.down_conv, self.up_conv, self.projection)
        )
        self.final = self.final.quantized(in_15_bits=True)
        self.dtype, self.is_int8 = torch.float32, True

    def fuse(self, kernels: ModuleType) -> None:
        """Use the kernels of a GPU for batches of streams."""
        for stage in self.stages:
            blocks = [each for each in stage.transformers if isinstance(each, TransformerBlock)]
            stage.fused = FusedTransformers(blocks, kernels)
            stage.resnet.fuse(kernels)

    def layout(self, n_rows: int = N_BRANCHES) -> PassLayout:
        """What a pass over `n_rows` branches keeps of a stream."""
        config = self.config
        d = config.n_channels
        of_stages = [config.d_in, d, *[d] * (2 * config.n_mid_stages), 2 * d, d]
        return PassLayout(
            n_rows=n_rows,
            n_heads=config.n_heads,
            d_head=config.d_head,
            rates=(FRAMES_PER_TOKEN,) * (self.n_stages * config.n_blocks),
            contexts=tuple((KERNEL - 1, d_in) for d_in in (*of_stages, d, d, d)),
        )

    def time_embedding(self, t: Tensor) -> Tensor:
        """t [B] -> temb [B, d_time]"""
        e = time_sinusoids(t, self.config.d_in).to(self.time_1.weight.dtype)
        return self.time_2(F.silu(self.time_1(e)))

    def time_vectors(self, t: Tensor) -> Tensor:
        """t [B] -> [n_stages, B, C]: what each stage's R adds to its activations at that time."""
        temb = F.mish(self.time_embedding(t))
        return torch.stack([stage.resnet.time(temb) for stage in self.stages])

    def velocity(self, features: Tensor, times: Tensor, past: EstimatorContext) -> Tensor:
        """features [B, T, 320] of x, mu, spk, cond; times [n_stages, B or 1, C] -> [B, T, 80] in the weights' dtype.

        `past` changes when everything is computed.
        """
        context = StepContext(times.to(self.dtype), past)
        skip = self.down(features, context)
        h = self.down_conv.causal(skip, past, self.slot_down)
        for stage in self.mid:
            h = stage(h, context)
        h = self.up(torch.cat([h, skip.to(h.dtype)], dim=-1), context)
        h = self.final(self.up_conv.causal(h, past, self.slot_up), past)
        v = self.projection(h)
        past.commit()
        return v


class FlowDecoder:
    def __init__(self, config: FlowDecoderConfig, take: FlowReader) -> None:
        self.config = config
        self.estimator = Estimator(config, take, "decoder.estimator")
        self.euler_times = euler_times(config.n_steps)
        device = self.estimator.time_1.weight.device
        # Each time as a batch of both branches, like the reference. A batch of all ten is rounded differently.
        times = [torch.full((N_BRANCHES,), t, device=device) for t, _ in self.euler_times]
        each = [self.estimator.time_vectors(t)[:, 0] for t in times]
        self.stage_times = torch.stack(each, dim=1)
        """[n_stages, n_steps, C]: `Estimator.time_vectors` of every Euler step."""
        self.noise = fixed_noise(config.d_mel).to(device)

    @property
    def n_steps(self) -> int:
        """Euler steps of a block."""
        return len(self.euler_times)

    def initial_noise(self, first_frame: int, n_frames: int) -> Tensor:
        """x_0 [1, T, 80] float32: the noise of these frames, counted from the prompt's first frame.

        Raises ValueError for more frames than there is noise.
        """
        check_length(first_frame + n_frames)
        return self.noise[:, :, first_frame : first_frame + n_frames].transpose(1, 2)

    def step(
        self,
        k: int,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        past: EstimatorContext,
        unconditional: Tensor | None = None,
    ) -> Tensor:
        """Euler step k = 0..9 of one stream -> the next x.

        x [1, T, 80] float32; mu, cond [1, T, 80], spk [1, 80] in the weights' dtype. x stays float32 under
        half-precision weights, so that it is not rounded ten times on its way.
        `unconditional` [1, T, 80]: the velocity without text, if it is known. Then `past` has one row.
        """
        features = self._features(x, mu, spk, cond)
        times = self.stage_times[:, k : k + 1]
        if unconditional is None:
            v = self.estimator.velocity(features, times, past)
        else:
            v = torch.cat([self.estimator.velocity(features[:1], times, past), unconditional])
        return x + self.euler_times[k][1] * self._guided(v)

    def unconditional_velocity(self, first_frame: int, n_frames: int, past: EstimatorContext) -> Tensor:
        """The estimator's velocity without text in Euler step 0 [1, T, 80]. `past` has one row."""
        x = self.initial_noise(first_frame, n_frames)
        features = F.pad(x, (0, self.config.d_in - x.shape[-1])).to(self.estimator.dtype)
        return self.estimator.velocity(features, self.stage_times[:, :1], past)

    def velocity_of_batch(
        self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, k: Tensor, past: EstimatorContext
    ) -> Tensor:
        """x, mu, cond [S, T, 80], spk [S, 80] of S streams at Euler steps k [S] -> the velocity [S, T, 80].

        The velocity is in float32, or in the weights' dtype if that is wider.
        """
        times = self.stage_times.index_select(1, k).repeat_interleave(N_BRANCHES, dim=1)
        return self._guided(self.estimator.velocity(self._features(x, mu, spk, cond), times, past))

    def _features(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        """The estimator's input: x, mu, cond [S, T, 80], spk [S, 80] of S streams -> [S * N_BRANCHES, T, 320]."""
        with_text = torch.cat([x, mu, spk[:, None].expand_as(x), cond], dim=-1)
        without = F.pad(x, (0, with_text.shape[-1] - x.shape[-1]))
        return torch.stack([with_text, without], dim=1).flatten(0, 1).to(self.estimator.dtype)

    def _guided(self, v: Tensor) -> Tensor:
        """The estimator's [S * N_BRANCHES, T, 80] -> the velocity [S, T, 80] in float32 or wider."""
        wide = v.to(torch.promote_types(v.dtype, torch.float32))
        with_text, without = wide.view(-1, N_BRANCHES, *v.shape[1:]).unbind(1)
        guided: Tensor = (1.0 + self.config.guidance) * with_text - self.config.guidance * without
        return guided
