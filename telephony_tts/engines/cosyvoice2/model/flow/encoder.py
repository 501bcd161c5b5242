"""Flow encoder: speech tokens at 25 Hz to features `mu` at the mel rate of 50 Hz (specification 5.1).

    ids [B, N] -> embedding -> E -> pre-lookahead (reads 3 tokens ahead) -> 6 layers -> every token twice, convolved
      -> E_up -> 4 layers -> LayerNorm -> h [B, 2N, 512] -> projection -> mu [B, 2N, 80]

The input continues what the context (`pass_context`) holds, which must end on a block of 25 tokens. With a
`WholeSequence` the input is the whole sentence. Both ways run the same operations in the same order.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    FlowEncoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.attention import attend, by_head, split_heads
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PassLayout
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import EncoderContext
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, Linear, LinearMap
from telephony_tts.engines.cosyvoice2.model.relative import by_key, relative_sinusoids

N_LEFT_LOOKAHEAD, N_LEFT_UP = 2, 4
"""Left contexts of the two causal convolutions: kernels 3 and 5."""
LOOKAHEAD_SLOT, UP_SLOT = 0, 1
"""Their numbers in an `EncoderContext`."""
LEAKY_SLOPE = 0.01
TABLE_STEP = 100
"""Distances behind a position that a table holds at least."""


class EncoderEmbedding:
    """E(x) = LayerNorm(Linear(x)) * sqrt(d_model)."""

    def __init__(self, config: FlowEncoderConfig, take: FlowReader, key: str) -> None:
        self.linear = take.linear(f"{key}.out.0", config.d_model, config.d_model)
        self.norm = take.norm(f"{key}.out.1", config.d_model, config.embed_norm_eps)
        self.scale = math.sqrt(config.d_model)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.scale


class Distances:
    """From each of n new positions to each of the `n_past` before them and to each other: from the largest down."""

    def __init__(self, n_past: int, n: int, like: Tensor) -> None:
        self.first, self.last = n_past + n - 1, 1 - n
        self._n_past, self._n, self._like = n_past, n, like

    @functools.cached_property
    def sinusoids(self) -> Tensor:
        """[n_past + 2 n - 1, C] in the dtype and on the device of `like` [..., C]"""
        like = self._like
        return relative_sinusoids(self._n_past, self._n, like.shape[-1], like.device).to(like.dtype)


class DistanceTable:
    """What a map in int8 makes of the sinusoids of distances, kept for all sentences. A row has the same bits in any
    batch. From any thread."""

    def __init__(self, position: Int8Linear) -> None:
        self._position = position
        self._kept = 0, torch.empty(0, position.n)
        """The largest distance, and the rows from there down."""

    def __call__(self, of: Distances) -> Tensor:
        """[of.first - of.last + 1, C]"""
        first, rows = self._kept
        if of.first > first or of.last < first - len(rows) + 1:
            # Half as many again as are needed: a sentence asks for a few more with each block.
            n, most = TABLE_STEP + max(-of.last, len(rows) - first), max(of.first, first) * 3 // 2
            first = most + n
            rows = self._position(relative_sinusoids(most + 1, n, self._position.k, rows.device))
            self._kept = first, rows
        return rows[first - of.first : first - of.last + 1]


class EncoderLayer:
    """x += MHA_rel(LN(x)); x += FFN(LN(x)) on [B, N, C]."""

    def __init__(self, config: FlowEncoderConfig, take: FlowReader, key: str, index: int) -> None:
        """`index`: of its attention among the layers of both rates."""
        d, self.n_heads, self.index = config.d_model, config.n_heads, index
        attention = f"{key}.self_attn"
        self.norm_mha = take.norm(f"{key}.norm_mha", d, config.norm_eps)
        self.qkv: LinearMap = take.stacked_linear([f"{attention}.linear_{name}" for name in "qkv"], d, d)
        self.position: LinearMap = take.linear(f"{attention}.linear_pos", d, d, bias=False)
        self.table: DistanceTable | None = None
        self.u = take(f"{attention}.pos_bias_u", self.n_heads, d // self.n_heads)[:, None]
        self.v = take(f"{attention}.pos_bias_v", self.n_heads, d // self.n_heads)[:, None]
        self.out: LinearMap = take.linear(f"{attention}.linear_out", d, d)
        self.norm_ff = take.norm(f"{key}.norm_ff", d, config.norm_eps)
        self.w_1: LinearMap = take.linear(f"{key}.feed_forward.w_1", config.d_ff, d)
        self.w_2: LinearMap = take.linear(f"{key}.feed_forward.w_2", d, config.d_ff)

    def quantize(self) -> None:
        """Converts the maps to int8, on a CPU. Activations have 15 bits: all frames of a block depend on them."""
        self.qkv, self.position, self.out, self.w_1, self.w_2 = (
            Int8Linear(each, in_15_bits=True) if isinstance(each, Linear) else each
            for each in (self.qkv, self.position, self.out, self.w_1, self.w_2)
        )
        assert isinstance(self.position, Int8Linear)
        self.table = DistanceTable(self.position)

    def __call__(self, x: Tensor, distances: Distances, mask: Tensor | None, context: EncoderContext) -> Tensor:
        """x [B, N, C]; mask as of `EncoderContext.mask`."""
        q, k, v = split_heads(self.qkv(self.norm_mha(x)), self.n_heads)
        rows = self.position(distances.sinusoids) if self.table is None else self.table(distances)
        position = by_head(rows[None], self.n_heads)
        bias = by_key((q + self.v) @ position.transpose(-1, -2))
        x = x + self.out(attend(q + self.u, context.append(self.index, k, v), mask, bias))
        return x + self.w_2(F.silu(self.w_1(self.norm_ff(x))))


class FlowEncoder:
    def __init__(self, config: FlowEncoderConfig, take: FlowReader) -> None:
        d, n_layers = config.d_model, config.n_layers
        self.config = config
        self.tokens = take("input_embedding.weight", config.n_tokens, d)
        """[n_tokens, C]: the embedding of each speech token."""
        self.speaker_affine = take.linear("spk_embed_affine_layer", config.d_out, config.d_speaker)
        self.embed = EncoderEmbedding(config, take, "encoder.embed")
        self.lookahead_conv = take.conv("encoder.pre_lookahead_layer.conv1", d, d, LOOKAHEAD_TOKENS + 1)
        self.causal_conv = take.conv("encoder.pre_lookahead_layer.conv2", d, d, N_LEFT_LOOKAHEAD + 1)
        self.layers = [EncoderLayer(config, take, f"encoder.encoders.{i}", i) for i in range(n_layers)]
        self.up_conv = take.conv("encoder.up_layer.conv", d, d, N_LEFT_UP + 1)
        self.up_embed = EncoderEmbedding(config, take, "encoder.up_embed")
        self.up_layers = [
            EncoderLayer(config, take, f"encoder.up_encoders.{i}", n_layers + i) for i in range(config.n_up_layers)
        ]
        self.after_norm = take.norm("encoder.after_norm", d, config.embed_norm_eps)
        self.projection = take.linear("encoder_proj", config.d_out, d)

    def quantize(self) -> None:
        """Converts the layers to int8, on a CPU. Convolutions stay as they are, by the kernels."""
        for layer in (*self.layers, *self.up_layers):
            layer.quantize()
        for conv in (self.lookahead_conv, self.causal_conv, self.up_conv):
            conv.use_kernels()

    def layout(self) -> PassLayout:
        """What a pass keeps of a stream."""
        config = self.config
        return PassLayout(
            n_rows=1,
            n_heads=config.n_heads,
            d_head=config.d_model // config.n_heads,
            rates=(1,) * config.n_layers + (FRAMES_PER_TOKEN,) * config.n_up_layers,
            contexts=((N_LEFT_LOOKAHEAD, config.d_model), (N_LEFT_UP, config.d_model)),
        )

    def speaker(self, embedding: Tensor) -> Tensor:
        """Speaker embedding [1, 192] -> spk [1, 80] (specification 5, step 1)."""
        return self.speaker_affine(F.normalize(embedding.float(), dim=1, eps=1e-12).to(self.tokens.dtype))

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """ids [B, N] -> E(embedding) [B, N, C]. Negative ids are padding and count as token 0, as in the reference."""
        return self.embed(F.embedding(ids.clamp(min=0), self.tokens))

    def pre_lookahead(self, x: Tensor, ahead: Tensor | None, context: EncoderContext) -> Tensor:
        """x [B, N, C], `ahead` [B, 3, C] -> [B, N, C]. Position t reads from t - 2 to t + 3.

        `ahead` is None at the end of a sentence, and then counts as zeros.
        """
        y = F.pad(x, (0, 0, 0, LOOKAHEAD_TOKENS)) if ahead is None else torch.cat([x, ahead], dim=1)
        y = F.leaky_relu(self.lookahead_conv(y), LEAKY_SLOPE)
        return x + self.causal_conv.causal(y, context, LOOKAHEAD_SLOT)

    def encode(self, ids: Tensor, ahead: Tensor | None, context: EncoderContext) -> Tensor:
        """ids [B, N] and the 3 ids after them, `ahead` [B, 3] or None at the end -> h [B, 2N, C].

        With a batch of streams as `context`, each row is a stream. `context` changes when everything is computed.
        """
        x = self.embed_tokens(ids)
        x = self.pre_lookahead(x, None if ahead is None else self.embed_tokens(ahead), context)
        x = self._run(self.layers, x, context, rate=1)
        x = x.repeat_interleave(FRAMES_PER_TOKEN, dim=1)
        x = self.up_embed(self.up_conv.causal(x, context, UP_SLOT))
        x = self._run(self.up_layers, x, context, rate=FRAMES_PER_TOKEN)
        context.commit()
        return self.after_norm(x)

    def _run(self, layers: list[EncoderLayer], x: Tensor, context: EncoderContext, rate: int) -> Tensor:
        """x [B, N, C] through the layers, at `rate` positions per token."""
        n = x.shape[1]
        mask = context.mask(n, rate)
        distances = Distances(context.n_past * rate, n, x)
        for layer in layers:
            x = layer(x, distances, mask, context)
        return x

    def mu(self, h: Tensor) -> Tensor:
        """h [B, 2N, C] -> mu [B, 2N, 80]"""
        return self.projection(h)
