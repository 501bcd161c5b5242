"""The language model: from text and prompt speech to the hidden state from which the next speech id is drawn.

A Qwen2 decoder (specification 4.1). Its keys and values lie in slots, one slot per utterance. Qwen2's own head over
text is never computed: speech ids come from `llm_decoder`.

              CPU                     accelerator
    prefill   `extend`: one slot      `prefill.extend_batch`: several slots
    decode    `decode`: several slots, `decode_at`: several slots, with all arguments on the device

Sizes of the official model: width D = 896, 24 layers, H = 14 query heads and KV = 2 key heads of d = 64, so G = 7 query
heads read each key head; feed-forward F = 4864; V = 6564 speech ids, stop ids included. In float16 a position of the
cache costs 24 * 2 * 2 * 64 * 2 bytes = 12 KiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_ROWS, LmConfig
from telephony_tts.engines.cosyvoice2.model.file_names import LM_FILE
from telephony_tts.engines.cosyvoice2.model.gpu_kernels import kernels_for_heads
from telephony_tts.engines.cosyvoice2.model.linear import RmsNorm
from telephony_tts.engines.cosyvoice2.model.lm.fused_decoder import FusedDecoder
from telephony_tts.engines.cosyvoice2.model.lm.int8_decoder import Int8Decoder
from telephony_tts.engines.cosyvoice2.model.lm.slot_cache import SlotCache
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix, Int8Matrix, Matrix
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.model.state import State, StateReader
from telephony_tts.runtime.errors import EngineError

BODY = "llm.model.model."
TEXT_HEAD = "llm.model.lm_head.weight"
"""The head over text, tied to the embedding in the official file. It is never computed."""

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""Stores the keys and values of N new positions and attends: layer, queries [N, H, d], keys and values [N, 2, KV, d]
-> [N, H * d]. There are four: one or several positions, slot by slot on a CPU or all slots in one call on a device."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one decoder layer. Matrices with the same input are joined."""

    qkv: Matrix
    """[(H + 2 KV) * d, D] after a norm: queries, keys, values."""
    qkv_bias: Tensor
    out: Matrix
    """[D, H * d]"""
    gate_up: Matrix
    """[2 F, D] after a norm: gate, up."""
    down: Matrix
    """[D, F]"""


