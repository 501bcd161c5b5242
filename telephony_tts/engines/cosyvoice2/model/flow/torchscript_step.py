"""An Euler step's velocity on a CPU in bfloat16, as one call that does not hold Python's interpreter lock.

It is the same function as `Estimator.velocity`, with the same products of the same packed weights, for one stream whose
past is a `HostPass`. It rounds less often: a residual is added to a product before the product is rounded.

`velocity` is ordinary Python over tensors. `compiled` turns its text into TorchScript. The interpreter is not needed
between its two thousand operations, so other threads can run meanwhile. Both give the same bits. Without
TorchScript the ordinary function runs.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.attention import unshifted
from telephony_tts.engines.cosyvoice2.model.flow.decoder import Estimator
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import HostPass
from telephony_tts.engines.cosyvoice2.model.flow.layers import LayerNorm, quick_mish
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import EstimatorContext
from telephony_tts.engines.cosyvoice2.model.linear import LinearMap, PackedLinear

TensorFunction = Callable[..., tuple[Tensor, list[Tensor]]]


def added(x: Tensor, to: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """to + linear(x), rounded once."""
    y: Tensor = x
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        y = torch.ops.mkldnn._linear_pointwise(x, to, weight, bias, "add")
    else:
        y = torch.ops.mkldnn._linear_pointwise.binary(x, to, weight, bias, "add")
    return y


def causal_conv(x: Tensor, left: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x [B, N, C_in], left [B, 2, C_in], weight [C_out, 3 C_in] packed -> [B, N, C_out], and the next left."""
    n_batch, n, d = x.shape
    x = torch.cat([left, x], dim=1)
    windows = x.flatten(1).unfold(1, 3 * d, d).reshape(-1, 3 * d)
    y = torch.ops.mkldnn._linear_pointwise(windows, weight, bias, "none", [], "")
    return y.view(n_batch, n, y.shape[1]), x[:, n:].clone()


