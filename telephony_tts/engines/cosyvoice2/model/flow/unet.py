"""Flow decoder of CosyVoice-300M: a U-Net over time, and its Euler solver (specification 300M, 6).

    estimator   features x, mu, speaker and condition, side by side
                [B, T, 320] -> down 0: R, 4 TB, halve -> down 1: R, 4 TB, conv -> 12 x mid: R, 4 TB
                -> with skip 1, up 0: R, 4 TB, double -> with skip 0, up 1: R, 4 TB, conv -> [B, T, 80]

R is a `UnetResnet`, TB the `TransformerBlock` of CosyVoice2. Between "halve" and "double" there are ceil(T / 2) frames.
Every frame sees all others: convolutions look ahead as far as back, and the norms take the mean over time. So a
sentence is computed whole, and sentences of different lengths are not one batch: padding would change the means.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FlowDecoderConfig
from telephony_tts.engines.cosyvoice2.model.flow.decoder import (
    KERNEL,
    N_BRANCHES,
    NORM_EPS,
    TransformerBlock,
    euler_times,
    time_sinusoids,
)
from telephony_tts.engines.cosyvoice2.model.flow.int8_layers import Int8Conv, Int8TransformerBlock, check_heads
from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowConv, FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import WholeSequence
from telephony_tts.engines.kernels.library import functions

Attend = Callable[[Tensor], Tensor]
"""Attention of all frames to all frames: [B, T, 3 * H * D] -> [B, T, H * D]."""
N_NORM_GROUPS = 8
UP_KERNEL = 4


class TimeNorm:
    """Group norm: the mean over the channels of a group and over all frames."""

    def __init__(self, take: FlowReader, key: str, d: int, n_groups: int, eps: float = NORM_EPS) -> None:
        """Raises ValueError if the groups do not divide the channels."""
        if d % n_groups:
            raise ValueError(f"{key}: {n_groups} groups do not divide {d} channels")
        self.weight, self.bias = take(f"{key}.weight", d), take(f"{key}.bias", d)
        self.n_groups, self.eps = n_groups, eps

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]"""
        y = F.group_norm(x.to(self.weight.dtype).transpose(1, 2), self.n_groups, self.weight, self.bias, self.eps)
        return y.transpose(1, 2)


def centred(conv: FlowConv | Int8Conv, x: Tensor) -> Tensor:
    """A convolution that looks as far ahead as back: [B, T, C_in] -> [B, T, C_out], with zeros beyond the ends."""
    half = conv.kernel // 2
    return conv(F.pad(x, (0, 0, half, half)))


def int8_conv(conv: FlowConv | Int8Conv, *, in_15_bits: bool = False) -> Int8Conv:
    assert isinstance(conv, FlowConv)
    return Int8Conv(conv, in_15_bits=in_15_bits)


class CentredConvBlock:
    """Convolution over this frame and its two neighbours, group norm, Mish."""

    def __init__(self, take: FlowReader, key: str, d_in: int, d_out: int) -> None:
        self.conv: FlowConv | Int8Conv = take.conv(f"{key}.block.0", d_out, d_in, KERNEL)
        self.norm = TimeNorm(take, f"{key}.block.1", d_out, N_NORM_GROUPS)

    def quantize(self, *, in_15_bits: bool = False) -> None:
        """`in_15_bits`: the activations."""
        self.conv = int8_conv(self.conv, in_15_bits=in_15_bits)
        norm = self.norm
        norm.weight, norm.bias = norm.weight.contiguous(), norm.bias.contiguous()  # the kernels read their memory

    def __call__(self, x: Tensor) -> Tensor:
        y = centred(self.conv, x)
        if isinstance(self.conv, FlowConv):
            return F.mish(self.norm(y))
        norm = self.norm
        functions().group_norm_mish(
            y.data_ptr(), *y.shape, norm.n_groups, norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps
        )
        return y


