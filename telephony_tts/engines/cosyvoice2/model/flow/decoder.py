"""Flow decoder: a velocity field over mels and the ten Euler steps along it (specification 5.2, 5.3).

    estimator  v(x, mu, t, spk, cond): a U-Net in shape only (one level, no change of the frame rate)
                 [B, T, 320] -> down: R, 4 TB, conv -> 12 x mid: R, 4 TB -> with skip, up: R, 4 TB, conv -> [B, T, 80]
    solver     x = noise; ten times x += dt * (1.7 v(x | text, voice) - 0.7 v(x | nothing))

Both guidance branches run as one batch of two, or of two for each stream. What happens to a frame depends on nothing
after its block of 50, so with one cache per Euler step a new block costs its own frames only, and the frames before
never change. A stream that goes by itself has its caches (`flow_cache`); many as one batch have pages (`flow_pages`).
All that a step's time does is a table made when the weights are read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, N_NOISE_FRAMES, FlowDecoderConfig
from telephony_tts.engines.cosyvoice2.model.flow import cache as flow_cache
from telephony_tts.engines.cosyvoice2.model.flow import quick as flow_quick
from telephony_tts.engines.cosyvoice2.model.flow.attention import attend, block_mask, heads
from telephony_tts.engines.cosyvoice2.model.flow.cache import Cache
from telephony_tts.engines.cosyvoice2.model.flow.layers import Reader, mish, quick_mish
from telephony_tts.engines.cosyvoice2.model.flow.pages import Batch, Page, PageShape, Past
from telephony_tts.engines.cosyvoice2.model.linear import LinearMap, int8, packed, packs, stacked

NORM_EPS = 1e-5
KERNEL = 3
N_BRANCHES = 2
"""Guidance branches, in this order: with text and voice, without."""
NOISE_SEED = 0

Lefts = Sequence[list[Tensor]] | Batch
"""Convolution contexts of each stream, by slot; what comes after is put in their place."""
Attend = Callable[[int, Tensor], Tensor]
"""Attention of a layer: queries, keys and values [B, T, 3 * H * D] -> [B, T, H * D]."""
BeforeStep = Callable[[], None]
"""Asked before each Euler step: the moment at which work that nobody wants any more can be left."""


def fixed_noise(d_mel: int) -> Tensor:
    """z [1, d_mel, 15000], the same for every utterance: frame f always starts from column f (specification 5.3)."""
    return torch.randn(1, d_mel, N_NOISE_FRAMES, generator=torch.Generator().manual_seed(NOISE_SEED))


def euler_times(n_steps: int) -> list[tuple[float, float]]:
    """(t, dt) of every step on the cosine schedule tau_k = 1 - cos(pi k / 2n), summed in float32 like the reference."""
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


class CausalBlock:
    """Convolution over this frame and the two before, LayerNorm, Mish."""

    def __init__(self, take: Reader, key: str, d_in: int, d_out: int, slot: int) -> None:
        self.conv = take.conv(f"{key}.block.0", d_out, d_in, KERNEL)
        self.norm = take.norm(f"{key}.block.2", d_out, NORM_EPS)
        self.activation = mish
        self.slot = slot

    def quantize(self, *, conv: bool) -> None:
        """Activations become float32; the convolution int8, if it is to."""
        self.norm, self.activation = self.norm.to(torch.float32), quick_mish
        if conv:
            self.conv.quantize()

    def __call__(self, x: Tensor, lefts: Lefts | None) -> Tensor:
        return self.activation(self.norm(self.conv.causal(x, lefts, self.slot)))


class Resnet:
    """R(x) = CB(CB(x) + Linear(Mish(temb))) + Conv1x1(x)."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str, d_in: int, slot: int) -> None:
        d = config.n_channels
        self.time = take.linear(f"{key}.mlp.1", d, config.d_time)
        self.block_1 = CausalBlock(take, f"{key}.block1", d_in, d, slot)
        self.block_2 = CausalBlock(take, f"{key}.block2", d, d, slot + 1)
        self.skip = take.conv(f"{key}.res_conv", d, d_in, 1)

    def __call__(self, x: Tensor, time: Tensor, lefts: Lefts | None) -> Tensor:
        """x [B, T, C_in], time [B or 1, C], which is Linear(Mish(temb)) -> [B, T, C]"""
        h = self.block_1(x, lefts).add_(time[:, None])
        return self.block_2(h, lefts).add_(self.skip(x))


