"""A slow reference of the flow: the formulas of the specification (5) in float64, from the first prompt token on.

It has no cache, computes no block by itself and uses no code of the engine. Tests compare the engine with it.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOOKAHEAD = 3


@functools.cache
def noise() -> Tensor:
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    made = torch.randn(1, 80, 15_000)
    torch.set_rng_state(torch_state)
    return made


def visible(n: int, block: int | None) -> Tensor:
    """[n, n]: query i sees key j up to the end of i's block. Without blocks it sees all keys."""
    if block is None:
        return torch.ones(n, n, dtype=torch.bool)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    return j < (i // block + 1) * block


class SlowFlow:
    def __init__(self, state: dict[str, Tensor], n_heads: int, d_head: int, guidance: float, n_steps: int = 10) -> None:
        """`n_heads` of the encoder, `d_head` of the estimator: no tensor's shape shows these."""
        self.w = {name: tensor.double() for name, tensor in state.items()}
        self.n_heads, self.d_head, self.guidance, self.n_steps = n_heads, d_head, guidance, n_steps
        self.noise = noise().double()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt() * self.w[
            f"{name}.weight"
        ] + self.w[f"{name}.bias"]

    def _conv(self, x: Tensor, name: str, left: int = 0) -> Tensor:
        """[T, C] with `left` zeros before it -> [T', C']."""
        x = torch.cat([torch.zeros(left, x.shape[1], dtype=x.dtype), x])
        return F.conv1d(x.T[None], self.w[f"{name}.weight"], self.w[f"{name}.bias"])[0].T

    def _count(self, before: str) -> int:
        return len({name[len(before) :].split(".")[0] for name in self.w if name.startswith(before)})

    # ------------------------------------------------------------------------ encoder

    def speaker(self, embedding: Tensor) -> Tensor:
        x = embedding.double()
        return self._linear(x / x.norm(dim=1, keepdim=True).clamp(min=1e-12), "spk_embed_affine_layer")

    def embedded(self, ids: Tensor) -> Tensor:
        return self.w["input_embedding.weight"][ids.clamp(min=0)]

    def _embed(self, x: Tensor, name: str) -> Tensor:
        x = self._norm(self._linear(x, f"{name}.out.0"), f"{name}.out.1", 1e-5)
        return x * math.sqrt(x.shape[1])

    def looked(self, ids: Tensor) -> Tensor:
        return self._embed(self.embedded(ids), "encoder.embed")

    def ahead(self, ids: Tensor, context: Tensor | None) -> Tensor:
        x = self.looked(ids)
        after = torch.zeros(LOOKAHEAD, x.shape[1], dtype=x.dtype) if context is None else self.looked(context)
        y = F.leaky_relu(self._conv(torch.cat([x, after]), "encoder.pre_lookahead_layer.conv1"), 0.01)
        return x + self._conv(y, "encoder.pre_lookahead_layer.conv2", left=2)

    def distances(self, n: int, d: int) -> Tensor:
        """Row k: the sinusoid of distance n - 1 - k, 2n - 1 of them."""
        rate = torch.exp(-torch.arange(0, d, 2).double() * math.log(10_000) / d)
        angle = torch.arange(n - 1, -n, -1).double()[:, None] * rate
        return torch.stack([torch.sin(angle), torch.cos(angle)], 2).flatten(1)

    def _block(self, x: Tensor, name: str, see: Tensor) -> Tensor:
        n, d = x.shape
        at = f"{name}.self_attn"
        h = self._norm(x, f"{name}.norm_mha", 1e-12)
        q, k, v = (self._linear(h, f"{at}.linear_{part}").view(n, self.n_heads, -1) for part in "qkv")
        position = self._linear(self.distances(n, d), f"{at}.linear_pos").view(2 * n - 1, self.n_heads, -1)
        apart = torch.arange(n)[None, :] - torch.arange(n)[:, None] + n - 1  # the row of distance i - j
        out = []
        for head in range(self.n_heads):
            u, bias = self.w[f"{at}.pos_bias_u"][head], self.w[f"{at}.pos_bias_v"][head]
            content = (q[:, head] + u) @ k[:, head].T
            place = torch.einsum("id,ijd->ij", q[:, head] + bias, position[apart, head])
            scores = (content + place) / math.sqrt(q.shape[2])
            out.append(scores.masked_fill(~see, -math.inf).softmax(1) @ v[:, head])
        x = x + self._linear(torch.cat(out, 1), f"{at}.linear_out")
        h = self._norm(x, f"{name}.norm_ff", 1e-12)
        return x + self._linear(F.silu(self._linear(h, f"{name}.feed_forward.w_1")), f"{name}.feed_forward.w_2")

    def encode(self, ids: Tensor, context: Tensor | None, *, streaming: bool) -> Tensor:
        """ids [n], the next three or None at the end -> [2n, d]."""
        x = self.ahead(ids, context)
        see = visible(len(x), 25 if streaming else None)
        for i in range(self._count("encoder.encoders.")):
            x = self._block(x, f"encoder.encoders.{i}", see)
        x = torch.stack([x, x], 1).flatten(0, 1)
        x = self._embed(self._conv(x, "encoder.up_layer.conv", left=4), "encoder.up_embed")
        see = visible(len(x), 50 if streaming else None)
        for i in range(self._count("encoder.up_encoders.")):
            x = self._block(x, f"encoder.up_encoders.{i}", see)
        return self._norm(x, "encoder.after_norm", 1e-5)

    def mu(self, h: Tensor) -> Tensor:
        return self._linear(h, "encoder_proj")

    # ---------------------------------------------------------------------- estimator

    def sinusoid(self, t: float, d: int) -> Tensor:
        half = d // 2
        rate = torch.exp(-torch.arange(half).double() * math.log(10_000) / (half - 1))
        return torch.cat([torch.sin(1000 * t * rate), torch.cos(1000 * t * rate)])

    def time(self, t: float) -> Tensor:
        at = "decoder.estimator.time_mlp"
        e = self.sinusoid(t, self.w[f"{at}.linear_1.weight"].shape[1])
        return self._linear(F.silu(self._linear(e, f"{at}.linear_1")), f"{at}.linear_2")

    def _causal(self, x: Tensor, name: str) -> Tensor:
        return F.mish(self._norm(self._conv(x, f"{name}.block.0", left=2), f"{name}.block.2", 1e-5))

    def _stage(self, x: Tensor, name: str, temb: Tensor, see: Tensor) -> Tensor:
        h = self._causal(x, f"{name}.0.block1") + self._linear(F.mish(temb), f"{name}.0.mlp.1")
        x = self._causal(h, f"{name}.0.block2") + self._conv(x, f"{name}.0.res_conv")
        for i in range(self._count(f"{name}.1.")):
            at = f"{name}.1.{i}"
            h = self._norm(x, f"{at}.norm1", 1e-5)
            q, k, v = (self._linear(h, f"{at}.attn1.to_{part}") for part in "qkv")
            out = []
            for start in range(0, q.shape[1], self.d_head):
                part = slice(start, start + self.d_head)
                scores = q[:, part] @ k[:, part].T / math.sqrt(self.d_head) + torch.where(see, 0.0, -1e10)
                out.append(scores.softmax(1) @ v[:, part])
            x = x + self._linear(torch.cat(out, 1), f"{at}.attn1.to_out.0")
            h = F.gelu(self._linear(self._norm(x, f"{at}.norm3", 1e-5), f"{at}.ff.net.0.proj"))
            x = x + self._linear(h, f"{at}.ff.net.2")
        return x

    def velocity(self, x: Tensor, mu: Tensor, t: float, spk: Tensor, cond: Tensor, *, streaming: bool) -> Tensor:
        """x, mu, cond [T, 80], spk [80] -> [T, 80]."""
        at = "decoder.estimator"
        see, temb = visible(len(x), 50 if streaming else None), self.time(t)
        h = torch.cat([x, mu, spk.expand(len(x), -1), cond], 1)
        skip = self._stage(h, f"{at}.down_blocks.0", temb, see)
        h = self._conv(skip, f"{at}.down_blocks.0.2", left=2)
        for i in range(self._count(f"{at}.mid_blocks.")):
            h = self._stage(h, f"{at}.mid_blocks.{i}", temb, see)
        h = self._stage(torch.cat([h, skip], 1), f"{at}.up_blocks.0", temb, see)
        h = self._causal(self._conv(h, f"{at}.up_blocks.0.2", left=2), f"{at}.final_block")
        return self._conv(h, f"{at}.final_proj")

    # -------------------------------------------------------------------------- solver

    def times(self) -> list[float]:
        return [1 - math.cos(0.5 * math.pi * k / self.n_steps) for k in range(self.n_steps + 1)]

    def trajectory(
        self, prompt_ids: Tensor, ids: Tensor, prompt_mel: Tensor, embedding: Tensor, *, streaming: bool, finalize: bool
    ) -> list[Tensor]:
        """ids [n], prompt_mel [F, 80], embedding [1, d] -> x [T, 80] before each step and after the last."""
        every = torch.cat([prompt_ids, ids])
        context = None if finalize else every[-LOOKAHEAD:]
        every = every if finalize else every[:-LOOKAHEAD]
        mu = self.mu(self.encode(every, context, streaming=streaming))
        spk, cond = self.speaker(embedding)[0], torch.zeros_like(mu)
        cond[: len(prompt_mel)] = prompt_mel.double()
        x = self.noise[0, :, : len(mu)].T
        states, tau = [x], self.times()
        zero = torch.zeros_like(mu)
        for t, after in itertools.pairwise(tau):
            given = self.velocity(x, mu, t, spk, cond, streaming=streaming)
            free = self.velocity(x, zero, t, torch.zeros_like(spk), zero, streaming=streaming)
            x = x + (after - t) * ((1 + self.guidance) * given - self.guidance * free)
            states.append(x)
        return states

    def mel(self, prompt_ids: Tensor, ids: Tensor, prompt_mel: Tensor, embedding: Tensor, **flags: bool) -> Tensor:
        """[1, 80, frames after the prompt], float32."""
        x = self.trajectory(prompt_ids, ids, prompt_mel, embedding, **flags)[-1]
        return x[len(prompt_mel) :].T[None].float()