class UnetResnet:
    """R(x) = CB(CB(x) + Linear(Mish(temb))) + Conv1x1(x)."""

    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str, d_in: int) -> None:
        d = config.n_channels
        self.time = take.linear(f"{key}.mlp.1", d, config.d_time)
        self.block_1 = CentredConvBlock(take, f"{key}.block1", d_in, d)
        self.block_2 = CentredConvBlock(take, f"{key}.block2", d, d)
        self.skip: FlowConv | Int8Conv = take.conv(f"{key}.res_conv", d, d_in, 1)

    def quantize(self, *, in_15_bits: bool) -> None:
        """`in_15_bits`: the activations of the two maps that read x."""
        self.block_1.quantize(in_15_bits=in_15_bits)
        self.block_2.quantize()
        self.skip = int8_conv(self.skip, in_15_bits=in_15_bits)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        """x [B, T, C_in], time [B or 1, C], which is Linear(Mish(temb)) -> [B, T, C]"""
        return self.block_2(self.block_1(x) + time[:, None]) + self.skip(x)


class UnetStage:
    """One R and its transformer blocks."""

    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str, d_in: int, index: int) -> None:
        self.index = index
        self.resnet = UnetResnet(config, take, f"{key}.0", d_in)
        self.transformers: Sequence[TransformerBlock | Int8TransformerBlock] = [
            TransformerBlock(config, take, f"{key}.1.{i}") for i in range(config.n_blocks)
        ]

    def quantize(self, *, in_15_bits: bool = False) -> None:
        self.resnet.quantize(in_15_bits=in_15_bits)
        self.transformers = [each.quantized() for each in self.transformers if isinstance(each, TransformerBlock)]

    def __call__(self, x: Tensor, times: Tensor, attend: Attend) -> Tensor:
        """x [B, T, C_in]; `times` [n_stages, B or 1, C] of `UnetEstimator.time_vectors` -> [B, T, C]"""
        x = self.resnet(x, times[self.index])
        for transformer in self.transformers:
            x = transformer(x, attend)
        return x


class HalvingConv:
    """A convolution of stride 2: [B, T, C] -> [B, ceil(T / 2), C]."""

    def __init__(self, take: FlowReader, key: str, d: int) -> None:
        self.weight, self.bias = take(f"{key}.weight", d, d, KERNEL), take(f"{key}.bias", d)

    def __call__(self, x: Tensor) -> Tensor:
        y = F.conv1d(x.to(self.weight.dtype).transpose(1, 2), self.weight, self.bias, stride=2, padding=KERNEL // 2)
        return y.transpose(1, 2)


class DoublingConv:
    """A transposed convolution of stride 2: [B, T, C] -> [B, 2 T, C]."""

    def __init__(self, take: FlowReader, key: str, d: int) -> None:
        self.weight, self.bias = take(f"{key}.weight", d, d, UP_KERNEL), take(f"{key}.bias", d)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype).transpose(1, 2)
        return F.conv_transpose1d(x, self.weight, self.bias, stride=2, padding=1).transpose(1, 2)


