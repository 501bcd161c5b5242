"""Prefill on an accelerator: the next positions of several utterances in one run of the language model.

    ids of all ─ embed ─ [T, D] ─ layers ─ the last position of each [B, D]
                                    └ attention: [B, KV, G * N, d] over each utterance's own slot

The T positions lie one after the other without padding, so the products waste nothing. Only for attention they become B
rows of N, the length of the longest. The padding of shorter rows is neither stored nor returned. The number of products
and transfers is the same for any number of utterances.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.runtime.errors import EngineError

PREFILL_CHUNK = 256
"""Most positions of one utterance in a run, so that a long prompt needs little memory."""
SPAN_STEP = 128
"""The span that a batch reads of each slot is padded to a multiple of this, so that few shapes occur."""
ROW_STEP = 32
"""Rows of attention are padded to a multiple of this, so that few shapes occur."""


def part_of(
    segments: Sequence[TokenSegment], first: int, n: int, whole: Collection[EmbeddingTable] = ()
) -> list[TokenSegment]:
    """Positions `first` to `first + n` of the segments, or up to their end. A segment of a table in `whole` is not cut:
    if it begins among them, they go on to its end. Such a segment must not have begun before `first`."""
    parts, at = [], 0
    for segment in segments:
        if segment.table in whole and first <= at < first + n:
            n = max(n, at + len(segment.ids) - first)
        ids = segment.ids[max(0, first - at) : max(0, first + n - at)]
        if ids:
            parts.append(TokenSegment(segment.table, ids))
        at += len(segment.ids)
    return parts


class TableSizes(Protocol):
    def n_ids(self, table: EmbeddingTable) -> int:
        """Ids of a table."""


def check_ids(lm: TableSizes, segments: Sequence[TokenSegment]) -> None:
    """Raises EngineError for an id that its table lacks."""
    for segment in segments:
        n_ids = lm.n_ids(segment.table)
        if segment.ids and (min(segment.ids) < 0 or max(segment.ids) >= n_ids):
            raise EngineError(f"{segment.table.value} token outside 0 to {n_ids - 1}")


@dataclass(frozen=True, slots=True)
class PrefillLayout:
    """Where the T positions of B utterances lie: in the run, in the cache, and in the rows of attention."""

    slots: Tensor
    """[B]"""
    slot_of: Tensor
    """[T]"""
    positions: Tensor
    """[T]: the position in its slot."""
    rows: Tensor
    """[B, N]: indices among the T; an utterance's last one is the padding."""
    row_of: Tensor
    """[T]: indices among the B * N."""
    last: Tensor
    """[B]: the index of each utterance's last position among the T."""
    mask: Tensor
    """[B, 1, G * N, L]: the positions of its slot that each may see."""


def _prefill_layout(
    slots: Tensor, starts: Tensor, counts: Tensor, sizes: tuple[int, int, int], n_groups: int
) -> PrefillLayout:
    """slots, starts, counts [B]: each utterance's slot, first new position and number of new positions. `sizes`: T, N
    and L."""
    n_positions, n_row, span = sizes
    device = slots.device
    ends = counts.cumsum(0)
    begins = ends - counts
    owner = torch.repeat_interleave(counts, output_size=n_positions)
    within = torch.arange(n_positions, device=device) - begins[owner]
    along = torch.arange(n_row, device=device)
    seen = starts[:, None] + along
    return PrefillLayout(
        slots,
        slots[owner],
        starts[owner] + within,
        begins[:, None] + torch.minimum(along, counts[:, None] - 1),
        owner * n_row + within,
        ends - 1,
        (torch.arange(span, device=device) <= seen[:, :, None]).repeat(1, n_groups, 1)[:, None],
    )


def attend_padded(cache: KvCache, at: PrefillLayout, layer: int, q: Tensor, kv: Tensor) -> Tensor:
    """Several new positions of each slot in one call: stores kv [T, 2, KV, d]; q [T, H, d] -> [T, H * d].

    As in `attend_chunk`, the G query heads of a key head are further queries of it.
    """
    n_heads, d_head, n_kv_heads = q.shape[1], q.shape[2], kv.shape[2]
    keys, values = cache.data[layer].unbind(0)  # each [n_slots + 1, KV, max_len, d]
    keys[at.slot_of, :, at.positions], values[at.slot_of, :, at.positions] = kv.unbind(1)
    span = at.mask.shape[-1]
    keys, values = keys[:, :, :span][at.slots], values[:, :, :span][at.slots]  # [B, KV, L, d]
    n_rows, n_row = at.rows.shape
    queries = q[at.rows].view(n_rows, n_row, n_kv_heads, -1, d_head).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=at.mask)
    out = out.view(n_rows, n_kv_heads, -1, n_row, d_head).permute(0, 3, 1, 2, 4)
    return out.reshape(n_rows * n_row, n_heads * d_head)[at.row_of]


@torch.inference_mode()
def extend_batch(
    lm: LanguageModel, cache: KvCache, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]]
) -> Tensor:
    """Append `parts[i]`, of one position or more, to `slots[i]`. Returns the hidden states of the last positions [B, D]
    after the final norm.

    Raises EngineError for an id that its table lacks or a slot without room, before anything is written. Raises
    ValueError if a slot is named twice.
    """
    if len(set(slots)) < len(slots):
        raise ValueError(f"slots {list(slots)}: a slot cannot be fed twice at once")
    for part in parts:
        check_ids(lm, part)
    counts = [sum(len(segment.ids) for segment in part) for part in parts]
    starts = [cache.room(slot, n) for slot, n in zip(slots, counts, strict=True)]
    by_table: dict[EmbeddingTable, list[int]] = {table: [] for table in lm.tables}
    places: dict[EmbeddingTable, list[int]] = {table: [] for table in lm.tables}
    at = 0
    for segment in (segment for part in parts for segment in part):
        by_table[segment.table] += segment.ids
        places[segment.table] += range(at, at + len(segment.ids))
        at += len(segment.ids)
    n_rows, device = len(slots), lm.device
    numbers = sent(
        [
            *slots,
            *starts,
            *counts,
            *(item for ids in by_table.values() for item in ids),
            *(place for found in places.values() for place in found),
        ],
        device,
    )
    slots_there, starts_there, counts_there, ids, order = torch.split(numbers, [n_rows, n_rows, n_rows, at, at])
    sizes = [len(ids) for ids in by_table.values()]
    x = torch.empty(at, lm.config.d_model, dtype=lm.dtype, device=device)
    of_tables = zip(lm.tables, torch.split(ids, sizes), strict=True)
    x[order] = torch.cat([F.embedding(of_table, lm.tables[table]) for table, of_table in of_tables])
    n_row = -(-max(counts) // ROW_STEP) * ROW_STEP
    longest = max(start + n for start, n in zip(starts, counts, strict=True))
    span = min(-(-longest // SPAN_STEP) * SPAN_STEP, cache.max_len)
    n_groups = lm.config.n_heads // lm.config.n_kv_heads
    layout = _prefill_layout(slots_there, starts_there, counts_there, (at, n_row, span), n_groups)
    hidden = lm.run_layers(x, cache.rotary[:, layout.positions], functools.partial(attend_padded, cache, layout))
    for slot, n in zip(slots, counts, strict=True):
        cache.lengths[slot] += n
    return hidden[layout.last]
