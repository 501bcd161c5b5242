"""The language model: text and prompt speech in, the hidden state from which the next speech id is drawn out.

A Qwen2 decoder (specification 4.1) with its keys and values in slots, one slot per utterance. Long inputs go in one
utterance at a time (`prefill`), on a device several (`lm_prefill`), single steps for many at once (`decode`). Qwen2's
own head over text is never computed: speech ids come from `llm_decoder`.

Sizes of the official model: width D = 896, 24 layers, H = 14 query heads and KV = 2 key heads of d = 64, so G = 7 query
heads read each key head; feed-forward F = 4864; V = 6564 speech ids, stop ids included. In float16 a position of the
cache costs 24 * 2 * 2 * 64 * 2 bytes = 12 KiB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_ROWS, LmConfig
from telephony_tts.engines.cosyvoice2.model.lm.int4 import Int4Matrix
from telephony_tts.engines.cosyvoice2.model.lm.weights import FloatMatrix, Int8Matrix, Matrix, RmsNorm, rms_norm
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.errors import EngineError

BODY = "llm.model.model."
IGNORED_KEYS = frozenset({"llm.model.lm_head.weight"})
PREFILL_CHUNK = 256
SPAN_STEP = 128
"""Rows attended together read a whole number of these positions, so that shapes seldom change."""

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""layer, queries [N, H, d], keys and values [N, 2, KV, d] of the N new positions -> attended [N, H * d]."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one decoder layer; matrices that read the same input are one matrix."""

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
    """[2, n_positions, d] float32: of position * theta^(-2i/d) the cosine twice, and the sine negated and as it is."""
    rate = 1.0 / theta ** (torch.arange(0, d_head, 2, dtype=torch.float32, device=device) / d_head)
    angle = torch.arange(n_positions, dtype=torch.float32, device=device)[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn x [N, heads, d] in its place by `cos`, `sin` [N, 1, d]; the first half of d pairs with the second."""
    wide = x.float()
    turned = wide.roll(x.shape[-1] // 2, -1).mul_(sin)
    x.copy_(turned.add_(wide * cos))


class KvCache:
    """Keys and values of all utterances: `data` [n_layers, 2, n_slots + 1, KV, max_len, d], never reallocated.

    `lengths[slot]` positions are filled. The host keeps them: it feeds the model and so knows them without asking the
    device. The last slot, `idle`, belongs to nobody: a row of `decode` that has nothing to do names it, which keeps the
    number of rows, and with it the arithmetic of every other row, the same while utterances come and go.

    `together`: rows of a decode step attend in one call, over the longest span among them (what an accelerator wants);
    otherwise each over its own span, which is exact to the bit whoever else is there, and on a CPU no slower.
    """

    def __init__(
        self,
        config: LmConfig,
        n_slots: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        together: bool | None = None,
    ) -> None:
        if n_slots < 1 or max_len < 1:
            raise ValueError(f"a cache of {n_slots} slots and {max_len} positions holds nothing")
        shape = (config.n_layers, 2, n_slots + 1, config.n_kv_heads, max_len, config.d_head)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.rotary = rotary_table(max_len, config.d_head, config.rope_theta, self.data.device)
        self.n_slots, self.max_len = n_slots, max_len
        self.idle = n_slots
        self.lengths = [0] * n_slots
        self.together = self.data.device.type != "cpu" if together is None else together
        self._free = list(range(n_slots))

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_bytes_per_slot(self) -> int:
        return self.data[:, :, 0].numel() * self.data.element_size()

    def acquire(self) -> int:
        """The lowest empty slot. Raises EngineError if none is left."""
        if not self._free:
            raise EngineError(f"all {self.n_slots} slots of the speech model are taken")
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def take(self, slot: int) -> None:
        """That slot, which somebody else gives out. Raises ValueError if it is taken."""
        if slot not in self._free:
            raise ValueError(f"slot {slot} is taken")
        self._free.remove(slot)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Give `slot` back. Emptied, because what is masked still meets a zero weight, and zero times NaN is NaN."""
        if not 0 <= slot < self.n_slots or slot in self._free:
            raise ValueError(f"slot {slot} is not taken")
        try:
            self.data[:, :, slot, :, : self.lengths[slot]] = 0
        finally:
            self.lengths[slot] = 0
            self._free.append(slot)

    def room(self, slot: int, n: int) -> int:
        """Where the next `n` positions of `slot` start. Raises EngineError if they do not fit."""
        if slot == self.idle:
            return 0
        if not 0 <= slot < self.n_slots:
            raise ValueError(f"no slot {slot} among {self.n_slots}")
        if self.lengths[slot] + n > self.max_len:
            raise EngineError(f"prompt, text and speech exceed {self.max_len} tokens; speak it in shorter pieces")
        return self.lengths[slot]


def _grouped(queries: Tensor, n_kv_heads: int) -> Tensor:
    """[N, H, d] -> [N, KV, G, d]: query head h reads key head h // G."""
    n, n_heads, d_head = queries.shape
    return queries.view(n, n_kv_heads, n_heads // n_kv_heads, d_head)


def attend_chunk(cache: KvCache, slot: int, start: int, mask: Tensor, layer: int, q: Tensor, kv: Tensor) -> Tensor:
    """N new positions of one utterance, from `start` on: stores kv [N, 2, KV, d] and returns [N, H * d].

    The G query heads of a key head are laid out as further queries of it, so keys are never repeated in memory.
    `mask` [G * N, start + N]: what each may see.
    """
    n, n_heads, d_head = q.shape
    store = cache.data[layer, :, slot, :, : start + n]  # [2, KV, L, d]
    store[:, :, start:] = kv.permute(1, 2, 0, 3)
    queries = _grouped(q, kv.shape[2]).permute(1, 2, 0, 3).flatten(1, 2)  # [KV, G * N, d]
    out = F.scaled_dot_product_attention(queries[None], store[0][None], store[1][None], attn_mask=mask)[0]
    return out.view(kv.shape[2], -1, n, d_head).permute(2, 0, 1, 3).reshape(n, n_heads * d_head)


class AttendApart:
    """One new position of each of B utterances, one utterance after the other.

    Where each has its keys and values is looked up once for all layers: on a CPU that costs as much as attending.
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


def attend_together(
    cache: KvCache, slots: Tensor, starts: Tensor, mask: Tensor, layer: int, q: Tensor, kv: Tensor
) -> Tensor:
    """The same in one call: `slots`, `starts` [B], `mask` [B, 1, 1, L] for the longest span L -> [B, H * d]."""
    keys, values = cache.data[layer].unbind(0)  # each [n_slots + 1, KV, max_len, d]
    keys[slots, :, starts], values[slots, :, starts] = kv.unbind(1)
    span = mask.shape[-1]
    keys, values = keys[:, :, :span][slots], values[:, :, :span][slots]  # [B, KV, L, d]
    return F.scaled_dot_product_attention(_grouped(q, kv.shape[2]), keys, values, attn_mask=mask).flatten(1)


def expected_shapes(config: LmConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of llm.pt that is used, by its official name (specification 2.1)."""
    d, d_ff = config.d_model, config.d_ff
    d_q, d_kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    shapes: dict[str, tuple[int, ...]] = {
        "llm_embedding.weight": (2, d),
        "speech_embedding.weight": (N_SPEECH_ROWS, d),
        "llm_decoder.weight": (N_SPEECH_ROWS, d),
        "llm_decoder.bias": (N_SPEECH_ROWS,),
        BODY + "embed_tokens.weight": (config.n_text_rows, d),
        BODY + "norm.weight": (d,),
    }
    for i in range(config.n_layers):
        at = f"{BODY}layers.{i}."
        for name, rows in (("q", d_q), ("k", d_kv), ("v", d_kv)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows, d)
            shapes[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        shapes[at + "self_attn.o_proj.weight"] = (d, d_q)
        shapes[at + "mlp.gate_proj.weight"] = shapes[at + "mlp.up_proj.weight"] = (d_ff, d)
        shapes[at + "mlp.down_proj.weight"] = (d, d_ff)
        shapes[at + "input_layernorm.weight"] = shapes[at + "post_attention_layernorm.weight"] = (d,)
    return shapes


def check_state(config: LmConfig, state: Mapping[str, Tensor]) -> None:
    """Raises ValueError that lists every tensor missing, unexpected or of another shape."""
    shapes = expected_shapes(config)
    problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in state]
    problems += [f"unexpected {name}" for name in state if name not in shapes and name not in IGNORED_KEYS]
    problems += [
        f"{name} is {list(state[name].shape)}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    if config.n_heads * config.d_head != config.d_model or config.n_heads % config.n_kv_heads:
        problems.append(f"{config.n_heads} heads of {config.n_kv_heads} key heads do not divide {config.d_model}")
    if problems:
        raise ValueError("language model: " + "; ".join(problems))


class LanguageModel:
    """Weights, and functions of them; what an utterance does is written to its slot of the cache and nowhere else."""

    def __init__(
        self,
        config: LmConfig,
        tables: Mapping[EmbeddingTable, Tensor],
        layers: Sequence[DecoderLayer],
        norm: Tensor,
        head_weight: Matrix,
        head_bias: Tensor,
    ) -> None:
        self.config = config
        self.tables = dict(tables)
        self.layers = tuple(layers)
        self.norm = norm
        self.head_weight, self.head_bias = head_weight, head_bias

    @classmethod
    def from_state(
        cls, config: LmConfig, state: Mapping[str, Tensor], weights: Literal["int8", "int4"] | None = None
    ) -> Self:
        """From the official keys, in the dtype and on the device the tensors have. Raises ValueError: `check_state`.

        `weights`: "int8" rounds all matrices but the embeddings, of float32 on the CPU; ValueError for other tensors.
        "int4" does, but for the head, which then is in int8: what is drawn depends on it directly.
        """
        check_state(config, state)
        if weights not in (None, "int8", "int4"):
            raise ValueError(f"weights can be int8 or int4, or left as they are, not {weights}")
        matrix: type[Int4Matrix | Int8Matrix | FloatMatrix] = FloatMatrix
        if weights is not None:
            matrix = Int4Matrix if weights == "int4" else Int8Matrix
        head = FloatMatrix if weights is None else Int8Matrix

        def layer(i: int) -> DecoderLayer:
            at = f"{BODY}layers.{i}."
            attn_norm = RmsNorm(state[at + "input_layernorm.weight"], config.norm_eps)
            mlp_norm = RmsNorm(state[at + "post_attention_layernorm.weight"], config.norm_eps)
            qkv = torch.cat([state[f"{at}self_attn.{name}_proj.weight"] for name in "qkv"])
            gate_up = torch.cat([state[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up")])
            return DecoderLayer(
                qkv=matrix(qkv, attn_norm),
                qkv_bias=torch.cat([state[f"{at}self_attn.{name}_proj.bias"] for name in "qkv"]),
                out=matrix(state[at + "self_attn.o_proj.weight"]),
                gate_up=matrix(gate_up, mlp_norm),
                down=matrix(state[at + "mlp.down_proj.weight"]),
            )

        tables = {
            EmbeddingTable.CONTROL: state["llm_embedding.weight"],
            EmbeddingTable.TEXT: state[BODY + "embed_tokens.weight"],
            EmbeddingTable.SPEECH: state["speech_embedding.weight"],
        }
        return cls(
            config,
            tables,
            [layer(i) for i in range(config.n_layers)],
            state[BODY + "norm.weight"],
            head(state["llm_decoder.weight"]),
            state["llm_decoder.bias"],
        )

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def rows_are_exact(self) -> bool:
        """Whether a row of `decode` that attends apart is the same to the bit in any number of rows; so are logits."""
        return isinstance(self.head_weight, Int8Matrix)

    def new_cache(self, n_slots: int, max_len: int, together: bool | None = None) -> KvCache:
        return KvCache(self.config, n_slots, max_len, self.dtype, self.device, together)

    @torch.inference_mode()
    def embed(self, segments: Sequence[TokenSegment]) -> Tensor:
        """[n, D]: the segments' embeddings in order. Raises EngineError for an id its table does not have."""
        rows = []
        for segment in segments:
            table = self.tables[segment.table]
            if any(not 0 <= item < len(table) for item in segment.ids):
                raise EngineError(f"{segment.table.value} token outside 0 to {len(table) - 1}")
            rows.append(F.embedding(sent(segment.ids, self.device), table))
        return torch.cat(rows)

    @torch.inference_mode()
    def embed_speech(self, ids: Tensor) -> Tensor:
        """[B] -> [B, D], for ids that are on the device already. An id past the table's end is the caller's error."""
        return F.embedding(ids, self.tables[EmbeddingTable.SPEECH])

    @torch.inference_mode()
    def extend(self, x: Tensor, slot: int, cache: KvCache) -> Tensor:
        """Append x [n, D] to one utterance; returns [n, D] after the final norm. Raises EngineError if out of room."""
        n = x.shape[0]
        start = cache.room(slot, n)
        attend: Attend
        if n > 1:
            see = torch.ones(n, start + n, dtype=torch.bool, device=x.device).tril(start)
            mask = see.repeat(self.config.n_heads // self.config.n_kv_heads, 1)
            attend = functools.partial(attend_chunk, cache, slot, start, mask)
        else:
            attend = AttendApart(cache, [slot], [start])
        hidden = self.run_layers(x, cache.rotary[:, start : start + n], attend)
        cache.lengths[slot] += n
        return hidden

    def prefill(self, x: Tensor, slot: int, cache: KvCache, n_chunk: int = PREFILL_CHUNK) -> Tensor:
        """`extend` in pieces, so that a long prompt needs little memory; returns the last position's hidden [D]."""
        cache.room(slot, x.shape[0])
        return [self.extend(chunk, slot, cache) for chunk in torch.split(x, n_chunk)][-1][-1]

    @torch.inference_mode()
    def decode(self, x: Tensor, slots: Sequence[int], cache: KvCache) -> Tensor:
        """Append one position x[i] of x [B, D] to utterance `slots[i]`, for all i; returns [B, D] after the final norm.

        `cache.idle` for rows with nothing to do. Raises EngineError if a slot is full, before anything is written.
        """
        busy = [slot for slot in slots if slot != cache.idle]
        if len(slots) != x.shape[0] or len(set(busy)) != len(busy):
            raise ValueError(f"{x.shape[0]} rows for slots {list(slots)}: one row per slot, none twice")
        starts = [cache.room(slot, 1) for slot in slots]
        if cache.together:
            span = min(-(-(max(starts) + 1) // SPAN_STEP) * SPAN_STEP, cache.max_len)
            hidden = self.decode_at(x, sent(slots, x.device), sent(starts, x.device), span, cache)
        else:
            hidden = self.run_layers(x, cache.rotary[:, starts], AttendApart(cache, slots, starts))
        for slot in busy:
            cache.lengths[slot] += 1
        return hidden

    @torch.inference_mode()
    def decode_at(self, x: Tensor, slots: Tensor, starts: Tensor, span: int, cache: KvCache) -> Tensor:
        """The same for rows the device knows: x [B, D] becomes position `starts` [B] of `slots` [B]; `span`, beyond all
        of them, is how many are read. The caller sees to it that there is room, and counts the lengths."""
        mask = torch.arange(span, device=x.device) <= starts[:, None, None, None]
        attend = functools.partial(attend_together, cache, slots, starts, mask)
        return self.run_layers(x, cache.rotary[:, starts], attend)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V] float32."""
        return self.head_weight(hidden, self.head_bias).float()

    def run_layers(self, x: Tensor, rotary: Tensor, attend: Attend) -> Tensor:
        """x [N, D] through all blocks and the final norm; `rotary` [2, N, d] of the N positions."""
        n, size = x.shape[0], self.config
        cos, sin = rotary[:, :, None]
        for i, layer in enumerate(self.layers):
            heads = layer.qkv(x, layer.qkv_bias).view(n, -1, size.d_head)
            rotate_(heads[:, : -size.n_kv_heads], cos, sin)
            q, kv = heads[:, : size.n_heads], heads[:, size.n_heads :].view(n, 2, -1, size.d_head)
            x = x + layer.out(attend(i, q, kv))
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return rms_norm(x, self.norm, size.norm_eps)