class Transformer:
    """x += MHA(LN(x)); x += FF(LN(x)) on [B, T, C]. Time does not enter here."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str) -> None:
        d, d_attention = config.n_channels, config.n_heads * config.d_head
        self.norm_1 = take.norm(f"{key}.norm1", d, NORM_EPS)
        qkv = stacked([take.linear(f"{key}.attn1.to_{name}", d_attention, d, bias=False) for name in "qkv"])
        self.qkv: LinearMap = qkv
        self.dtype = qkv.weight.dtype
        """Of queries, keys and values."""
        self.out: LinearMap = take.linear(f"{key}.attn1.to_out.0", d, d_attention)
        self.norm_3 = take.norm(f"{key}.norm3", d, NORM_EPS)
        self.ff_1: LinearMap = take.linear(f"{key}.ff.net.0.proj", 4 * d, d)
        self.ff_2: LinearMap = take.linear(f"{key}.ff.net.2", d, 4 * d)

    def __call__(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Changes and returns x."""
        x += self.out(attend(self.qkv(self.norm_1(x)).to(self.dtype)))
        x += self.ff_2(F.gelu(self.ff_1(self.norm_3(x))))
        return x

    def quantize(self) -> None:
        """Products in int8, but for the output of attention; norms in float32."""
        self.norm_1, self.norm_3 = self.norm_1.to(torch.float32), self.norm_3.to(torch.float32)
        self.qkv, self.ff_1, self.ff_2 = (int8(part) for part in (self.qkv, self.ff_1, self.ff_2))

    def pack(self) -> None:
        self.qkv, self.out, self.ff_1, self.ff_2 = map(packed, (self.qkv, self.out, self.ff_1, self.ff_2))


