"""Prompts of several slots on a GPU, recorded as graphs (`model.graphs`): prefill, and the first id of each.

    ids of all ─ embed ─ [T, D] ─ layers ─ the last position of each ─ draw

The positions of all prompts lie one after the other. Each row of the layers knows its slot and its position there
(`FusedDecoder`), so a prompt is to the layers what a decode step is. T is padded to one of `SIZES` with rows of the
scratch slot, and the prompts to a fixed number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.decode_steps import ban_bits, banned_at
from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.lm.prefill import PREFILL_CHUNK, check_ids
from telephony_tts.engines.cosyvoice2.model.segments import TokenSegment
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed

SIZES = 64, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584
"""Positions to which all prompts of a batch are padded."""


class PromptSteps:
    """`n_most`: prompts in a batch at most."""

    def __init__(self, lm: LanguageModel, cache: KvCache, sampler: Sampler, n_most: int, graphs: Graphs) -> None:
        self._lm, self._cache, self._sampler, self._graphs = lm, cache, sampler, graphs
        self.n_most = n_most
        most = n_most * PREFILL_CHUNK
        self.sizes = [*(size for size in SIZES if size < most), most]
        device = cache.data.device
        self._tables = tuple(lm.tables)
        self._positions = torch.zeros(4, most, dtype=torch.int64, device=device)
        """Of each position of a prompt: its table, its id there, its slot, and the position in the slot."""
        self._rows = torch.zeros(4, n_most, dtype=torch.int64, device=device)
        """Of each prompt: the index of its last position, its slot, forced id or -1, banned stop ids as bits."""
        self._drawn = torch.zeros(n_most, dtype=torch.int64, device=device)

    @torch.inference_mode()
    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """Record every size. `check_wanted` is called before each and ends it by raising."""
        for size in reversed(self.sizes) if self._graphs.records else ():
            check_wanted()
            self._fill(size, None, [])
            self._graphs.prepare(("prompts", size), partial(self._step, size))

    @torch.inference_mode()
    def draw(
        self, slots: Sequence[int], parts: Sequence[Sequence[TokenSegment]], ended: Sequence[LmFeed | None]
    ) -> Tensor:
        """Append `parts[i]` to `slots[i]`, and draw an id for each slot -> [B], which stay until the next call.

        For a slot whose feed goes on, `ended[i]` None, the id means nothing, and only positions are added.

        Raises EngineError for an id that its table lacks or a slot without room, ValueError if a slot is named twice,
        before anything is written.
        """
        if not slots:
            return self._drawn[:0]
        if len(set(slots)) < len(slots):
            raise ValueError(f"slots {list(slots)}: a slot cannot be fed twice at once")
        for part in parts:
            check_ids(self._lm, part)
        counts = [sum(len(segment.ids) for segment in part) for part in parts]
        cache, scratch = self._cache, self._cache.scratch_slot
        starts = [cache.room(slot, n) for slot, n in zip(slots, counts, strict=True)]
        segments = [segment for part in parts for segment in part]
        sizes = [len(segment.ids) for segment in segments]
        positions = np.array(
            [
                np.repeat([self._tables.index(segment.table) for segment in segments], sizes),
                [item for segment in segments for item in segment.ids],
                np.repeat(slots, counts),
                np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]),
            ],
            np.int64,
        )
        rows: list[tuple[int, int, int, int]] = []
        n_all = 0
        for slot, n, feed in zip(slots, counts, ended, strict=True):
            n_all += n
            forced = -1 if feed is None or feed.forced is None else feed.forced
            banned = 0 if feed is None else ban_bits(feed.banned)
            rows.append((n_all - 1, scratch if feed is None else slot, forced, banned))
        size = next(each for each in self.sizes if each >= n_all)
        self._fill(size, positions, rows)
        self._graphs.run(("prompts", size), partial(self._step, size))
        for slot, n in zip(slots, counts, strict=True):
            cache.lengths[slot] += n
        return self._drawn[: len(slots)]

    def _fill(
        self, size: int, positions: NDArray[np.int64] | None, rows: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """`positions` [4, n] and `rows` are columns of `_positions` and `_rows`. The others are spare."""
        numbers = np.zeros(4 * (size + self.n_most), np.int64)
        of_positions, of_rows = numbers[: 4 * size].reshape(4, size), numbers[4 * size :].reshape(4, self.n_most)
        of_positions[2] = of_rows[1] = self._cache.scratch_slot
        of_rows[2] = -1
        if positions is not None:
            of_positions[:, : positions.shape[1]] = positions
            of_rows[:, : len(rows)] = np.array(rows, np.int64).T
        there = sent(numbers, self._rows.device)
        self._positions[:, :size] = there[: 4 * size].view(4, size)
        self._rows.copy_(there[4 * size :].view(4, self.n_most))

    def _step(self, size: int) -> None:
        lm = self._lm
        table, ids, slots, positions = self._positions[:, :size]
        hidden = lm.decode_at(self._embedded(table, ids), slots, positions, self._cache.max_len, self._cache)
        last, of_row, forced, bans = self._rows
        banned = banned_at(bans, lm.head_bias.shape[0])
        self._drawn.copy_(self._sampler.sample_at(lm.logits(hidden[last]), of_row, banned, forced))

    def _embedded(self, table: Tensor, ids: Tensor) -> Tensor:
        """[T, D]: the embeddings of `ids` [T], each of its `table` [T]."""
        lm = self._lm
        tables = [lm.tables[each] for each in self._tables]
        if lm.fused is not None:
            return lm.fused.embedded(table, ids, tables)
        x = torch.zeros(len(ids), lm.config.d_model, dtype=lm.dtype, device=ids.device)
        for i, each in enumerate(tables):
            of_table = table == i
            x = torch.where(of_table[:, None], F.embedding(ids.where(of_table, 0), each), x)
        return x
