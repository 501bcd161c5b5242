"""Flow encoder: speech tokens at 25 Hz to features mu at the mel rate of 50 Hz (specification 5.1).

    ids [1, T] -> embedding -> E -> pre-lookahead (sees 3 tokens ahead) -> 6 blocks -> every token twice, convolved
      -> E_up -> 4 blocks -> LayerNorm -> h [1, 2T, 512] -> projection -> mu [1, 2T, 80]

With a cache the input continues what the cache has seen, which must end on a block of 25 tokens; without one it is the
whole sequence. Both take the same steps in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    FlowEncoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow import cache as flow_cache
from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece, attend, block_mask, heads
from telephony_tts.engines.cosyvoice2.model.flow.cache import Cache
from telephony_tts.engines.cosyvoice2.model.flow.encoder_pages import EncoderPages, PagedCache, Together
from telephony_tts.engines.cosyvoice2.model.flow.layers import Reader
from telephony_tts.engines.cosyvoice2.model.linear import stacked

N_LEFT_LOOKAHEAD, N_LEFT_UP = 2, 4
"""Left contexts of the two causal convolutions: kernels 3 and 5."""
LEAKY_SLOPE = 0.01


def relative_sinusoids(n_past: int, n: int, d_model: int, device: torch.device) -> Tensor:
    """r [T + n - 1, d_model] of the signed distances query minus key, T = n_past + n: from T - 1 down to 1 - n.

    Computed in float32 whatever the weights are: a distance of 2049 has no float16 (specification 5.1).
    """
    distance = torch.arange(n_past + n - 1, -n, -1, dtype=torch.float32, device=device)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float32, device=device)
    angle = distance * torch.exp(even * -(math.log(10_000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def by_key(x: Tensor) -> Tensor:
    """[B, H, N, T + N - 1] over distances as above -> [B, H, N, T] over keys.

    Row a holds key j at column N - 1 - a + j, so that in memory every row begins T + N - 2 after the one before.
    """
    n, n_distances = x.shape[-2:]
    n_keys = n_distances - n + 1
    return x.flatten(-2)[..., n - 1 :].unfold(-1, n_keys, max(1, n_distances - 1))


class KeyValues(Protocol):
    """What one attention layer has seen."""

    def append(self, k: Tensor, v: Tensor) -> list[Piece]:
        """Keeps k, v [B, H, N, D] of N new positions; returns all so far, oldest first."""


class Embed:
    """E(x) = LayerNorm(Linear(x)) * sqrt(d_model)."""

    def __init__(self, config: FlowEncoderConfig, take: Reader, key: str) -> None:
        self.linear = take.linear(f"{key}.out.0", config.d_model, config.d_model)
        self.norm = take.norm(f"{key}.out.1", config.d_model, config.embed_norm_eps)
        self.scale = math.sqrt(config.d_model)

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.scale


class Block:
    """x += MHA_rel(LN(x)); x += FFN(LN(x)) on [B, N, C]."""

    def __init__(self, config: FlowEncoderConfig, take: Reader, key: str) -> None:
        d, self.n_heads = config.d_model, config.n_heads
        attention = f"{key}.self_attn"
        self.norm_mha = take.norm(f"{key}.norm_mha", d, config.norm_eps)
        self.qkv = stacked([take.linear(f"{attention}.linear_{name}", d, d) for name in "qkv"])
        self.position = take.linear(f"{attention}.linear_pos", d, d, bias=False)
        self.u = take(f"{attention}.pos_bias_u", self.n_heads, d // self.n_heads)[:, None]
        self.v = take(f"{attention}.pos_bias_v", self.n_heads, d // self.n_heads)[:, None]
        self.out = take.linear(f"{attention}.linear_out", d, d)
        self.norm_ff = take.norm(f"{key}.norm_ff", d, config.norm_eps)
        self.w_1 = take.linear(f"{key}.feed_forward.w_1", config.d_ff, d)
        self.w_2 = take.linear(f"{key}.feed_forward.w_2", d, config.d_ff)

    def __call__(self, x: Tensor, r: Tensor, mask: Tensor | None, kv: KeyValues | None) -> Tensor:
        """x [B, N, C]; r [T + N - 1, C] of `relative_sinusoids`; mask [N, T], or for each row and head, or None."""
        q, k, v = (heads(part, self.n_heads) for part in self.qkv(self.norm_mha(x)).chunk(3, dim=-1))
        position = heads(self.position(r)[None], self.n_heads)
        bias = by_key((q + self.v) @ position.transpose(-1, -2))
        pieces = [(k, v)] if kv is None else kv.append(k, v)
        x = x + self.out(attend(q + self.u, pieces, mask, bias))
        return x + self.w_2(F.silu(self.w_1(self.norm_ff(x))))


class FlowEncoder:
    def __init__(self, config: FlowEncoderConfig, take: Reader) -> None:
        d = config.d_model
        self.config = config
        self.tokens = take("input_embedding.weight", config.n_tokens, d)
        self.speaker_affine = take.linear("spk_embed_affine_layer", config.d_out, config.d_speaker)
        self.embed = Embed(config, take, "encoder.embed")
        self.ahead = take.conv("encoder.pre_lookahead_layer.conv1", d, d, LOOKAHEAD_TOKENS + 1)
        self.behind = take.conv("encoder.pre_lookahead_layer.conv2", d, d, N_LEFT_LOOKAHEAD + 1)
        self.blocks = [Block(config, take, f"encoder.encoders.{i}") for i in range(config.n_layers)]
        self.up = take.conv("encoder.up_layer.conv", d, d, N_LEFT_UP + 1)
        self.up_embed = Embed(config, take, "encoder.up_embed")
        self.up_blocks = [Block(config, take, f"encoder.up_encoders.{i}") for i in range(config.n_up_layers)]
        self.after_norm = take.norm("encoder.after_norm", d, config.embed_norm_eps)
        self.projection = take.linear("encoder_proj", config.d_out, d)
        self.pages: EncoderPages | None = None
        """Where caches are, on a device."""
        if self.tokens.device.type != "cpu":
            self.pages = EncoderPages(config, (N_LEFT_LOOKAHEAD, N_LEFT_UP), self.tokens)

    def cache(self, growth_frames: int) -> Cache | PagedCache:
        if self.pages is not None:
            return PagedCache(self.pages)
        config = self.config
        d_head = config.d_model // config.n_heads
        growth = [growth_frames // FRAMES_PER_TOKEN] * config.n_layers + [growth_frames] * config.n_up_layers
        return flow_cache.empty(
            left=[(N_LEFT_LOOKAHEAD, config.d_model), (N_LEFT_UP, config.d_model)],
            kv=[(config.n_heads, d_head, n) for n in growth],
            n_batch=1,
            like=self.tokens,
        )

    def speaker(self, embedding: Tensor) -> Tensor:
        """Speaker embedding [1, 192] -> spk [1, 80] (specification 5, step 1)."""
        return self.speaker_affine(F.normalize(embedding.float(), dim=1, eps=1e-12).to(self.tokens.dtype))

    def look(self, ids: Tensor) -> Tensor:
        """ids [1, T] -> E(embedding) [1, T, C]. Negative ids are padding of token 0, as in the reference."""
        return self.embed(F.embedding(ids.clamp(min=0), self.tokens))

    def pre_lookahead(self, x: Tensor, ahead: Tensor | None, lefts: list[list[Tensor]] | None) -> Tensor:
        """x [1, T, C] and `ahead` [1, 3, C] (None: zeros, at the very end) -> [1, T, C]; reaches from t-2 to t+3."""
        y = F.pad(x, (0, 0, 0, LOOKAHEAD_TOKENS)) if ahead is None else torch.cat([x, ahead], dim=1)
        y = F.leaky_relu(self.ahead(y), LEAKY_SLOPE)
        return x + self.behind.causal(y, lefts, 0)

    def encode(
        self, ids: Tensor, ahead: Tensor | None, *, streaming: bool, cache: Cache | PagedCache | Together | None = None
    ) -> Tensor:
        """ids [B, N] and the 3 ids `ahead` [B, 3], None at the end -> h [B, 2N, C]. A cache makes it block-causal; one
        of several streams has a row for each of them."""
        if isinstance(cache, PagedCache):
            alone = Together([cache], ids.shape[1], goes_on=ahead is not None)
            h = self.encode(ids, ahead, streaming=True, cache=alone)
            alone.keep()
            return h
        n = ids.shape[1]
        n_past = cache.n if cache else 0
        causal = streaming or cache is not None
        kv: Sequence[KeyValues | None] = cache.kv if cache else [None] * (len(self.blocks) + len(self.up_blocks))
        left = list(cache.left) if cache else []
        lefts = [left] if cache else None
        rows = cache if isinstance(cache, Together) else None
        x = self.pre_lookahead(self.look(ids), None if ahead is None else self.look(ahead), lefts)
        x = self._run(self.blocks, x, n_past, BLOCK_TOKENS if causal else 0, kv[: len(self.blocks)], rows)
        x = x.repeat_interleave(FRAMES_PER_TOKEN, dim=1)
        x = self.up_embed(self.up.causal(x, lefts, 1))
        n_past, block = n_past * FRAMES_PER_TOKEN, BLOCK_TOKENS * FRAMES_PER_TOKEN
        x = self._run(self.up_blocks, x, n_past, block if causal else 0, kv[len(self.blocks) :], rows)
        if cache:
            cache.commit(n, left)
        return self.after_norm(x)

    def _run(
        self,
        blocks: list[Block],
        x: Tensor,
        n_past: int,
        block: int,
        kv: Sequence[KeyValues | None],
        rows: Together | None,
    ) -> Tensor:
        """x [B, N, C] through the blocks; all keys are visible when `block` is 0, but for what fills up a past."""
        n = x.shape[1]
        mask = block_mask(n_past, n, block, x.device) if block else None
        visible = rows.visible(n_past, n) if rows is not None else None
        if visible is not None:
            mask = visible if mask is None else visible & mask
        r = relative_sinusoids(n_past, n, self.config.d_model, x.device).to(x.dtype)
        for layer, layer_kv in zip(blocks, kv, strict=True):
            x = layer(x, r, mask, layer_kv)
        return x

    def mu(self, h: Tensor) -> Tensor:
        """h [1, 2T, C] -> mu [1, 2T, 80]"""
        return self.projection(h)