class Stage:
    """One R and its transformer blocks: two convolution slots and n_blocks layers of keys and values."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str, d_in: int, index: int) -> None:
        self.index = index
        self.resnet = Resnet(config, take, f"{key}.0", d_in, slot=2 * index)
        self.transformers = [Transformer(config, take, f"{key}.1.{i}") for i in range(config.n_blocks)]

    def __call__(self, x: Tensor, given: Given) -> Tensor:
        x = self.resnet(x, given.times[self.index], given.lefts)
        for i, transformer in enumerate(self.transformers, self.index * len(self.transformers)):
            x = transformer(x, functools.partial(given.attend, i))
        return x


class Given(NamedTuple):
    """What the stages of one pass have in common. S streams lie one after the other, N_BRANCHES rows each."""

    times: Tensor
    """[n_stages, B or 1, C] of `Estimator.times`"""
    lefts: Lefts | None
    attend: Attend


class Estimator:
    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str) -> None:
        d = config.n_channels
        self.config = config
        self.n_stages = config.n_mid_stages + 2
        self.time_1 = take.linear(f"{key}.time_mlp.linear_1", config.d_time, config.d_in)
        self.time_2 = take.linear(f"{key}.time_mlp.linear_2", config.d_time, config.d_time)
        self.down = Stage(config, take, f"{key}.down_blocks.0", config.d_in, 0)
        self.down_conv = take.conv(f"{key}.down_blocks.0.2", d, d, KERNEL)
        self.mid = [Stage(config, take, f"{key}.mid_blocks.{i}", d, i + 1) for i in range(config.n_mid_stages)]
        self.up = Stage(config, take, f"{key}.up_blocks.0", 2 * d, self.n_stages - 1)
        self.up_conv = take.conv(f"{key}.up_blocks.0.2", d, d, KERNEL)
        self.slot_down, self.slot_up, slot_final = (2 * self.n_stages + i for i in range(3))
        self.final = CausalBlock(take, f"{key}.final_block", d, d, slot_final)
        self.projection = take.conv(f"{key}.final_proj", config.d_mel, d, 1)
        self.dtype = self.time_1.weight.dtype
        """Of activations. Keys and values have that of the weights."""
        self.quick: flow_quick.OneCall | None = None
        """How a step of one stream goes, if not layer by layer."""
        if self.dtype == torch.bfloat16 and self.time_1.weight.device.type == "cpu" and packs():
            self.pack()

    @property
    def stages(self) -> list[Stage]:
        return [self.down, *self.mid, self.up]

    def pack(self) -> None:
        """Lays the weights out for a CPU, and steps of one stream go through `flow_quick`."""
        for conv in (self.down_conv, self.up_conv, self.final.conv, self.projection):
            conv.pack()
        for stage in self.stages:
            for conv in (stage.resnet.block_1.conv, stage.resnet.block_2.conv, stage.resnet.skip):
                conv.pack()
            for layer in stage.transformers:
                layer.pack()
        self.quick = flow_quick.OneCall(self)

    def quantize(self) -> None:
        """Turns to int8 what takes the time; activations are float32 from then on.

        Not the first convolution, whose input holds mels beside the noise and is coarse for it, nor the output of
        attention, which is as fast as it is.
        """
        self.dtype = torch.float32
        self.quick = None
        for stage in self.stages:
            resnet = stage.resnet
            resnet.block_1.quantize(conv=stage is not self.down)
            resnet.block_2.quantize(conv=True)
            if stage is not self.down:
                resnet.skip.quantize()
            for layer in stage.transformers:
                layer.quantize()

    def page_shape(self) -> PageShape:
        config = self.config
        d = config.n_channels
        of_stages = [config.d_in, d, *[d] * (2 * config.n_mid_stages), 2 * d, d]
        n_layers, d_lefts = self.n_stages * config.n_blocks, (*of_stages, d, d, d)
        return PageShape(n_layers, N_BRANCHES, config.n_heads, config.d_head, KERNEL - 1, d_lefts)

    def page_nbytes(self) -> int:
        return self.page_shape().n_numbers * self.time_1.weight.element_size()

    def cache(self, growth_frames: int) -> Cache:
        config = self.config
        shape = self.page_shape()
        return flow_cache.empty(
            left=[(shape.n_left, d_in) for d_in in shape.d_lefts],
            kv=[(config.n_heads, config.d_head, growth_frames)] * shape.n_layers,
            n_batch=N_BRANCHES,
            like=self.time_1.weight,
            dtype=self.dtype,
        )

    def time_embedding(self, t: Tensor) -> Tensor:
        """t [B] -> temb [B, d_time]"""
        e = time_sinusoids(t, self.config.d_in).to(self.time_1.weight.dtype)
        return self.time_2(F.silu(self.time_1(e)))

    def times(self, t: Tensor) -> Tensor:
        """t [B] -> what each stage adds to its activations at that time, [n_stages, B, C]."""
        temb = F.mish(self.time_embedding(t))
        return torch.stack([stage.resnet.time(temb) for stage in self.stages])

    def __call__(
        self, x: Tensor, mu: Tensor, t: Tensor, spk: Tensor, cond: Tensor, *, streaming: bool
    ) -> Tensor:
        """x, mu, cond [B, T, 80], t [B], spk [B, 80] -> velocity [B, T, 80] of frames that are all there are."""
        features = torch.cat([x, mu, spk[:, None].expand_as(x), cond], dim=-1)
        return self.velocity(features.to(self.dtype), self.times(t), None, streaming=streaming)

    def velocity(
        self, features: Tensor, times: Tensor, cache: Cache | None, *, streaming: bool = True
    ) -> Tensor:
        """features [B, T, 320] of x, mu, spk, cond, times [n_stages, B or 1, C] -> [B, T, 80] in the weights' dtype.

        With the `cache` of the stream whose rows these are it is block-causal; that changes with the last thing that
        is done here.
        """
        n_frames = features.shape[1]
        if self.quick is not None and cache:
            return self.quick(features, times, cache)
        causal = streaming or cache is not None
        mask = block_mask(cache.n if cache else 0, n_frames, BLOCK_FRAMES, features.device) if causal else None

        def attend_one(layer: int, qkv: Tensor) -> Tensor:
            q, k, v = (heads(part, self.config.n_heads) for part in qkv.chunk(3, dim=-1))
            return attend(q, cache.kv[layer].append(k, v) if cache else [(k, v)], mask)

        left = list(cache.left) if cache else []
        v = self._through(features, Given(times.to(self.dtype), [left] if cache else None, attend_one))
        if cache:
            cache.commit(n_frames, left)
        return v

    def velocity_together(self, features: Tensor, times: Tensor, batch: Batch) -> Tensor:
        """The same of the rows of a batch; what it keeps is written."""
        v = self._through(features, Given(times.to(self.dtype), batch, batch.attend))
        batch.keep()
        return v

    def _through(self, features: Tensor, given: Given) -> Tensor:
        lefts = given.lefts
        skip = self.down(features, given)
        h = self.down_conv.causal(skip, lefts, self.slot_down)
        for stage in self.mid:
            h = stage(h, given)
        h = self.up(torch.cat([h, skip.to(h.dtype)], dim=-1), given)
        h = self.final(self.up_conv.causal(h, lefts, self.slot_up), lefts)
        return self.projection(h)


def nothing() -> None:
    """The `before_step` of those who never stop half-way."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """Frames on their way from noise to mel, `k` of the Euler steps done."""

    x: Tensor
    """[1, T, 80] float32: it is not rounded to half precision ten times on its way."""
    mu: Tensor
    """[1, T, 80], as `cond`; like `spk` [1, 80] in the weights' dtype"""
    spk: Tensor
    cond: Tensor
    n_steps: int
    caches: Sequence[Cache | Past] | None
    """What each step knows of the frames before; None: these are all frames there are."""
    streaming: bool = True
    """Block-causal, as it always is with caches; else all frames see all."""
    k: int = 0
    kept: list[tuple[Page, ...]] = field(default_factory=list)
    """Pages that each step is to fill, and then the past's; empty where nothing will follow, or there are no pages."""

    @property
    def done(self) -> bool:
        return self.k == self.n_steps