def rotary_table(n_positions: int, d_head: int, theta: float, device: torch.device) -> Tensor:
    """[2, n_positions, d] float32, of the angle position * theta^(-2i/d): cos, cos and -sin, sin."""
    rate = 1.0 / theta ** (torch.arange(0, d_head, 2, dtype=torch.float32, device=device) / d_head)
    angle = torch.arange(n_positions, dtype=torch.float32, device=device)[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate x [N, heads, d] in place by `cos`, `sin` [N, 1, d]; the first half of d pairs with the second."""
    wide = x.float()
    turned = wide.roll(x.shape[-1] // 2, -1).mul_(sin)
    x.copy_(turned.add_(wide * cos))


class KvCache(SlotCache):
    """The cache of a Qwen2 decoder, and the angles of its positions."""

    def __init__(
        self,
        config: LmConfig,
        n_slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config.n_layers, config.n_kv_heads, config.d_head, n_slots, max_len, dtype, device)
        self.rotary = rotary_table(max_len, config.d_head, config.rope_theta, self.data.device)


def _grouped(queries: Tensor, n_kv_heads: int) -> Tensor:
    """[N, H, d] -> [N, KV, G, d]: query head h reads key head h // G."""
    n, n_heads, d_head = queries.shape
    return queries.view(n, n_kv_heads, n_heads // n_kv_heads, d_head)


def attend_chunk(cache: KvCache, slot: int, start: int, mask: Tensor, layer: int, q: Tensor, kv: Tensor) -> Tensor:
    """N new positions of one slot, from `start` on.

    The G query heads of a key head are further queries of it, so keys are never repeated in memory. `mask`
    [G * N, start + N]: the positions that each query may see.
    """
    n, n_heads, d_head = q.shape
    store = cache.data[layer, :, slot, :, : start + n]  # [2, KV, L, d]
    store[:, :, start:] = kv.permute(1, 2, 0, 3)
    queries = _grouped(q, kv.shape[2]).permute(1, 2, 0, 3).flatten(1, 2)  # [KV, G * N, d]
    out = F.scaled_dot_product_attention(queries[None], store[0][None], store[1][None], attn_mask=mask)[0]
    return out.view(kv.shape[2], -1, n, d_head).permute(2, 0, 1, 3).reshape(n, n_heads * d_head)


class AttendSlots:
    """One new position of each slot, one slot after the other.

    A slot's result has the same bits in any batch, and on a CPU one call for all slots is no faster. The views of the
    keys and values are made once for all layers: on a CPU making them costs as much as attending.
    """

    def __init__(self, cache: KvCache, slots: Sequence[int], starts: Sequence[int]) -> None:
        self._new, self._keys, self._values = [], [], []
        for slot, start in zip(slots, starts, strict=True):
            of_slot = cache.data[:, :, slot : slot + 1, :, : start + 1]
            self._new.append(of_slot[:, :, 0, :, start].unbind(0))
            self._keys.append(of_slot[:, 0].unbind(0))
            self._values.append(of_slot[:, 1].unbind(0))

    def __call__(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        queries = _grouped(q, kv.shape[2])
        rows = []
        for i, new in enumerate(self._new):
            new[layer].copy_(kv[i])
            row = F.scaled_dot_product_attention(queries[i : i + 1], self._keys[i][layer], self._values[i][layer])
            rows.append(row.reshape(1, -1))
        return torch.cat(rows) if len(rows) > 1 else rows[0]


def attend_batch(
    cache: KvCache, slots: Tensor, starts: Tensor, mask: Tensor, layer: int, q: Tensor, kv: Tensor
) -> Tensor:
    """One new position of each slot in one call, as an accelerator needs it: `slots`, `starts` [B]; `mask` [B, 1, 1, L]
    for the longest span L. `prefill.attend_padded` would give the same, with two gathers more in each layer."""
    keys, values = cache.data[layer].unbind(0)  # each [n_slots + 1, KV, max_len, d]
    keys[slots, :, starts], values[slots, :, starts] = kv.unbind(1)
    span = mask.shape[-1]
    keys, values = keys[:, :, :span][slots], values[:, :, :span][slots]  # [B, KV, L, d]
    return F.scaled_dot_product_attention(_grouped(q, kv.shape[2]), keys, values, attn_mask=mask).flatten(1)


class PromptTables:
    """What makes a prompt of ids: the part of a language model that stays here if another engine runs its layers."""

    def __init__(self, config: LmConfig, tables: Mapping[EmbeddingTable, Tensor]) -> None:
        self.config = config
        self.tables = dict(tables)

    @classmethod
    def read_tables(cls, config: LmConfig, reader: StateReader) -> dict[EmbeddingTable, Tensor]:
        d = config.d_model
        return {
            EmbeddingTable.CONTROL: reader("llm_embedding.weight", 2, d),
            EmbeddingTable.TEXT: reader(BODY + "embed_tokens.weight", config.n_text_rows, d),
            EmbeddingTable.SPEECH: reader("speech_embedding.weight", N_SPEECH_ROWS, d),
        }

    @property
    def device(self) -> torch.device:
        return self.tables[EmbeddingTable.CONTROL].device

    @property
    def dtype(self) -> torch.dtype:
        return self.tables[EmbeddingTable.CONTROL].dtype

    @property
    def rows_are_exact(self) -> bool:
        """Whether a row of `decode` and of `logits` has the same bits with any number of rows."""
        return False

    def n_ids(self, table: EmbeddingTable) -> int:
        """Ids of a table."""
        return len(self.tables[table])

    @torch.inference_mode()
    def embed(self, segments: Sequence[TokenSegment]) -> Tensor:
        """[n, D]: the segments' embeddings in order. Raises EngineError for an id that its table lacks."""
        rows = []
        for segment in segments:
            table = self.tables[segment.table]
            if any(not 0 <= item < len(table) for item in segment.ids):
                raise EngineError(f"{segment.table.value} token outside 0 to {len(table) - 1}")
            rows.append(F.embedding(sent(segment.ids, self.device), table))
        return torch.cat(rows)


def _load_kernels() -> ModuleType:
    from telephony_tts.engines.cosyvoice2.model import triton_kernels

    return triton_kernels


class LanguageModel(PromptTables):
    """Weights and functions of them. An utterance writes to its slot of the cache only."""

    def __init__(
        self,
        config: LmConfig,
        tables: Mapping[EmbeddingTable, Tensor],
        layers: Sequence[DecoderLayer],
        norm: Tensor,
        head: Matrix,
        head_bias: Tensor,
    ) -> None:
        super().__init__(config, tables)
        self.layers = tuple(layers)
        self.norm = norm
        self.head, self.head_bias = head, head_bias
        self._int8 = Int8Decoder(self.layers) if isinstance(head, Int8Matrix) else None
        kernels = None if isinstance(head, Int8Matrix) else kernels_for_heads(self.device, config.d_head, _load_kernels)
        self.fused = None if kernels is None else FusedDecoder(self.layers, RmsNorm(norm, config.norm_eps), kernels)
        """The layers with a GPU's own kernels, where they run."""

    @classmethod
    def from_state(cls, config: LmConfig, state: State, weights: Literal["int8"] | None = None) -> Self:
        """Reads `llm.pt`, in the dtype and on the device of its tensors. Raises ValueError that names every tensor that
        is missing, unexpected or of another shape (specification 2.1).

        `weights`: "int8" rounds all matrices but the embeddings; it needs a CPU, or raises ValueError.
        """
        reader = StateReader(state, unused=(TEXT_HEAD,))
        model = cls.read(config, reader, weights)
        reader.finish(LM_FILE)
        return model

    @classmethod
    def read(cls, config: LmConfig, reader: StateReader, weights: Literal["int8"] | None = None) -> Self:
        """`from_state` without the final check of the reader. Raises ValueError for head counts that do not fit."""
        if weights not in (None, "int8"):
            raise ValueError(f"weights can be int8 or None, not {weights}")
        if config.n_heads * config.d_head != config.d_model or config.n_heads % config.n_kv_heads:
            raise ValueError(f"{config.n_heads} heads of {config.n_kv_heads} key heads do not divide {config.d_model}")
        matrix: type[Int8Matrix | FloatMatrix] = FloatMatrix if weights is None else Int8Matrix
        d, d_ff, d_q, d_kv = config.d_model, config.d_ff, config.d_model, config.n_kv_heads * config.d_head

        def layer(i: int) -> DecoderLayer:
            attention, mlp = f"{BODY}layers.{i}.self_attn", f"{BODY}layers.{i}.mlp"
            attn_norm = RmsNorm(reader(f"{BODY}layers.{i}.input_layernorm.weight", d), config.norm_eps)
            mlp_norm = RmsNorm(reader(f"{BODY}layers.{i}.post_attention_layernorm.weight", d), config.norm_eps)
            widths = {"q": d_q, "k": d_kv, "v": d_kv}
            qkv = reader.joined([reader(f"{attention}.{name}_proj.weight", n, d) for name, n in widths.items()])
            qkv_bias = reader.joined([reader(f"{attention}.{name}_proj.bias", n) for name, n in widths.items()])
            gate_up = reader.joined([reader(f"{mlp}.{name}_proj.weight", d_ff, d) for name in ("gate", "up")])
            return DecoderLayer(
                qkv=matrix(qkv, attn_norm),
                qkv_bias=qkv_bias,
                out=matrix(reader(f"{attention}.o_proj.weight", d, d_q)),
                gate_up=matrix(gate_up, mlp_norm),
                down=matrix(reader(f"{mlp}.down_proj.weight", d, d_ff)),
            )

        return cls(
            config,
            cls.read_tables(config, reader),
            [layer(i) for i in range(config.n_layers)],
            reader(BODY + "norm.weight", d),
            matrix(reader("llm_decoder.weight", N_SPEECH_ROWS, d)),
            reader("llm_decoder.bias", N_SPEECH_ROWS),
        )

    @property
    def rows_are_exact(self) -> bool:
        """Whether a row of `decode` and of `logits` has the same bits with any number of rows."""
        return isinstance(self.head, Int8Matrix)

    def new_cache(self, n_slots: int, max_len: int) -> KvCache:
        return KvCache(self.config, n_slots, max_len, self.dtype, self.device)

    @torch.inference_mode()
    def embed_speech(self, ids: Tensor) -> Tensor:
        """[B] -> [B, D] for ids on the device. The caller must check that the table has them."""
        return F.embedding(ids, self.tables[EmbeddingTable.SPEECH])

    def feed(self, segments: Sequence[TokenSegment], slot: int, cache: KvCache) -> Tensor:
        """Append the segments to one slot; returns [n, D] after the final norm. Raises EngineError if they do not
        fit."""
        return self.extend(self.embed(segments), slot, cache)

    @torch.inference_mode()
    def extend(self, x: Tensor, slot: int, cache: KvCache) -> Tensor:
        """Append x [n, D] to one slot; returns [n, D] after the final norm. Raises EngineError if it does not fit."""
        n = x.shape[0]
        start = cache.room(slot, n)
        attend: Attend
        if self._int8 is not None:
            hidden = self._final_norm(self._int8(x, [slot] * n, range(start, start + n), cache))
            cache.lengths[slot] += n
            return hidden
        if n > 1:
            see = torch.ones(n, start + n, dtype=torch.bool, device=x.device).tril(start)
            mask = see.repeat(self.config.n_heads // self.config.n_kv_heads, 1)
            attend = functools.partial(attend_chunk, cache, slot, start, mask)
        else:
            attend = AttendSlots(cache, [slot], [start])
        hidden = self.run_layers(x, cache.rotary[:, start : start + n], attend)
        cache.lengths[slot] += n
        return hidden

    @torch.inference_mode()
    def decode(self, x: Tensor, slots: Sequence[int], cache: KvCache) -> Tensor:
        """Append x[i] of x [B, D] to `slots[i]`; returns [B, D] after the final norm.

        A padding row names `cache.scratch_slot`. Raises EngineError if a slot is full, before anything is written.
        """
        busy = [slot for slot in slots if slot != cache.scratch_slot]
        if len(slots) != x.shape[0] or len(set(busy)) != len(busy):
            raise ValueError(f"{x.shape[0]} rows for slots {list(slots)}: one row for each slot, no slot twice")
        starts = [cache.room(slot, 1) for slot in slots]
        if self._int8 is not None:
            hidden = self._final_norm(self._int8(x, slots, starts, cache))
        else:
            hidden = self.run_layers(x, cache.rotary[:, starts], AttendSlots(cache, slots, starts))
        for slot in busy:
            cache.lengths[slot] += 1
        return hidden

    @torch.inference_mode()
    def decode_at(self, x: Tensor, slots: Tensor, starts: Tensor, span: int, cache: KvCache) -> Tensor:
        """`decode` in one batch with arguments on the device: x [B, D] becomes position `starts` [B] of `slots` [B].

        `span`: positions to read of each slot, more than any of `starts`. The caller checks the room and counts the
        lengths."""
        if self.fused is not None:
            return self.fused(x, slots, starts, cache)
        mask = torch.arange(span, device=x.device) <= starts[:, None, None, None]
        attend = functools.partial(attend_batch, cache, slots, starts, mask)
        return self.run_layers(x, cache.rotary[:, starts], attend)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] float32."""
        return self.head(hidden, self.head_bias).float()

    def run_layers(self, x: Tensor, rotary: Tensor, attend: Attend) -> Tensor:
        """x [N, D] through all layers and the final norm. `rotary` [2, N, d]: of the N positions."""
        n, size = x.shape[0], self.config
        cos, sin = rotary[:, :, None]
        for i, layer in enumerate(self.layers):
            heads = layer.qkv(x, layer.qkv_bias).view(n, -1, size.d_head)
            rotate_(heads[:, : -size.n_kv_heads], cos, sin)
            q, kv = heads[:, : size.n_heads], heads[:, size.n_heads :].view(n, 2, -1, size.d_head)
            x = x + layer.out(attend(i, q, kv))
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return self._final_norm(x)

    def _final_norm(self, x: Tensor) -> Tensor:
        return RmsNorm(self.norm, self.config.norm_eps)(x)
