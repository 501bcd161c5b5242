"""HiFT: mel [B, 80, L] at 50 Hz to audio [B, 480 L] at 24 kHz (specification 6; weights 2.3).

The pitch is predicted from the mel. Nine sines follow the pitch, each gets noise, and their mix is the source. The mel
is up-sampled 120 times by transposed convolutions. At each stage the spectrum of the source is added, at the rate of
the stage. The last layer gives the magnitude and phase of an inverse STFT of hop 4.

    mel ─ f0 ─ excite ─ stft ─┬──────────┬──────────┐
    mel ─ conv_pre ─────── stage 0 ── stage 1 ── stage 2 ── conv_post ─ istft ─ audio
      50 Hz                400 Hz     2 kHz      6 kHz                          24 kHz

CosyVoice-300M has two stages at 86.1 frames a second and 22.05 kHz, and another source (`VocoderConfig.ramps_pitch`;
specification 300M, 7).

`stream.py` runs these parts chunk by chunk. `Reach` tells how much context they need. The pitch, the source and both
transforms are float32 or wider, whatever the weights are: a rounded pitch shifts all later phases, and these parts cost
a few percent of the time.

Most of the time goes into the 72 convolutions of the residual blocks. `Vocoder.mixed` has the weights and inputs of
these in bfloat16. The residual sums, the snakes and the other convolutions stay in float32: in bfloat16 these few
convolutions would add as much error again. The table has the time for a second of audio in chunks of 50 frames (full
size, one core of a Zen 5), and the level of the error below that of the signal, against float32 and for random weights.
The growth of a rounding error depends on the weights, and trained weights are not measured yet. So the table also has
residual blocks of 1.5 times the strength, and the small reference network, whose phases and magnitudes move four times
as much.

                             time      error, dB     blocks x 1.5    small reference
    float32                  0.18 s
    mixed                    0.115 s       48             35              21
    bfloat16 throughout                    38             29              17
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import VocoderConfig
from telephony_tts.engines.cosyvoice2.model.file_names import VOCODER_FILE
from telephony_tts.engines.cosyvoice2.model.state import State
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import (
    ResBlock,
    UpsampleConv,
    VocoderConv,
    VocoderLinear,
    VocoderReader,
    vocoder_kernels,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import NoiseRows
from telephony_tts.engines.cosyvoice2.model.vocoder.reach import (
    EDGE_KERNEL,
    F0_KERNEL,
    N_F0_LAYERS,
    DecodeSpans,
    Reach,
    StageSpans,
    missing,
    source_down,
    spans,
)

LAST_SLOPE = 0.01
"""Leaky slope before the last convolution, which differs from the others (specification 6.7)"""
MAX_MAGNITUDE = 100.0

Noise = Callable[[int, int], Tensor]
"""noise(first, n): standard normal [B, n, harmonics + 1] float32 for the samples first .. first + n of an utterance."""


@dataclass(frozen=True, slots=True)
class UpsampleStage:
    """Up-samples, adds the source, and takes the mean of three residual blocks."""

    up: UpsampleConv
    source_down: VocoderConv
    """From the spectrum of the source, of which it takes 15, 3 or 1 columns for each of its own"""
    source_block: ResBlock
    blocks: tuple[ResBlock, ...]


@dataclass(frozen=True, slots=True)
class VocoderLayers:
    """All weights, in the order in which the graph uses them."""

    pitch: tuple[VocoderLinear, ...]
    pitch_out: VocoderLinear
    mix: VocoderLinear
    pre: VocoderConv
    stages: tuple[UpsampleStage, ...]
    post: VocoderConv


class SineState(NamedTuple):
    """The phase of the sines at the centre of the last frame, from which `excite` continues."""

    cycles: Tensor
    """[B, harmonics + 1] float64 in [0, 1)"""
    voiced: Tensor
    """[B, 1] bool, of the last frame"""


class Vocoder:
    """The weights and the parts of the graph. Nothing changes after loading."""

    def __init__(self, config: VocoderConfig, layers: VocoderLayers) -> None:
        self.config = config
        self.reach = Reach.of(config)
        self._layers = layers
        self._forward, self._inverse, self._window2 = _transforms(config.n_fft, layers.pitch_out.weight)

    @property
    def conv_dtype(self) -> torch.dtype:
        """Of the convolutions in the residual blocks, which take most of the time."""
        return self._layers.stages[0].source_block.steps[0].conv1.weight.dtype

    @property
    def residual_dtype(self) -> torch.dtype:
        """Of the residual sums and everything else between those convolutions."""
        return self._layers.pre.weight.dtype

    @property
    def source_dtype(self) -> torch.dtype:
        """Of the pitch, the source and the transforms: float32 or float64"""
        return self._layers.pitch_out.weight.dtype

    @property
    def device(self) -> torch.device:
        return self._layers.pre.weight.device

    @torch.inference_mode()
    def f0(self, mel: Tensor) -> Tensor:
        """Mel [B, 80, L] -> pitch [B, L] in Hz (specification 6.1)."""
        if self._layers.pitch[0].of_windows is not None:
            return self._f0_by_products(mel)
        x = mel.to(self.source_dtype)
        for layer in self._layers.pitch:
            if layer.kernels is None:
                x = F.conv1d(x, layer.weight, layer.bias, padding=F0_KERNEL // 2)
            else:
                x = layer.kernels(x.transpose(1, 2), F0_KERNEL // 2, F0_KERNEL // 2).transpose(1, 2)
            x = F.elu(x)
        return self._layers.pitch_out(x.transpose(1, 2))[:, :, 0].abs()

    def _f0_by_products(self, mel: Tensor) -> Tensor:
        """The same on an accelerator: each layer is one matrix product of a frame's neighbours."""
        kernels, out = vocoder_kernels(self.device), self._layers.pitch_out
        n_batch, n = len(mel), mel.shape[2]
        x, bias = mel.transpose(1, 2), None
        for layer in self._layers.pitch:
            assert layer.of_windows is not None
            if kernels is not None:
                x = (kernels.pitch_windows(x, bias, self.source_dtype) @ layer.of_windows).view(n_batch, n, -1)
                bias = layer.bias
            else:
                side = F.pad(x.to(self.source_dtype), (0, 0, F0_KERNEL // 2, F0_KERNEL // 2))
                windows = torch.cat([side[:, i : i + n] for i in range(F0_KERNEL)], 2).flatten(0, 1)
                x = F.elu(torch.addmm(layer.bias, windows, layer.of_windows)).view(n_batch, n, -1)
        if kernels is None:
            return out(x)[:, :, 0].abs()
        f0: Tensor = kernels.pitch(x, bias, out.weight, out.bias)
        return f0

    @torch.inference_mode()
    def excite(
        self, f0: Tensor, first: int, state: SineState | None, noise: Noise, *, last: bool
    ) -> tuple[Tensor, SineState]:
        """Pitch of the frames first .. first + L, [B, L] in Hz -> source [B, 1, n], and the state for the next call.

        The phase is known at frame centres and linear between them (specification 6.3). So each frame completes the 480
        samples that end at its centre, and the source begins at sample 480 first - 240. Without a state the utterance
        begins here, and the first half frame has a constant phase. `last` adds the half frame after the last centre,
        also with a constant phase. The phase is float64 modulo one cycle, so it is as precise after an hour as in the
        first second.

        If the pitch does not ramp, each frame completes its own samples, so the source begins at its first one. The
        utterance begins at random phases, which depend on the noise before its first sample.
        """
        n_frame, ramps = self.config.samples_per_frame, self.config.ramps_pitch
        if ramps and isinstance(noise, NoiseRows) and (kernels := vocoder_kernels(f0.device)) is not None:
            c, mix = self.config, self._layers.mix
            settings = c.sample_rate_hz, c.voiced_above_hz, c.sine_amplitude, c.noise_std
            made, *after = kernels.excited(
                f0, state, noise.numbers, mix.weight, mix.bias, settings, n_frame, first, last=last
            )
            return made, SineState(*after)
        half = n_frame // 2 if ramps else 0
        harmonics = torch.arange(1, self.config.n_harmonics + 2, device=f0.device, dtype=torch.float64)
        rate_hz = self.config.sample_rate_hz
        step = (f0.double()[:, :, None] * harmonics / rate_hz).remainder(1.0)  # [B, L, H] cycles per sample
        if state is not None:
            begin = state.cycles[:, None]
        else:
            begin = torch.zeros_like(step[:, :1]) if ramps else _random_cycles(noise)
        ends = (begin + (n_frame * step).cumsum(1)).remainder(1.0)
        starts = torch.cat([begin, ends[:, :-1]], 1)
        ramp = torch.arange(n_frame, device=f0.device, dtype=torch.float64)[:, None] + (0.5 if ramps else 1.0)
        cycles = (starts[:, :, None] + ramp * step[:, :, None]).flatten(1, 2)  # [B, 480 L, H]
        if state is None and ramps:
            cycles = torch.cat([ends[:, :1].expand(-1, half, -1), cycles[:, n_frame:]], 1)
        if last and ramps:
            cycles = torch.cat([cycles, ends[:, -1:].expand(-1, half, -1)], 1)
        voiced = f0 > self.config.voiced_above_hz
        skip = 0 if state is None else half
        frames = voiced if state is None or not ramps else torch.cat([state.voiced, voiced], 1)
        n = cycles.shape[1]
        is_voiced = frames.repeat_interleave(n_frame, 1)[:, skip : skip + n]
        phase = (2 * math.pi * cycles.remainder(1.0)).to(self.source_dtype)
        sines = self._noisy_sines(phase, is_voiced, noise(n_frame * first - skip, n))
        return self.mix(sines), SineState(ends[:, -1], voiced[:, -1:])

    @torch.inference_mode()
    def restarted_sines(self, f0: Tensor, first: int, noise: Noise) -> Tensor:
        """Pitch [B, L] in Hz -> noisy sines [B, 480 L, H], which start at phase zero in each chunk, as upstream does.

        The phase is not reduced to one cycle, so float32 is off by 0.1 rad after half a minute. Kept for parity.
        """
        harmonics = torch.arange(1, self.config.n_harmonics + 2, device=f0.device, dtype=self.source_dtype)
        n_frame = self.config.samples_per_frame
        step = (f0[:, :, None] * harmonics / self.config.sample_rate_hz).remainder(1.0)
        phase = (step.cumsum(1) * 2 * math.pi).transpose(1, 2) * n_frame
        phase = F.interpolate(phase, scale_factor=float(n_frame), mode="linear").transpose(1, 2)
        is_voiced = (f0 > self.config.voiced_above_hz).repeat_interleave(n_frame, 1)
        return self._noisy_sines(phase, is_voiced, noise(n_frame * first, phase.shape[1]))

    def _noisy_sines(self, phase: Tensor, is_voiced: Tensor, noise: Tensor) -> Tensor:
        """Phase [B, n, H] in radians, voicing [B, n], standard normal [B, n, H] -> [B, n, H] (specification 6.3)."""
        c = self.config
        std = torch.where(is_voiced, c.noise_std, c.sine_amplitude / 3)
        return c.sine_amplitude * phase.sin() * is_voiced[:, :, None] + std[:, :, None].to(self.source_dtype) * noise

    @torch.inference_mode()
    def mix(self, sines: Tensor) -> Tensor:
        """Noisy sines [B, n, H] -> source [B, 1, n]."""
        return torch.tanh(self._layers.mix(sines)).transpose(1, 2)

    @torch.inference_mode()
    def decode(
        self, mel: Tensor, source: Tensor, first: int, until: int, trace: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Mel [B, 80, L], source [B, 1, 480 L] -> audio of the frames first .. until, [B, 480 (until - first)] float32.

        Exact if L includes `reach.decode` frames on both sides of the wanted ones, or ends where the utterance ends.
        Each layer computes only the columns that the wanted frames see (`spans`). `trace` receives the output of the
        stages by name, to be compared with the reference.
        """
        needs = spans(self.config, mel.shape[2], first, until)
        kernels = vocoder_kernels(mel.device) if trace is None else None
        if kernels is not None and len(self.config.res_kernels) <= kernels.MOST_SEEN:
            return self._fused_decode(kernels, needs, mel, source, first, until)
        spectrum = self.stft(source).to(self.residual_dtype).transpose(1, 2)  # [B, 120 L + 1, 18]
        pre = needs.stages[0].before
        x = mel[:, :, needs.mel.first : needs.mel.until].to(self.residual_dtype).transpose(1, 2)
        x = self._layers.pre(x, *missing(needs.mel, pre, self._layers.pre.reach))
        if trace is not None:
            trace["conv_pre"] = x.transpose(1, 2)
        for i, (stage, need) in enumerate(zip(self._layers.stages, needs.stages, strict=True)):
            x = stage.up(F.leaky_relu(x, self.config.leaky_slope), need.before.first, need.up.first, need.up.until)
            if i == len(self._layers.stages) - 1 and need.inside.first == 0:
                x = torch.cat([x[:, 1:2], x], 1)  # 120 L columns of signal, 120 L + 1 of spectrum
            x = x[:, : len(need.inside)]
            if trace is not None:
                trace[f"ups{i}"] = x.transpose(1, 2)
            x = self._blocks(stage, need, x + self._source_part(stage, need, spectrum))
        x = F.leaky_relu(x, LAST_SLOPE)
        post = self._layers.post
        x = post(x, *missing(needs.stages[-1].out, needs.post, post.reach)).to(self.source_dtype).transpose(1, 2)
        log_magnitude, phase = x.chunk(2, 1)  # [B, 9, n] each
        magnitude, phase = log_magnitude.exp(), phase.sin()
        if trace is not None:
            trace["magnitude"], trace["phase"] = magnitude, phase
        audio = self.istft(magnitude.clamp(max=MAX_MAGNITUDE), phase)
        audio = audio.clamp(-self.config.audio_limit, self.config.audio_limit)
        n_frame = self.config.samples_per_frame
        begin = first * n_frame - needs.post.first * self.config.hop
        return audio[:, begin : begin + (until - first) * n_frame].float()

    def _fused_decode(
        self, kernels: ModuleType, needs: DecodeSpans, mel: Tensor, source: Tensor, first: int, until: int
    ) -> Tensor:
        """`decode` with the kernels of a GPU: between two convolutions is one launch."""
        c, pre, post = self.config, self._layers.pre, self._layers.post
        n = len(needs.stages[0].before)
        zeros = missing(needs.mel, needs.stages[0].before, pre.reach)
        x = kernels.columns(
            mel[:, :, needs.mel.first : needs.mel.until], *zeros, pre.weight.shape[1], self.residual_dtype
        )
        # What is added is not there yet: its parts are, and the bias.
        parts, bias, d, scale = [pre.bare(x)], pre.bias, pre.d_out, 1.0
        for stage, need in zip(self._layers.stages, needs.stages, strict=True):
            wanted = need.up.first, need.up.until
            left, right = stage.up.missing(need.before.first, n, *wanted)
            seen, conv = kernels.Seen(left, left + n + right), stage.up.conv
            sizes = d, conv.weight.shape[1], conv.weight.dtype
            _, (x,) = kernels.joined(parts, [bias], n, *sizes, [seen], scale=scale, slope=c.leaky_slope)
            up = stage.up.wanted(conv.bare(x), *wanted)
            parts, bias = self._fused_stage(kernels, stage, need, up, source)
            n, d, scale = len(need.out), up.shape[2], 1 / len(stage.blocks)
        left, right = missing(needs.stages[-1].out, needs.post, post.reach)
        seen, sizes = kernels.Seen(left, left + n + right), (d, post.weight.shape[1], post.weight.dtype)
        _, (x,) = kernels.joined(parts, [bias], n, *sizes, [seen], scale=scale, slope=LAST_SLOPE)
        frames = kernels.frames(post.bare(x), post.bias, self._inverse, MAX_MAGNITUDE)
        begin, n = first * c.samples_per_frame - needs.post.first * c.hop, (until - first) * c.samples_per_frame
        audio: Tensor = kernels.overlapped(frames, self._window2, c.hop, begin, n, c.audio_limit)
        return audio

    def _fused_stage(
        self, kernels: ModuleType, stage: UpsampleStage, need: StageSpans, up: Tensor, source: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """What the stage makes of `up`, its transposed convolution without bias: the parts and the bias whose sum is
        that of its blocks."""
        down, block, d = stage.source_down, stage.source_block, up.shape[2]
        kernel, stride, n = down.weight.shape[3], down.stride, len(need.source)
        begin = need.source.first * stride - source_down(stride)[1]
        x = kernels.spectrum(
            source, self._forward, self.config.hop, begin, (n - 1) * stride + kernel, down.weight.shape[1],
            self.residual_dtype,
        )  # fmt: skip
        width, convs, sums = block.steps[0].conv1.weight.shape[1], self.conv_dtype, self.residual_dtype
        margins = need.source.margins(need.inside)
        seen = block.seen_first(kernels, 0, n, *margins)
        x, (y,) = kernels.joined([down.bare(x)], [down.bias], n, d, width, convs, [seen], total=sums)
        parts, bias = block.fused(kernels, x, y, *margins)
        inside = [need.out.around(each.reach) for each in stage.blocks]
        seens = [
            each.seen_first(kernels, span.first - need.inside.first, len(span), *span.margins(need.out))
            for each, span in zip(stage.blocks, inside, strict=True)
        ]
        # If the last stage begins with the signal, it has a column more: the mirror image of its third.
        x, ys = kernels.joined(
            [*parts, up], [bias, stage.up.conv.bias], len(need.inside), d, width, convs, seens,
            total=sums, shift=len(up[0]) - len(need.inside),
        )  # fmt: skip
        before: list[Tensor] = []
        for i, (block, span, y) in enumerate(zip(stage.blocks, inside, ys, strict=True)):
            parts, bias = block.fused(kernels, x[:, span.within(need.inside)], y, *span.margins(need.out))
            parts += before
            if i + 1 < len(stage.blocks):
                before = [kernels.joined(parts, [bias], len(need.out), d, width, convs, total=sums)[0]]
        return parts, bias

    def _source_part(self, stage: UpsampleStage, need: StageSpans, spectrum: Tensor) -> Tensor:
        """Spectrum [B, 120 L + 1, 18] -> the part of the source that the stage adds, [B, n, C] for `need.inside`."""
        down = stage.source_down
        kernel, stride = down.weight.shape[3], down.stride
        begin = need.source.first * stride - source_down(stride)[1]
        end = begin + (len(need.source) - 1) * stride + kernel
        seen = need.spectrum
        part = down(spectrum[:, seen.first : seen.until], seen.first - begin, end - seen.until)
        return stage.source_block(part, *need.source.margins(need.inside))

    def _blocks(self, stage: UpsampleStage, need: StageSpans, x: Tensor) -> Tensor:
        """The columns `need.inside` [B, n, C] -> the columns `need.out`. Each block gets the columns that it sees."""
        total: Tensor | None = None
        for block in stage.blocks:
            seen = need.out.around(block.reach)
            y = block(x[:, seen.within(need.inside)], *seen.margins(need.out))
            total = y if total is None else total.add_(y)
        assert total is not None
        return total.div_(len(stage.blocks))

    def stft(self, source: Tensor) -> Tensor:
        """[B, 1, n] -> [B, 18, n / 4 + 1]: nine real parts, then nine imaginary parts. The ends are reflected."""
        half = self.config.n_fft // 2
        return F.conv1d(F.pad(source, (half, half), "reflect"), self._forward, stride=self.config.hop)

    def istft(self, magnitude: Tensor, phase: Tensor) -> Tensor:
        """[B, 9, M] each -> [B, 4 (M - 1)]: overlap-add of windowed frames, divided by the sum of squared windows."""
        half, hop = self.config.n_fft // 2, self.config.hop
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], 1)
        audio = F.conv_transpose1d(spectrum, self._inverse, stride=hop)
        weight = F.conv_transpose1d(torch.ones_like(spectrum[:1, :1]), self._window2, stride=hop)
        return (audio[:, 0, half:-half]) / weight[:, 0, half:-half]

    @classmethod
    def mixed(cls, config: VocoderConfig, state: State, wide: torch.dtype = torch.float32) -> Self:
        """`from_state` with the residual blocks' convolutions in bfloat16 and the rest in float32. See the module."""
        return cls.from_state(config, state, torch.bfloat16, wide, torch.float32)

    @classmethod
    def from_state(
        cls,
        config: VocoderConfig,
        state: State,
        dtype: torch.dtype | None = None,
        wide: torch.dtype = torch.float32,
        sums: torch.dtype | None = None,
    ) -> Self:
        """Reads `hift.pt` under today's names (specification 2.3); `checkpoint.weights` turns older names into them.

        `dtype` is the dtype of the residual blocks' convolutions, by default that of the file. `sums` is that of
        what lies between them, by default `dtype`. `wide` float64 costs a CPU 4 % and gives the same phase for any
        chunks. In float32 different chunks round the pitch differently. An error of 1e-4 Hz is 0.006 rad in the ninth
        harmonic after a second, which is not audible but is not equal either.
        Raises ValueError that names every missing, unexpected or mis-shaped tensor.
        """
        reader = VocoderReader(state, dtype, sums, wide)
        vocoder = cls(config, cls.read(config, reader))
        reader.finish(VOCODER_FILE)
        return vocoder

    @staticmethod
    def read(config: VocoderConfig, read: VocoderReader) -> VocoderLayers:
        """All layers out of the reader's state."""
        c = config
        n_spectrum, n_kernels = c.n_fft + 2, len(c.res_kernels)
        pitch = tuple(
            read.pitch_layer(f"f0_predictor.condnet.{2 * i}", (c.d_f0, c.d_f0 if i else c.d_mel, F0_KERNEL))
            for i in range(N_F0_LAYERS)
        )
        pitch_out = read.linear("f0_predictor.classifier", (1, c.d_f0))
        mix = read.linear("m_source.l_linear", (1, c.n_harmonics + 1))
        pre = read.normed_conv("conv_pre", (c.d_base, c.d_mel, EDGE_KERNEL))
        stages = []
        for i, (rate, kernel) in enumerate(zip(c.up_rates, c.up_kernels, strict=True)):
            d_in, d = c.d_base >> i, c.d_base >> (i + 1)
            source_rate = math.prod(c.up_rates[i + 1 :])
            up = read.up(f"ups.{i}", (d_in, d, kernel), rate)
            down = read.conv(f"source_downs.{i}", (d, n_spectrum, source_down(source_rate)[0]), source_rate)
            source_block = read.block(f"source_resblocks.{i}", d, c.source_res_kernels[i], c.res_dilations)
            blocks = tuple(
                read.block(f"resblocks.{i * n_kernels + j}", d, k, c.res_dilations) for j, k in enumerate(c.res_kernels)
            )
            stages.append(UpsampleStage(up, down, source_block, blocks))
        post = read.normed_conv("conv_post", (n_spectrum, c.d_base >> len(c.up_rates), EDGE_KERNEL))
        return VocoderLayers(pitch, pitch_out, mix, pre, tuple(stages), post)


def _random_cycles(noise: Noise) -> Tensor:
    """The phases with which an utterance begins, [B, 1, H] float64 in cycles: 0, then uniform in -0.5..0.5."""
    normal = noise(-1, 1).double()
    cycles = torch.erf(normal / math.sqrt(2.0)) / 2.0
    cycles[:, :, 0] = 0.0
    return cycles


def _transforms(n_fft: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The DFT and its inverse with a periodic Hann window, [18, 1, 16] each, and the squared window [1, 1, 16]."""
    n = torch.arange(n_fft, dtype=torch.float64)
    k = torch.arange(n_fft // 2 + 1, dtype=torch.float64)[:, None]
    window = 0.5 - 0.5 * torch.cos(2 * math.pi * n / n_fft)
    angle = 2 * math.pi * k * n / n_fft
    forward = torch.cat([angle.cos(), -angle.sin()]) * window
    twice = torch.full_like(k, 2.0)
    twice[[0, -1]] = 1.0  # the bins between the ends also stand for their mirror images
    inverse = torch.cat([twice * angle.cos(), -twice * angle.sin()]) * window / n_fft
    return tuple(m[:, None].to(like) for m in (forward, inverse, window.square()[None]))  # type: ignore[return-value]