class FlowDecoder:
    def __init__(self, config: FlowDecoderConfig, take: Reader) -> None:
        self.config = config
        self.estimator = Estimator(config, take, "decoder.estimator")
        self.times = euler_times(config.n_steps)
        device = self.estimator.time_1.weight.device
        # Each time twice, as both branches would ask for it: a batch of ten is rounded otherwise.
        each = [self.estimator.times(torch.full((N_BRANCHES,), t, device=device))[:, 0] for t, _ in self.times]
        self.stage_times = torch.stack(each, dim=1)
        """[n_stages, n_steps, C]: all that a step's time does."""
        self.noise = fixed_noise(config.d_mel).to(device)

    def caches(self, growth_frames: int) -> list[Cache]:
        """One per Euler step."""
        return [self.estimator.cache(growth_frames) for _ in self.times]

    def start(self, first_frame: int, n_frames: int) -> Tensor:
        """x_0 [1, T, 80], float32: the noise of these absolute frames, frame 0 being the prompt's first."""
        if first_frame + n_frames > N_NOISE_FRAMES:
            raise ValueError(f"{first_frame + n_frames} frames with the prompt; the flow can make {N_NOISE_FRAMES}")
        return self.noise[:, :, first_frame : first_frame + n_frames].transpose(1, 2)

    def step(
        self, k: int, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, *, streaming: bool, cache: Cache | None = None
    ) -> Tensor:
        """Euler step k = 0..9: x [1, T, 80] float32; mu, cond [1, T, 80], spk [1, 80] in the weights' dtype -> next x.

        x stays float32 under half-precision weights, so that the state is not rounded ten times on its way.
        """
        features = self._features(x, mu, spk, cond)
        times = self.stage_times[:, k : k + 1]
        v = self.estimator.velocity(features, times, cache, streaming=streaming)
        return x + self.times[k][1] * self._guided(v)

    def velocity_together(
        self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, k: Tensor, batch: Batch
    ) -> Tensor:
        """x, mu, cond [S, T, 80], spk [S, 80] of S streams at Euler steps k [S] -> the velocity [S, T, 80], wide."""
        times = self.stage_times.index_select(1, k).repeat_interleave(N_BRANCHES, dim=1)
        return self._guided(self.estimator.velocity_together(self._features(x, mu, spk, cond), times, batch))

    def _features(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor) -> Tensor:
        """What the estimator sees of S streams, x, mu, cond [S, T, 80], spk [S, 80] -> [S * N_BRANCHES, T, 320]."""
        with_text = torch.cat([x, mu, spk[:, None].expand_as(x), cond], dim=-1)
        without = F.pad(x, (0, with_text.shape[-1] - x.shape[-1]))
        return torch.stack([with_text, without], dim=1).flatten(0, 1).to(self.estimator.dtype)

    def _guided(self, v: Tensor) -> Tensor:
        """The estimator's [S * N_BRANCHES, T, 80] -> the velocity [S, T, 80] in float32 or wider."""
        wide = v.to(torch.promote_types(v.dtype, torch.float32))
        with_text, without = wide.view(-1, N_BRANCHES, *v.shape[1:]).unbind(1)
        guided: Tensor = (1.0 + self.config.guidance) * with_text - self.config.guidance * without
        return guided

    def advance(self, path: Trajectory) -> None:
        """The next Euler step of one."""
        cache = path.caches[path.k] if path.caches else None
        assert not isinstance(cache, Past), "what has pages is stepped with others, by `flow_batch`"
        streaming = path.streaming
        path.x = self.step(path.k, path.x, path.mu, path.spk, path.cond, streaming=streaming, cache=cache)
        path.k += 1
