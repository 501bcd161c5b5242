"""The language model of CosyVoice-300M: text and a speaker to the state from which the next speech id is drawn.

    text ids ─ table ─ text encoder ─ affine ─┐
    speaker ─ affine ─────────────────────────┼─ rows ─ input layer ─ decoder ─ hidden ─ head ─ logits
    sos, task, speech ids ─ tables ───────────┘

The input of a sentence is sos | speaker | text | task | prompt speech (specification 300M, 4). Both stacks have the
same layers: attention with relative positions, causal, and a feed-forward network. The text encoder sees only text, so
the states of a text are computed at once. The decoder's keys and values lie in slots.

Sizes of the official model: width D = 1024, H = 16 heads of d = 64, 6 layers for text and 14 of the decoder.

What attention adds for a distance is a product of the layer's position weights and a fixed row. Upstream computes these
products at each step; here they are a table per layer, for all distances that a slot can have. A step reads the rows
from the distance of the first key down to 0, which is one slice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import RelativeLmConfig
from telephony_tts.engines.cosyvoice2.model.file_names import LM_FILE
from telephony_tts.engines.cosyvoice2.model.linear import Int8Linear, LayerNorm, Linear, LinearMap, NormedLinear
from telephony_tts.engines.cosyvoice2.model.lm.slot_cache import SlotCache
from telephony_tts.engines.cosyvoice2.model.lm.weights import int8_map
from telephony_tts.engines.cosyvoice2.model.relative import by_key, relative_sinusoids
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.model.state import State, StateReader
from telephony_tts.engines.kernels.library import functions
from telephony_tts.runtime.errors import EngineError


@dataclass(slots=True)
class RowEmbedding:
    """The layer before a stack: norm(linear(x)), in the decoder also its positive part, times the root of the width."""

    linear: LinearMap
    norm: LayerNorm
    is_rectified: bool

    def quantize(self) -> None:
        assert isinstance(self.linear, Linear)
        self.linear = int8_map(self.linear)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        return (F.relu(y) if self.is_rectified else y) * math.sqrt(y.shape[-1])


@dataclass(slots=True)
class RelativeLayer:
    """x += MHA(norm(x)); x += FFN(norm(x))."""

    qkv: LinearMap
    """Behind a norm."""
    out: LinearMap
    position: Linear
    """Of a distance's row, without a bias."""
    u: Tensor
    """[H, d], added to the queries of keys."""
    v: Tensor
    """[H, d], added to the queries of distances."""
    w_1: LinearMap
    """Behind a norm."""
    w_2: LinearMap
    is_rectified: bool
    """Activation: the positive part, or x * sigmoid(x)."""

    def quantize(self) -> None:
        """Converts the maps to int8, on a CPU. `position` stays as it is: its products are in a table."""
        assert isinstance(self.qkv, NormedLinear) and isinstance(self.w_1, NormedLinear)
        assert isinstance(self.out, Linear) and isinstance(self.w_2, Linear)
        self.qkv, self.out = int8_map(self.qkv.linear, self.qkv.norm), int8_map(self.out)
        self.w_1, self.w_2 = int8_map(self.w_1.linear, self.w_1.norm), int8_map(self.w_2)
        self.u, self.v = self.u.contiguous(), self.v.contiguous()  # the kernels read their memory

    def __call__(self, x: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """x [N, D]"""
        heads = self.qkv(x).view(len(x), 3, *self.u.shape)
        x = x + self.out(attend(*heads.unbind(1)))
        h = self.w_1(x)
        return x + self.w_2(F.relu(h) if self.is_rectified else F.silu(h))

    def distances(self, n: int) -> Tensor:
        """[H, n, d] of the distances n - 1 down to 0."""
        n_heads, d_head = self.u.shape
        rows = relative_sinusoids(n - 1, 1, n_heads * d_head, self.u.device)
        return self.position(rows).view(n, n_heads, d_head).transpose(0, 1)

    def attended(self, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """q [N, H, d] of the last N of L positions; keys, values, `positions` (`distances`) [H, L, d] -> [N, D].

        A row sees the positions up to its own.
        """
        n, length, d_head = q.shape[0], keys.shape[1], q.shape[2]
        bias = (q + self.v).transpose(0, 1) @ positions.mT
        if n > 1:
            bias = by_key(F.pad(bias, (0, n - 1))[None])[0]
            see = torch.ones(n, length, dtype=torch.bool, device=q.device).tril(length - n)
            bias = bias.masked_fill(~see, -math.inf)
        query = (q + self.u).transpose(0, 1)
        mask = (bias / math.sqrt(d_head))[None]
        out = F.scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=mask)[0]
        return out.transpose(0, 1).flatten(1)


class RelativeCache(SlotCache):
    """The decoder's keys and values, the tables of its distances, and the row of each slot's speaker."""

    def __init__(self, lm: RelativeLm, n_slots: int, max_len: int) -> None:
        c = lm.config
        super().__init__(c.n_layers, c.n_heads, c.d_head, n_slots, max_len, lm.dtype, lm.device)
        self.positions = torch.stack([layer.distances(max_len) for layer in lm.layers])
        """[n_layers, H, max_len, d], of the distances max_len - 1 down to 0."""
        self.speakers = torch.zeros(n_slots + 1, c.d_model, dtype=lm.dtype, device=lm.device)


class RelativeLm:
    """Weights and functions of them. An utterance writes to its slot of the cache only."""

    def __init__(self, config: RelativeLmConfig, read: StateReader) -> None:
        """Takes the tensors of `llm.pt`. Raises ValueError for heads that do not divide the width."""
        if config.d_model % config.n_heads or config.d_model % 2:
            raise ValueError(f"{config.n_heads} heads do not divide the width {config.d_model}")
        self.config = config
        d, d_ff = config.d_model, config.d_ff

        def linear(name: str, d_out: int, d_in: int) -> Linear:
            return Linear(read(f"{name}.weight", d_out, d_in), read(f"{name}.bias", d_out))

        def norm(name: str, eps: float = config.embed_norm_eps) -> LayerNorm:
            return LayerNorm(read(f"{name}.weight", d), read(f"{name}.bias", d), eps)

        def layer(name: str, norms: tuple[str, str], *, is_rectified: bool) -> RelativeLayer:
            at, size = f"{name}.self_attn", (config.n_heads, config.d_head)
            parts = [linear(f"{at}.linear_{part}", d, d) for part in "qkv"]
            biases = [part.bias for part in parts if part.bias is not None]
            qkv = Linear(read.joined([part.weight for part in parts]), read.joined(biases))
            return RelativeLayer(
                NormedLinear(norm(f"{name}.{norms[0]}", config.norm_eps), qkv),
                linear(f"{at}.linear_out", d, d),
                Linear(read(f"{at}.linear_pos.weight", d, d), None),
                read(f"{at}.pos_bias_u", *size),
                read(f"{at}.pos_bias_v", *size),
                NormedLinear(norm(f"{name}.{norms[1]}", config.norm_eps), linear(f"{name}.feed_forward.w_1", d_ff, d)),
                linear(f"{name}.feed_forward.w_2", d, d_ff),
                is_rectified,
            )

        def embedding(name: str, d_in: int, *, is_rectified: bool) -> RowEmbedding:
            return RowEmbedding(linear(f"{name}.out.0", d, d_in), norm(f"{name}.out.1"), is_rectified)

        self.tables = {
            EmbeddingTable.CONTROL: read("llm_embedding.weight", 2, d),
            EmbeddingTable.TEXT: read("text_embedding.weight", config.n_text_rows, config.d_text),
            EmbeddingTable.SPEECH: read("speech_embedding.weight", config.n_tokens, d),
        }
        self.text_embed = embedding("text_encoder.embed", config.d_text, is_rectified=False)
        self.text_layers = [
            layer(f"text_encoder.encoders.{i}", ("norm_mha", "norm_ff"), is_rectified=False)
            for i in range(config.n_text_layers)
        ]
        self.text_norm = norm("text_encoder.after_norm")
        self.text_affine: LinearMap = linear("text_encoder_affine_layer", d, d)
        self.speaker_affine = linear("spk_embed_affine_layer", d, config.d_speaker)
        self.embed_rows = embedding("llm.embed", d, is_rectified=True)
        self.layers = [
            layer(f"llm.encoders.{i}", ("norm1", "norm2"), is_rectified=True) for i in range(config.n_layers)
        ]
        self.norm = norm("llm.after_norm")
        self.head: LinearMap = linear("llm_decoder", config.n_tokens + 1, d)

    @classmethod
    def from_state(cls, config: RelativeLmConfig, state: State, weights: Literal["int8"] | None = None) -> Self:
        """Reads `llm.pt`, in the dtype and on the device of its tensors. Raises ValueError that names every tensor that
        is missing, unexpected or of another shape (specification 300M, 2).

        `weights`: "int8" rounds all matrices but the embeddings; it needs float32 on a CPU, or raises ValueError.
        """
        reader = StateReader(state)
        model = cls(config, reader)
        reader.finish(LM_FILE)
        if weights == "int8":
            model.quantize()
        return model

    def quantize(self) -> None:
        """Converts all maps to int8 but those that are computed once: of the speaker and of the distances."""
        for embedding in (self.text_embed, self.embed_rows):
            embedding.quantize()
        for layer in (*self.text_layers, *self.layers):
            layer.quantize()
        assert isinstance(self.text_affine, Linear) and isinstance(self.head, Linear)
        self.text_affine, self.head = int8_map(self.text_affine), int8_map(self.head)

    @property
    def rows_are_exact(self) -> bool:
        """Whether a row of `decode` and of `logits` has the same bits with any number of rows."""
        return isinstance(self.head, Int8Linear)

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    def n_ids(self, table: EmbeddingTable) -> int:
        """Ids of a table."""
        return 1 if table is EmbeddingTable.SPEAKER else len(self.tables[table])

    def new_cache(self, n_slots: int, max_len: int) -> RelativeCache:
        with torch.inference_mode():
            return RelativeCache(self, n_slots, max_len)

    @torch.inference_mode()
    def set_speaker(self, cache: RelativeCache, slot: int, embedding: Tensor) -> None:
        """The speaker of the utterance in `slot`: embedding [1, 192], of which only the direction counts."""
        direction = F.normalize(embedding.float(), dim=1, eps=1e-12).to(self.dtype)
        cache.speakers[slot] = self.speaker_affine(direction)[0]

    @torch.inference_mode()
    def encode_text(self, ids: Sequence[int]) -> Tensor:
        """A whole text, [n] -> rows [n, D]."""
        x = self.text_embed(F.embedding(sent(ids, self.device), self.tables[EmbeddingTable.TEXT]))
        for layer in self.text_layers:
            positions = layer.distances(len(ids))

            def attend(q: Tensor, k: Tensor, v: Tensor, layer: RelativeLayer = layer, r: Tensor = positions) -> Tensor:
                return layer.attended(q, k.transpose(0, 1), v.transpose(0, 1), r)

            x = layer(x, attend)
        return self.text_affine(self.text_norm(x)).to(self.dtype)

    @torch.inference_mode()
    def embed(self, segments: Sequence[TokenSegment], slot: int, cache: RelativeCache) -> Tensor:
        """[n, D]: rows of the segments in order. A text segment must be a whole text. Raises EngineError for an id that
        its table lacks."""
        rows = []
        for segment in segments:
            n_ids = self.n_ids(segment.table)
            if any(not 0 <= item < n_ids for item in segment.ids):
                raise EngineError(f"{segment.table.value} token outside 0 to {n_ids - 1}")
            if segment.table is EmbeddingTable.SPEAKER:
                rows.append(cache.speakers[slot : slot + 1])
            elif segment.table is EmbeddingTable.TEXT:
                rows.append(self.encode_text(segment.ids))
            else:
                rows.append(F.embedding(sent(segment.ids, self.device), self.tables[segment.table]))
        return torch.cat(rows)

    @torch.inference_mode()
    def embed_speech(self, ids: Tensor) -> Tensor:
        """[B] -> [B, D] for ids on the device. The caller must check that the table has them."""
        return F.embedding(ids, self.tables[EmbeddingTable.SPEECH])

    @torch.inference_mode()
    def feed(self, segments: Sequence[TokenSegment], slot: int, cache: RelativeCache) -> Tensor:
        """Append the segments' n rows to one slot; returns [n, D] after the final norm. Raises EngineError if they do
        not fit."""
        return self.extend(self.embed(segments, slot, cache), slot, cache)

    @torch.inference_mode()
    def extend(self, x: Tensor, slot: int, cache: RelativeCache) -> Tensor:
        """Append x [n, D] to one slot; returns [n, D] after the final norm. Raises EngineError if it does not fit."""
        n = len(x)
        start = cache.room(slot, n)
        x = self.embed_rows(x)
        for i, layer in enumerate(self.layers):
            x = layer(x, functools.partial(_attend_slot, layer, cache, i, slot, start))
        cache.lengths[slot] += n
        return self.norm(x)

    @torch.inference_mode()
    def decode(self, x: Tensor, slots: Sequence[int], cache: RelativeCache) -> Tensor:
        """Append x[i] of x [B, D] to `slots[i]`; returns [B, D] after the final norm.

        Raises EngineError if a slot is full, before anything is written.
        """
        if len(slots) != len(x) or len(set(slots)) != len(slots):
            raise ValueError(f"{len(x)} rows for slots {list(slots)}: one row for each slot, no slot twice")
        starts = [cache.room(slot, 1) for slot in slots]
        x = self.embed_rows(x)
        for i, layer in enumerate(self.layers):

            def attend(q: Tensor, k: Tensor, v: Tensor, i: int = i, layer: RelativeLayer = layer) -> Tensor:
                if self.rows_are_exact:
                    return _attend_rows(layer, cache, i, slots, starts, q)
                rows = [
                    _attend_slot(layer, cache, i, slot, start, q[at : at + 1], k[at : at + 1], v[at : at + 1])
                    for at, (slot, start) in enumerate(zip(slots, starts, strict=True))
                ]
                return torch.cat(rows) if len(rows) > 1 else rows[0]

            x = layer(x, attend)
        for slot in slots:
            cache.lengths[slot] += 1
        return self.norm(x)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] float32. The last of the V ids ends the speech."""
        return self.head(hidden).float()


def _attend_slot(
    layer: RelativeLayer, cache: RelativeCache, i: int, slot: int, start: int, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Layer `i` stores the keys and values of N new rows [N, H, d] of a slot, from position `start` on, and attends."""
    end = start + len(q)
    keys, values = cache.data[i, :, slot, :, :end].unbind(0)  # [H, L, d] each
    keys[:, start:], values[:, start:] = k.transpose(0, 1), v.transpose(0, 1)
    return layer.attended(q, keys, values, cache.positions[i, :, cache.max_len - end :])


def _attend_rows(
    layer: RelativeLayer, cache: RelativeCache, i: int, slots: Sequence[int], starts: Sequence[int], q: Tensor
) -> Tensor:
    """`_attend_slot` of one new row in each of `slots`, in float32 on a CPU. The rows of q [B, H, d] are followed by
    their keys and values in memory."""
    n_rows, n_heads, d_head = q.shape
    out = q.new_empty(n_rows, n_heads * d_head)
    data, run = cache.data[i], functions().attend_relative
    of_row, of_slot, of_values = 4 * q.stride(0), 4 * data.stride(1), 4 * data.stride(0)
    first, keys, to = q.data_ptr(), data.data_ptr(), out.data_ptr()
    u, v, positions = layer.u.data_ptr(), layer.v.data_ptr(), cache.positions[i].data_ptr()
    for row, (slot, start) in enumerate(zip(slots, starts, strict=True)):
        at, sizes = keys + slot * of_slot, (n_heads, d_head, cache.max_len, start + 1)
        run(first + row * of_row, u, v, at, at + of_values, positions, *sizes, to + 4 * row * n_heads * d_head)
    return out
