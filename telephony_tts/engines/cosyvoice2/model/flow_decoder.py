"""Flow decoder: a velocity field over mels and the ten Euler steps along it (specification 5.2, 5.3).

    estimator  v(x, mu, t, spk, cond): a U-Net in shape only (one level, no change of the frame rate)
                 [B, T, 320] -> down: R, 4 TB, conv -> 12 x mid: R, 4 TB -> with skip, up: R, 4 TB, conv -> [B, T, 80]
    solver     x = noise; ten times x += dt * (1.7 v(x | text, voice) - 0.7 v(x | nothing))

Both guidance branches run as one batch of two. What happens to a frame depends on nothing after its block of 50, so
with one cache per Euler step a new block costs its own frames only, and the frames before never change.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import flow_cache
from .config import BLOCK_FRAMES, N_NOISE_FRAMES, FlowDecoderConfig
from .flow_cache import Cache, KeyValues
from .flow_layers import Reader, attend, block_mask, heads, stacked

NORM_EPS = 1e-5
KERNEL = 3
N_BRANCHES = 2
"""Guidance branches, in this order: with text and voice, without."""
NOISE_SEED = 0

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
        self.slot = slot

    def __call__(self, x: Tensor, left: list[Tensor] | None) -> Tensor:
        return F.mish(self.norm(self.conv.causal(x, left, self.slot)))


class Resnet:
    """R(x) = CB(CB(x) + Linear(Mish(temb))) + Conv1x1(x)."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str, d_in: int, slot: int) -> None:
        d = config.n_channels
        self.time = take.linear(f"{key}.mlp.1", d, config.d_time)
        self.block_1 = CausalBlock(take, f"{key}.block1", d_in, d, slot)
        self.block_2 = CausalBlock(take, f"{key}.block2", d, d, slot + 1)
        self.skip = take.conv(f"{key}.res_conv", d, d_in, 1)

    def __call__(self, x: Tensor, temb: Tensor, left: list[Tensor] | None) -> Tensor:
        """x [B, T, C_in], Mish(temb) [B, d_time] -> [B, T, C]"""
        h = self.block_1(x, left) + self.time(temb)[:, None]
        return self.block_2(h, left) + self.skip(x)


class Transformer:
    """x += MHA(LN(x)); x += FF(LN(x)) on [B, T, C]. Time does not enter here."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str) -> None:
        d, d_attention, self.n_heads = config.n_channels, config.n_heads * config.d_head, config.n_heads
        self.norm_1 = take.norm(f"{key}.norm1", d, NORM_EPS)
        self.qkv = stacked([take.linear(f"{key}.attn1.to_{name}", d_attention, d, bias=False) for name in "qkv"])
        self.out = take.linear(f"{key}.attn1.to_out.0", d, d_attention)
        self.norm_3 = take.norm(f"{key}.norm3", d, NORM_EPS)
        self.ff_1 = take.linear(f"{key}.ff.net.0.proj", 4 * d, d)
        self.ff_2 = take.linear(f"{key}.ff.net.2", d, 4 * d)

    def __call__(self, x: Tensor, mask: Tensor | None, kv: KeyValues | None) -> Tensor:
        q, k, v = (heads(part, self.n_heads) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        segments = [(k, v)] if kv is None else kv.append(k, v)
        x = x + self.out(attend(q, segments, mask))
        return x + self.ff_2(F.gelu(self.ff_1(self.norm_3(x))))


class Stage:
    """One R and its transformer blocks: two convolution slots and n_blocks layers of keys and values."""

    def __init__(self, config: FlowDecoderConfig, take: Reader, key: str, d_in: int, index: int) -> None:
        self.resnet = Resnet(config, take, f"{key}.0", d_in, slot=2 * index)
        self.transformers = [Transformer(config, take, f"{key}.1.{i}") for i in range(config.n_blocks)]
        self.first_kv = index * config.n_blocks

    def __call__(self, x: Tensor, temb: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        x = self.resnet(x, temb, cache.left if cache else None)
        for i, transformer in enumerate(self.transformers):
            x = transformer(x, mask, cache.kv[self.first_kv + i] if cache else None)
        return x


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

    def cache(self, growth_frames: int) -> Cache:
        config = self.config
        d = config.n_channels
        of_stages = [config.d_in, d, *[d] * (2 * config.n_mid_stages), 2 * d, d]
        n_layers = self.n_stages * config.n_blocks
        return flow_cache.empty(
            left=[(KERNEL - 1, d_in) for d_in in [*of_stages, d, d, d]],
            kv=[(config.n_heads, config.d_head, growth_frames)] * n_layers,
            n_batch=N_BRANCHES,
            like=self.time_1.weight,
        )

    def time_embedding(self, t: Tensor) -> Tensor:
        """t [B] -> temb [B, d_time]"""
        e = time_sinusoids(t, self.config.d_in).to(self.time_1.weight.dtype)
        return self.time_2(F.silu(self.time_1(e)))

    def __call__(
        self,
        x: Tensor,
        mu: Tensor,
        t: Tensor,
        spk: Tensor,
        cond: Tensor,
        *,
        streaming: bool,
        cache: Cache | None = None,
    ) -> Tensor:
        """x, mu, cond [B, T, 80], t [B], spk [B, 80] -> velocity [B, T, 80]. A cache makes it block-causal."""
        n_frames = x.shape[1]
        n_past = cache.n if cache else 0
        causal = streaming or cache is not None
        mask = block_mask(n_past, n_frames, BLOCK_FRAMES, x.device) if causal else None
        left = cache.left if cache else None
        temb = F.mish(self.time_embedding(t))
        h = torch.cat([x, mu, spk[:, None].expand(-1, n_frames, -1), cond], dim=-1)
        skip = self.down(h, temb, mask, cache)
        h = self.down_conv.causal(skip, left, self.slot_down)
        for stage in self.mid:
            h = stage(h, temb, mask, cache)
        h = self.up(torch.cat([h, skip], dim=-1), temb, mask, cache)
        h = self.final(self.up_conv.causal(h, left, self.slot_up), left)
        if cache:
            cache.n += n_frames
        return self.projection(h)


def nothing() -> None:
    """The `before_step` of those who never stop half-way."""


class FlowDecoder:
    def __init__(self, config: FlowDecoderConfig, take: Reader) -> None:
        self.config = config
        self.estimator = Estimator(config, take, "decoder.estimator")
        self.times = euler_times(config.n_steps)
        self.noise = fixed_noise(config.d_mel).to(self.estimator.time_1.weight.device)

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
        t, dt = self.times[k]
        both = [torch.cat([given, torch.zeros_like(given)]) for given in (mu, spk, cond)]
        v = self.estimator(
            x.to(mu.dtype).expand(N_BRANCHES, -1, -1),
            both[0],
            torch.full((N_BRANCHES,), t, device=x.device),
            both[1],
            both[2],
            streaming=streaming,
            cache=cache,
        ).float()
        with_text, without = v[:1], v[1:]
        return x + dt * ((1.0 + self.config.guidance) * with_text - self.config.guidance * without)

    def solve(
        self,
        x: Tensor,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        *,
        streaming: bool,
        caches: list[Cache] | None = None,
        before_step: BeforeStep = nothing,
    ) -> Tensor:
        """x of `start`, mu, cond [1, T, 80], spk [1, 80] -> mel [1, T, 80] float32; `caches` hold the frames before."""
        for k in range(len(self.times)):
            before_step()
            x = self.step(k, x, mu, spk, cond, streaming=streaming, cache=caches[k] if caches else None)
        return x
