"""One Euler step of the flow as a PyTorch function that Inductor compiles, with its weights frozen into it.

features [2, T, 320], times [n_stages, C], keys and values [2, 2 H, P, D] of each layer, left contexts [2, 2, C]
  -> v [2, T, 80], new keys and values [2, 2 H, T, D] of each layer, the next left contexts
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch._dynamo.config as dynamo
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import Tensor, nn

from harness.flow_weights import KERNEL, ROWS, Block, EstimatorWeights, Map, Norm, Stage

NORM_EPS = 1e-5
MISH_IS_LINEAR = 30.0

Products = Literal["float32", "bfloat16", "int8", "qlinear"]
"""int8: `_int_mm` with a scale per row. qlinear: oneDNN's, with one scale for all activations."""
Attention = Literal["products", "sdpa", "none"]


class Product(nn.Module):
    """A linear map, in float32 or bfloat16."""

    def __init__(self, weights: Map, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", weights.weight.to(dtype))
        self.register_buffer("bias", None if weights.bias is None else weights.bias.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Int8Product(nn.Module):
    """int8 with a scale for each row of activations."""

    def __init__(self, weights: Map) -> None:
        super().__init__()
        integers, scale = _quantized(weights.weight)
        self.register_buffer("weight", integers.t().contiguous())
        self.register_buffer("scale", scale)
        self.register_buffer("bias", weights.bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        most = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
        sums = torch._int_mm((rows * (127 / most)).round().to(torch.int8), self.weight)
        y = sums.float() * (most / 127) * self.scale
        y = y if self.bias is None else y + self.bias
        return y.unflatten(0, x.shape[:2])


class QuantizedLinear(nn.Module):
    """oneDNN's int8 product of unsigned activations, with one scale for all of them."""

    def __init__(self, weights: Map, n_rows: int) -> None:
        super().__init__()
        integers, scale = _quantized(weights.weight)
        shape = [n_rows, integers.shape[1]]
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(integers, shape))
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros(len(scale), dtype=torch.int32))
        self.register_buffer("zero", torch.tensor([128], dtype=torch.int32))
        self.register_buffer("bias", weights.bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        scale = (rows.abs().amax() / 127).clamp(min=1e-30)
        integers = ((rows / scale).round() + 128).to(torch.uint8)
        ends = 1.0, 0, torch.float32, "none", [], ""
        y = torch.ops.onednn.qlinear_pointwise.tensor(
            integers, scale.reshape(1), self.zero, self.weight, self.scale, self.zeros, self.bias, *ends
        )
        return y.unflatten(0, x.shape[:2])


def _quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(dim=1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Step(nn.Module):
    """The estimator as one function."""

    def __init__(self, weights: EstimatorWeights, n_frames: int, products: Products, attention: Attention) -> None:
        super().__init__()
        self.products, self.attention_kind = products, attention
        self.dtype = torch.bfloat16 if products == "bfloat16" else torch.float32
        self.n_frames, self.config = n_frames, weights.config
        self.stages = nn.ModuleList(self._stage(stage, i == 0) for i, stage in enumerate(weights.stages))
        self.down, self.up = self._product(weights.down, exact=True), self._product(weights.up, exact=True)
        self.final = self._block(weights.final, exact=True)
        self.projection = self._product(weights.projection, exact=True)

    def _product(self, weights: Map, *, exact: bool = False) -> nn.Module:
        if exact or self.products in ("float32", "bfloat16"):
            return Product(weights, self.dtype)
        if self.products == "int8":
            return Int8Product(weights)
        return QuantizedLinear(weights, ROWS * self.n_frames)

    def _norm(self, weights: Norm) -> nn.Module:
        norm = nn.LayerNorm(len(weights.weight), NORM_EPS)
        norm.weight.data, norm.bias.data = weights.weight.to(self.dtype), weights.bias.to(self.dtype)
        return norm

    def _block(self, weights: Block, *, exact: bool = False) -> nn.Module:
        return nn.ModuleList((self._product(weights.conv, exact=exact), self._norm(weights.norm)))

    def _stage(self, stage: Stage, first: bool) -> nn.Module:
        layers = [
            nn.ModuleList(
                (
                    self._norm(layer.norm_1), self._product(layer.qkv), self._product(layer.out),
                    self._norm(layer.norm_3), self._product(layer.ff_1), self._product(layer.ff_2),
                )
            )
            for layer in stage.layers
        ]  # fmt: skip
        blocks = self._block(stage.block_1, exact=first), self._block(stage.block_2)
        return nn.ModuleList((*blocks, self._product(stage.skip, exact=first), nn.ModuleList(layers)))

    def forward(
        self, x: Tensor, times: Tensor, past: list[Tensor], lefts: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        self.kept, self.after, self.past, self.lefts = [], [], past, lefts  # only while it is traced
        skip = x = x.to(self.dtype)
        n_stages = len(self.stages)
        for i, (block_1, block_2, skipped, layers) in enumerate(self.stages):
            if i == n_stages - 1:
                x = torch.cat([x, skip], dim=2)
            h = self.block(x, block_1, 2 * i) + times[i].to(self.dtype)
            x = self.block(h, block_2, 2 * i + 1) + skipped(x)
            for layer in layers:
                x = self.layer(x, layer)
            if i == 0:
                skip, x = x, self.conv(x, self.down, 2 * n_stages)
        x = self.block(self.conv(x, self.up, 2 * n_stages + 1), self.final, 2 * n_stages + 2)
        after = [left for _, left in sorted(self.after, key=lambda each: each[0])]
        return self.projection(x).float(), self.kept, after

    def conv(self, x: Tensor, product: nn.Module, slot: int) -> Tensor:
        seen, n = torch.cat([self.lefts[slot], x], dim=1), self.n_frames
        self.after.append((slot, seen[:, n:].clone()))
        y: Tensor = product(torch.cat([seen[:, i : i + n] for i in range(KERNEL)], dim=2))
        return y

    def block(self, x: Tensor, block: Any, slot: int) -> Tensor:
        conv, norm = block
        y = norm(self.conv(x, conv, slot)).float()
        power = y.clamp(max=MISH_IS_LINEAR).exp()
        n = power * (power + 2)
        return (y * (n / (n + 2))).to(self.dtype)

    def layer(self, x: Tensor, layer: Any) -> Tensor:
        norm_1, qkv, out, norm_3, ff_1, ff_2 = layer
        x = x + out(self.attention(qkv(norm_1(x))))
        h: Tensor = ff_2(F.gelu(ff_1(norm_3(x))))
        return x + h

    def attention(self, qkv: Tensor) -> Tensor:
        config, n = self.config, self.n_frames
        past = self.past[len(self.kept)]
        parts = qkv.to(past.dtype).view(ROWS, n, 3, config.n_heads, config.d_head)
        q, k, v = parts.permute(2, 0, 3, 1, 4).flatten(1, 2)
        self.kept.append(torch.stack([k, v]))
        if self.attention_kind == "none":
            seen = q + v
        elif self.attention_kind == "sdpa":
            keys, values = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
            seen = F.scaled_dot_product_attention(q[None], keys[None], values[None])[0]
        else:
            scores = torch.cat([torch.bmm(q, past[0].mT), torch.bmm(q, k.mT)], dim=2)
            weights = (scores.float() * config.d_head**-0.5).softmax(dim=-1).to(v.dtype)
            n_past = past.shape[2]
            seen = torch.bmm(weights[:, :, :n_past], past[1]) + torch.bmm(weights[:, :, n_past:], v)
        return seen.unflatten(0, (ROWS, -1)).transpose(1, 2).flatten(2).to(self.dtype)


class InductorPath:
    """Steps by the compiled function. It keeps what each Euler step has seen."""

    def __init__(
        self,
        weights: EstimatorWeights,
        sizes: tuple[int, int, int],
        products: Products = "float32",
        attention: Attention = "products",
        half_attention: bool = False,
        tuned: bool = False,
    ) -> None:
        """`sizes`: Euler steps, frames of a block, most frames of a stream. `half_attention`: keys and values in
        bfloat16 whatever the products have. `tuned`: Inductor tries its own products beside those of libraries."""
        n_steps, n_frames, _ = sizes
        step = Step(weights, n_frames, products, attention).eval().requires_grad_(False)
        self._settings = {"freezing": True, "max_autotune": tuned, "max_autotune_gemm_backends": "CPP,ATEN"}
        dynamo.recompile_limit = 64  # every path compiles the same function
        self._plain, self._compiled = step, torch.compile(step, dynamic=False, fullgraph=True)
        dtype = torch.bfloat16 if half_attention else step.dtype
        empty = 2, ROWS * weights.config.n_heads, 0, weights.config.d_head
        self._kv = [[torch.zeros(empty, dtype=dtype) for _ in range(weights.n_layers)] for _ in range(n_steps)]
        self._lefts = [
            [torch.zeros(ROWS, KERNEL - 1, d, dtype=step.dtype) for d in weights.context_widths] for _ in range(n_steps)
        ]
        self.compile_for = 200
        """Past frames with which the compiled function is used. Any other past runs the plain one."""

    def __call__(self, k: int, features: Tensor, times: Tensor, *, keep: bool) -> Tensor:
        """features [2, T, 320], times [n_stages, C] -> [2, T, 80]"""
        past, lefts = self._kv[k], self._lefts[k]
        run = self._compiled if past[0].shape[2] == self.compile_for else self._plain
        with inductor.patch(self._settings):
            v, new, after = run(features, times, past, lefts)
        if keep:
            self._kv[k] = [torch.cat(pair, dim=2) for pair in zip(past, new, strict=True)]
            self._lefts[k] = after
        result: Tensor = v
        return result