class UnetEstimator:
    def __init__(self, config: FlowDecoderConfig, take: FlowReader, key: str) -> None:
        d, n_mid = config.n_channels, config.n_mid_stages
        self.config = config
        self.time_1 = take.linear(f"{key}.time_mlp.linear_1", config.d_time, config.d_in)
        self.time_2 = take.linear(f"{key}.time_mlp.linear_2", config.d_time, config.d_time)
        self.down_0 = UnetStage(config, take, f"{key}.down_blocks.0", config.d_in, 0)
        self.halve = HalvingConv(take, f"{key}.down_blocks.0.2.conv", d)
        self.down_1 = UnetStage(config, take, f"{key}.down_blocks.1", d, 1)
        self.down_conv: FlowConv | Int8Conv = take.conv(f"{key}.down_blocks.1.2", d, d, KERNEL)
        self.mid = [UnetStage(config, take, f"{key}.mid_blocks.{i}", d, 2 + i) for i in range(n_mid)]
        self.up_0 = UnetStage(config, take, f"{key}.up_blocks.0", 2 * d, 2 + n_mid)
        self.double = DoublingConv(take, f"{key}.up_blocks.0.2.conv", d)
        self.up_1 = UnetStage(config, take, f"{key}.up_blocks.1", 2 * d, 3 + n_mid)
        self.up_conv: FlowConv | Int8Conv = take.conv(f"{key}.up_blocks.1.2", d, d, KERNEL)
        self.final = CentredConvBlock(take, f"{key}.final_block", d, d)
        self.projection: FlowConv | Int8Conv = take.conv(f"{key}.final_proj", config.d_mel, d, 1)
        self.dtype = self.time_1.weight.dtype
        """The dtype of activations."""
        self.is_int8 = False

    def quantize(self) -> None:
        """Converts all maps to int8 but those of the time and the two of stride 2, on a CPU. Activations are float32
        from then on; those of 15 bits are the same as in CosyVoice2's `Estimator`.

        Raises ValueError for heads that the kernels cannot attend with.
        """
        check_heads(self.config.d_head)
        for stage in self.stages:
            stage.quantize(in_15_bits=stage is self.down_0)
        self.down_conv, self.up_conv, self.projection = (
            int8_conv(conv, in_15_bits=True) for conv in (self.down_conv, self.up_conv, self.projection)
        )
        self.final.quantize(in_15_bits=True)
        self.dtype, self.is_int8 = torch.float32, True

    @property
    def stages(self) -> list[UnetStage]:
        """In the order of the pass."""
        return [self.down_0, self.down_1, *self.mid, self.up_0, self.up_1]

    def time_vectors(self, t: Tensor) -> Tensor:
        """t [B] -> [n_stages, B, C]: what each stage's R adds to its activations at that time."""
        e = time_sinusoids(t, self.config.d_in).to(self.time_1.weight.dtype)
        temb = F.mish(self.time_2(F.silu(self.time_1(e))))
        return torch.stack([stage.resnet.time(temb) for stage in self.stages])

    def velocity(self, features: Tensor, times: Tensor) -> Tensor:
        """features [B, T, 320] of x, mu, spk, cond; times [n_stages, B or 1, C] -> [B, T, 80]."""
        times, n_heads = times.to(self.dtype), self.config.n_heads
        attend: Attend
        if self.is_int8:
            n_rows, n_frames, _ = features.shape
            attend = Int8WholeSequence(n_rows, n_frames, n_heads, self.config.d_head).attend
        else:
            attend = functools.partial(WholeSequence().attend, 0, n_heads=n_heads)
        skip_0 = self.down_0(features, times, attend)
        skip_1 = self.down_1(self.halve(skip_0), times, attend)
        h = centred(self.down_conv, skip_1)
        for stage in self.mid:
            h = stage(h, times, attend)
        h = self.double(self.up_0(torch.cat([h, skip_1], dim=-1), times, attend))
        h = self.up_1(torch.cat([h[:, : skip_0.shape[1]], skip_0], dim=-1), times, attend)
        return self.projection(self.final(centred(self.up_conv, h)))


class UnetDecoder:
    def __init__(self, config: FlowDecoderConfig, take: FlowReader) -> None:
        self.config = config
        self.estimator = UnetEstimator(config, take, "decoder.estimator")
        self.euler_times = euler_times(config.n_steps)
        device = self.estimator.time_1.weight.device
        each = [self.estimator.time_vectors(torch.full((1,), t, device=device)) for t, _ in self.euler_times]
        self.stage_times = torch.cat(each, dim=1)
        """[n_stages, n_steps, C]: `UnetEstimator.time_vectors` of every Euler step."""

    @property
    def n_steps(self) -> int:
        """Euler steps of a sentence."""
        return len(self.euler_times)

    def step(self, k: int, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        """Euler step k of a sentence -> the next x [1, T, 80] float32.

        x [1, T, 80] float32; mu, cond [1, T, 80], spk [1, 80] in the weights' dtype.
        """
        with_text = torch.cat([x, mu, spk[:, None].expand_as(x), cond], dim=-1)
        without = F.pad(x, (0, with_text.shape[-1] - x.shape[-1]))
        features = torch.cat([with_text, without]).to(self.estimator.dtype)
        v = self.estimator.velocity(features, self.stage_times[:, k : k + 1])
        given, free = v.to(torch.promote_types(v.dtype, torch.float32)).view(N_BRANCHES, *x.shape).unbind()
        guided: Tensor = (1.0 + self.config.guidance) * given - self.config.guidance * free
        return x + self.euler_times[k][1] * guided
