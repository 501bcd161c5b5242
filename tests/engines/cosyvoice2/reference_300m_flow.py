"""The flow of CosyVoice-300M, slowly: formulas of the specification (300M, 6) in float64, both branches by themselves.

No code of the engine: made to be compared with. Rows are [T, C].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from reference_300m_lm import sinusoid
from torch import Tensor


def frames_of(n_tokens: int) -> int:
    return int(n_tokens / 50 * 22050 / 256)


class SlowUnetFlow:
    def __init__(self, state: dict[str, Tensor], d_head: int, n_steps: int, guidance: float = 0.7) -> None:
        """`d_head` of the estimator: no tensor's shape shows it."""
        self.w = {name: tensor.double() for name, tensor in state.items()}
        self.d_head, self.n_steps, self.guidance = d_head, n_steps, guidance

    def mel(
        self, ids: Sequence[int], noise: Tensor, embedding: Tensor,
        prompt_ids: Sequence[int] = (), prompt_mel: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """noise [T, 80] of the prompt's and the new frames; prompt_mel [M, 80] -> mel of the new frames [T - M, 80]."""
        e = embedding.double()
        spk = self._linear(e / e.square().sum().sqrt(), "spk_embed_affine_layer")[0]
        n_prompt = 0 if prompt_mel is None else len(prompt_mel)
        mu = self.mu(prompt_ids, ids, n_prompt)
        cond = torch.zeros_like(mu)
        if prompt_mel is not None:
            cond[:n_prompt] = prompt_mel.double()
        x = noise.double()
        tau = [1 - math.cos(math.pi * k / (2 * self.n_steps)) for k in range(self.n_steps + 1)]
        for k in range(self.n_steps):
            given = self.velocity(x, mu, spk, cond, tau[k])
            free = self.velocity(x, 0 * mu, 0 * spk, 0 * cond, tau[k])
            x = x + (tau[k + 1] - tau[k]) * ((1 + self.guidance) * given - self.guidance * free)
        return x[n_prompt:]

    # ------------------------------------------------------------------------ encoder

    def mu(self, prompt_ids: Sequence[int], ids: Sequence[int], n_prompt: int) -> Tensor:
        x = self.w["input_embedding.weight"][[*prompt_ids, *ids]]
        x = self._norm(self._linear(x, "encoder.embed.out.0"), "encoder.embed.out.1", 1e-5) * math.sqrt(x.shape[1])
        for i in range(self._count("encoder.encoders.")):
            at = f"encoder.encoders.{i}"
            x = x + self._relative(self._norm(x, f"{at}.norm_mha", 1e-12), f"{at}.self_attn")
            h = F.silu(self._linear(self._norm(x, f"{at}.norm_ff", 1e-12), f"{at}.feed_forward.w_1"))
            x = x + self._linear(h, f"{at}.feed_forward.w_2")
        x = self._linear(self._norm(x, "encoder.after_norm", 1e-5), "encoder_proj")
        prompt, new, n = x[: len(prompt_ids)], x[len(prompt_ids) :], frames_of(len(ids))
        parts = [interpolated(prompt, n_prompt)] if n_prompt else []
        if len(ids) > 40:
            parts += [interpolated(new[:20], 34), interpolated(new[20:-20], n - 68), interpolated(new[-20:], 34)]
        else:
            parts.append(interpolated(new, n))
        x, at = torch.cat(parts), "length_regulator.model"
        for i in (0, 3, 6, 9):
            x = F.mish(self._group_norm(self._conv(x, f"{at}.{i}"), f"{at}.{i + 1}", 1))
        return self._conv(x, f"{at}.12")

    def _relative(self, x: Tensor, at: str) -> Tensor:
        u, v = self.w[f"{at}.pos_bias_u"], self.w[f"{at}.pos_bias_v"]
        n_heads, d = u.shape
        n = len(x)
        q, k, values = (self._linear(x, f"{at}.linear_{part}").view(n, n_heads, d) for part in "qkv")
        place = {r: F.linear(sinusoid(r, n_heads * d), self.w[f"{at}.linear_pos.weight"]) for r in range(1 - n, n)}
        heads = []
        for h in range(n_heads):
            of_head = slice(h * d, (h + 1) * d)
            r = torch.stack([torch.stack([place[i - j][of_head] for j in range(n)]) for i in range(n)])
            scores = (q[:, h] + u[h]) @ k[:, h].T + torch.einsum("id,ijd->ij", q[:, h] + v[h], r)
            heads.append((scores / math.sqrt(d)).softmax(1) @ values[:, h])
        return self._linear(torch.cat(heads, 1), f"{at}.linear_out")

    # ---------------------------------------------------------------------- estimator

    def velocity(self, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, t: float) -> Tensor:
        at = "decoder.estimator"
        temb = self._time(t)
        h = torch.cat([x, mu, spk.expand(len(x), -1), cond], 1)
        skip_0 = self._stage(h, f"{at}.down_blocks.0", temb)
        h = self._conv(skip_0, f"{at}.down_blocks.0.2.conv", stride=2)
        skip_1 = self._stage(h, f"{at}.down_blocks.1", temb)
        h = self._conv(skip_1, f"{at}.down_blocks.1.2")
        for i in range(self._count(f"{at}.mid_blocks.")):
            h = self._stage(h, f"{at}.mid_blocks.{i}", temb)
        h = self._stage(torch.cat([h, skip_1], 1), f"{at}.up_blocks.0", temb)
        name = f"{at}.up_blocks.0.2.conv"
        h = F.conv_transpose1d(h.T[None], self.w[f"{name}.weight"], self.w[f"{name}.bias"], 2, 1)[0].T
        h = self._stage(torch.cat([h[: len(skip_0)], skip_0], 1), f"{at}.up_blocks.1", temb)
        h = self._block(self._conv(h, f"{at}.up_blocks.1.2"), f"{at}.final_block")
        return self._conv(h, f"{at}.final_proj")

    def _time(self, t: float) -> Tensor:
        at = "decoder.estimator.time_mlp"
        half = self.w[f"{at}.linear_1.weight"].shape[1] // 2
        angle = 1000 * t * torch.exp(-math.log(10_000) * torch.arange(half).double() / (half - 1))
        h = F.silu(self._linear(torch.cat([angle.sin(), angle.cos()]), f"{at}.linear_1"))
        return self._linear(h, f"{at}.linear_2")

    def _stage(self, x: Tensor, name: str, temb: Tensor) -> Tensor:
        h = self._block(x, f"{name}.0.block1") + self._linear(F.mish(temb), f"{name}.0.mlp.1")
        x = self._block(h, f"{name}.0.block2") + self._conv(x, f"{name}.0.res_conv")
        for i in range(self._count(f"{name}.1.")):
            at = f"{name}.1.{i}"
            h = self._norm(x, f"{at}.norm1", 1e-5)
            q, k, v = (F.linear(h, self.w[f"{at}.attn1.to_{part}.weight"]) for part in "qkv")
            heads = []
            for begin in range(0, q.shape[1], self.d_head):
                of_head = slice(begin, begin + self.d_head)
                scores = q[:, of_head] @ k[:, of_head].T / math.sqrt(self.d_head)
                heads.append(scores.softmax(1) @ v[:, of_head])
            x = x + self._linear(torch.cat(heads, 1), f"{at}.attn1.to_out.0")
            h = F.gelu(self._linear(self._norm(x, f"{at}.norm3", 1e-5), f"{at}.ff.net.0.proj"))
            x = x + self._linear(h, f"{at}.ff.net.2")
        return x

    def _block(self, x: Tensor, name: str) -> Tensor:
        return F.mish(self._group_norm(self._conv(x, f"{name}.block.0"), f"{name}.block.1", 8))

    # -------------------------------------------------------------------------- parts

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def _conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        """As many zeros before as after."""
        weight = self.w[f"{name}.weight"]
        return F.conv1d(x.T[None], weight, self.w[f"{name}.bias"], stride, weight.shape[2] // 2)[0].T

    def _norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        wide = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        return centred / wide * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _group_norm(self, x: Tensor, name: str, n_groups: int) -> Tensor:
        """Mean and variance over the channels of a group and over all frames."""
        groups = []
        for group in x.chunk(n_groups, 1):
            centred = group - group.mean()
            groups.append(centred / (centred.square().mean() + 1e-5).sqrt())
        return torch.cat(groups, 1) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def _count(self, before: str) -> int:
        return len({name[len(before) :].split(".")[0] for name in self.w if name.startswith(before)})


def interpolated(x: Tensor, n: int) -> Tensor:
    """[N, C] -> [n, C]: row i lies at (i + 0.5) N / n - 0.5, between the centres of two rows."""
    rows = []
    for i in range(n):
        at = min(max((i + 0.5) * len(x) / n - 0.5, 0.0), len(x) - 1)
        low = math.floor(at)
        high = min(low + 1, len(x) - 1)
        rows.append(x[low] + (x[high] - x[low]) * (at - low))
    return torch.stack(rows) if rows else x[:0]