def causal_block(x: Tensor, left: Tensor, weights: list[Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """A `CausalConvBlock`: weight and bias of its convolution, weight and bias of its norm."""
    y, left = causal_conv(x, left, weights[0], weights[1])
    return quick_mish(torch.layer_norm(y, [y.shape[2]], weights[2], weights[3], eps)), left


def attention(qkv: Tensor, pieces: list[Tensor], mask: Tensor | None, n_heads: int) -> Tensor:
    """qkv [B, N, 3 H D] -> [B, N, H D]; the new keys and values are written to the end of the last piece.

    pieces [2, B, H, T, D] each, keys and values; together they hold all that is seen, the new positions too.
    """
    n_batch, n = qkv.shape[0], qkv.shape[1]
    parts = qkv.view(n_batch, n, 3, n_heads, -1).permute(2, 0, 3, 1, 4)
    last = pieces[-1]
    last[:, :, :, last.shape[3] - n :].copy_(parts[1:])
    keys = [piece[0].flatten(0, 1) for piece in pieces]
    values = [piece[1].flatten(0, 1) for piece in pieces]
    seen = unshifted(parts[0].flatten(0, 1), keys, values, mask, None)
    return seen.view(n_batch, n_heads, n, -1).transpose(1, 2).flatten(2)


def layer(
    x: Tensor, weights: list[Tensor], pieces: list[Tensor], mask: Tensor | None, n_heads: int, eps: float
) -> Tensor:
    """A `TransformerBlock`. x [B, N, C] -> the same."""
    width = [x.shape[2]]
    h = torch.layer_norm(x, width, weights[0], weights[1], eps)
    qkv = torch.ops.mkldnn._linear_pointwise(h, weights[2], None, "none", [], "")
    h = attention(qkv, pieces, mask, n_heads)
    x = added(h, x, weights[3], weights[4])
    h = torch.layer_norm(x, width, weights[5], weights[6], eps)
    h = torch.ops.mkldnn._linear_pointwise(h, weights[7], weights[8], "gelu", [], "none")
    x = added(h, x, weights[9], weights[10])
    return x


def velocity(
    x: Tensor,
    times: Tensor,
    resnets: list[list[Tensor]],
    layers: list[list[Tensor]],
    ends: list[Tensor],
    pieces: list[list[Tensor]],
    lefts: list[Tensor],
    mask: Tensor | None,
    n_heads: int,
    eps: float,
) -> tuple[Tensor, list[Tensor]]:
    """x [B, N, C_in], times [n_stages, 1, C] -> [B, N, 80], and the convolution contexts `lefts` of what comes next.

    The weights are those of every stage's `ResnetBlock`, of every `TransformerBlock`, and of the layers around them.
    `pieces` are those of every attention layer, see `attention`.
    """
    n_stages = len(resnets)
    n_blocks = len(layers) // n_stages
    after: list[Tensor] = []
    skip, left_down = x, lefts[2 * n_stages]
    for i, weights in enumerate(resnets):
        if i == n_stages - 1:
            x = torch.cat([x, skip], dim=2)
        h, left = causal_block(x, lefts[2 * i], weights[:4], eps)
        after.append(left)
        h = h + times[i]
        h, left = causal_block(h, lefts[2 * i + 1], weights[4:8], eps)
        after.append(left)
        x = added(x, h, weights[8], weights[9])
        for j in range(n_blocks * i, n_blocks * (i + 1)):
            x = layer(x, layers[j], pieces[j], mask, n_heads, eps)
        if i == 0:
            skip = x
            x, left_down = causal_conv(x, left_down, ends[0], ends[1])
    x, left_up = causal_conv(x, lefts[2 * n_stages + 1], ends[2], ends[3])
    x, left = causal_block(x, lefts[2 * n_stages + 2], ends[4:8], eps)
    y = torch.ops.mkldnn._linear_pointwise(x, ends[8], ends[9], "none", [], "")
    after.extend((left_down, left_up, left))
    return y, after


@functools.cache
def compiled() -> TensorFunction:
    """`velocity` as TorchScript, or `velocity` itself if TorchScript cannot compile it."""
    try:
        with warnings.catch_warnings():
            # It is deprecated. Without it the ordinary function runs.
            warnings.simplefilter("ignore")
            script: TensorFunction = torch.jit.script(velocity)
    except (AttributeError, OSError, RuntimeError):
        return velocity

    def run(*args: object) -> tuple[Tensor, list[Tensor]]:
        # Otherwise TorchScript compiles it again for each new shape, which takes seconds.
        before = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        try:
            return script(*args)
        finally:
            torch._C._set_graph_executor_optimize(before)

    return run


class TorchScriptVelocity:
    """`Estimator.velocity` of one stream, by `velocity` of this module."""

    def __init__(self, estimator: Estimator) -> None:
        """Raises TypeError unless the estimator's weights are packed."""
        linear, norm = _of_linear, _of_norm
        self._n_heads, self._eps = estimator.config.n_heads, estimator.final.norm.eps
        self._run = compiled()
        self._resnets = [
            [
                *(w for block in (r.block_1, r.block_2) for w in (*linear(block.conv.windows), *norm(block.norm))),
                *linear(r.skip.windows),
            ]
            for r in (stage.resnet for stage in estimator.stages)
        ]
        self._layers = [
            [
                *norm(layer.norm_1),
                *linear(layer.qkv),
                *linear(layer.out),
                *norm(layer.norm_3),
                *linear(layer.ff_1),
                *linear(layer.ff_2),
            ]
            for stage in estimator.stages
            for layer in stage.transformers
        ]
        self._ends = [
            *linear(estimator.down_conv.windows),
            *linear(estimator.up_conv.windows),
            *linear(estimator.final.conv.windows),
            *norm(estimator.final.norm),
            *linear(estimator.projection.windows),
        ]

    def __call__(self, features: Tensor, times: Tensor, past: EstimatorContext) -> Tensor:
        """features [2, T, 320], times [n_stages, 1, C] -> [2, T, 80]."""
        assert isinstance(past, HostPass)
        mask = past.mask(features.shape[1], FRAMES_PER_TOKEN)
        pieces = [past.reserve(layer) for layer in range(len(self._layers))]
        weights = self._resnets, self._layers, self._ends
        v, past.contexts = self._run(
            features, times, *weights, pieces, past.contexts, mask, self._n_heads, self._eps
        )
        past.commit()
        return v


def _of_linear(linear: LinearMap) -> list[Tensor]:
    """The packed weight, and the bias if there is one. Raises TypeError for any other kind of linear."""
    if not isinstance(linear, PackedLinear):
        raise TypeError(f"{type(linear).__name__} is not packed")
    return [linear.weight] if linear.bias is None else [linear.weight, linear.bias]


def _of_norm(norm: LayerNorm) -> list[Tensor]:
    return [norm.weight, norm.bias]
