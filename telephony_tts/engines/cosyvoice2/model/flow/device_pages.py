"""Pages of streams on a device: one pool of memory that never moves, read for many streams at once.

    PagePool         the memory of all pages; a page is what the encoder and all Euler steps keep of 25 tokens
    DevicePage       a page that a stream, a voice or a block under way holds
    PassMemory       the pool's part for one kind of pass, the encoder's or the estimator's: one row per page and pass
    EncoderBatch     the pages of several streams during one pass of the encoder
    EstimatorBatch   the same for one pass of the estimator

Both batches are made from numbers on the device alone, so that a graph can record all that is done with them.

A page is free again when the last stream that refers to it is dropped. It is not cleared: a new owner writes all of it
before the page is in any table. Two pages belong to no stream, and each has one row in each memory. `ZERO_PAGE` holds
zeros and is read as padding of shorter pasts. `SCRATCH_PAGE` is written where the output of padding must go somewhere.

Blocks begin on a multiple of 25 tokens (50 frames), so all pages of a past are full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece, block_mask
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PassLayout
from telephony_tts.runtime.errors import EngineError

ZERO_PAGE, SCRATCH_PAGE = 0, 1
"""Their rows in each memory."""
N_RESERVED = 2
"""Rows before those of the pages that streams hold."""
ALIGNED_TO = 16
"""Columns of a mask are padded to a multiple of this, so that attention on a GPU reads the mask without a copy."""


class DevicePage:
    """One block of 25 tokens in the pool. Dropping the last reference frees it."""

    __slots__ = ("_pool", "index")

    n_tokens = BLOCK_TOKENS
    n_copied = 0

    def __init__(self, pool: PagePool, index: int) -> None:
        self.index = index
        self._pool = pool

    @property
    def encoder_row(self) -> int:
        return N_RESERVED + self.index

    def step_row(self, k: int) -> int:
        """The row of Euler step k in the estimator's memory."""
        return N_RESERVED + self.index * self._pool.n_steps + k

    def __del__(self) -> None:
        self._pool.free.append(self.index)


class PassMemory:
    """What one kind of pass keeps of all pages.

    kv: for each attention layer [2, H, n_rows * layout.n_rows, positions, D]; guidance branches of a row are adjacent.
    contexts: [n_rows, layout.n_rows, numbers of all convolutions' left contexts].
    """

    def __init__(self, layout: PassLayout, n_rows: int, like: Tensor) -> None:
        self.layout = layout
        heads, branches = layout.n_heads, layout.n_rows
        self.kv = [
            like.new_empty(2, heads, n_rows * branches, BLOCK_TOKENS * rate, layout.d_head) for rate in layout.rates
        ]
        self.contexts = like.new_empty(n_rows, branches, layout.n_context_elements)
        for kv in self.kv:
            kv[:, :, ZERO_PAGE * branches : (ZERO_PAGE + 1) * branches] = 0
        self.contexts[ZERO_PAGE] = 0

    def contexts_of(self, rows: Tensor) -> list[Tensor]:
        """rows [S] -> for each convolution [S * layout.n_rows, n_left, C]."""
        found = self.contexts.index_select(0, rows).flatten(0, 1)
        sizes = [n_left * d for n_left, d in self.layout.contexts]
        parts = zip(torch.split(found, sizes, dim=-1), self.layout.contexts, strict=True)
        return [part.view(len(part), n_left, d) for part, (n_left, d) in parts]

    def keep_contexts(self, rows: Tensor, contexts: Sequence[Tensor]) -> None:
        """The reverse: `contexts` [S * layout.n_rows, n_left, C] are written to `rows` [S]."""
        joined = torch.cat([context.flatten(1) for context in contexts], dim=-1)
        self.contexts[rows] = joined.view(-1, *self.contexts.shape[1:])


class PagePool:
    """The memory of all pages. One thread takes pages; any thread may drop them."""

    def __init__(self, encoder: PassLayout, estimator: PassLayout, n_steps: int, n_bytes: int, like: Tensor) -> None:
        """As many pages as `n_bytes` have room for, on the device and in the dtype of `like`."""
        self.n_steps, self.n_bytes = n_steps, n_bytes
        self.page_nbytes = page_nbytes(encoder, estimator, n_steps, like.element_size())
        reserved_nbytes = N_RESERVED * page_nbytes(encoder, estimator, 1, like.element_size())
        self.n_pages = max(0, n_bytes - reserved_nbytes) // self.page_nbytes
        self.encoder = PassMemory(encoder, N_RESERVED + self.n_pages, like)
        self.estimator = PassMemory(estimator, N_RESERVED + self.n_pages * n_steps, like)
        self.free = list(reversed(range(self.n_pages)))
        """Indices of pages that nothing refers to."""

    def take(self, n: int) -> tuple[DevicePage, ...]:
        """Raises EngineError, and takes none, if fewer than `n` pages are free."""
        if n > len(self.free):
            raise EngineError(
                f"the speech model's memory for speech under way and ready voices is full: {self.n_pages} s of both "
                f"fit in its {self.n_bytes >> 20} MB; give it more (engines.cosyvoice2.flow_memory_mb), or lower slots "
                "or ready_voices"
            )
        return tuple(DevicePage(self, self.free.pop()) for _ in range(n))


def page_nbytes(encoder: PassLayout, estimator: PassLayout, n_steps: int, element_size: int) -> int:
    """Bytes of one page, which is a second of speech."""
    return (encoder.n_block_elements + n_steps * estimator.n_block_elements) * element_size


class EncoderBatch:
    """The pages of S streams during one pass of the encoder over n new tokens of each.

    Pasts of different lengths are padded with `ZERO_PAGE` at their beginnings, so that the distance between a new token
    and an old one is the same in every row.
    """

    def __init__(self, memory: PassMemory, n_missing: Tensor, continues: Tensor, past: Tensor, new: Tensor) -> None:
        """All arguments are int64.

        n_missing, continues [S]: pages of padding in each past, and the row whose left contexts the tokens continue.
        past [S, P]: the rows of each past behind its padding. new [S, n / 25]: the rows to be filled; with [S, 0]
        nothing is kept, because the tokens are the last of their streams.
        """
        self._memory = memory
        self.n_past = past.shape[1] * BLOCK_TOKENS
        self._n_missing, self._new_rows = n_missing, new
        # Where attention reads the past, in its order, so that gathering is the only copy: [2, S, H, pages].
        n_rows, n_heads = memory.contexts.shape[0], memory.layout.n_heads
        two, heads = (torch.arange(n, device=past.device) for n in (2, n_heads))
        self._gather = (two[:, None, None, None] * n_heads + heads[:, None]) * n_rows + past[:, None]
        self._before = memory.contexts_of(continues)
        self._after = list(self._before)

    def mask(self, n: int, rate: int) -> Tensor | None:
        device = self._new_rows.device
        causal = block_mask(self.n_past * rate, n, BLOCK_TOKENS * rate, device)
        if not self.n_past:
            return causal
        # Also if no past is padded: that depends on numbers of the device, which the host does not know.
        n_keys = self.n_past * rate + n
        present = torch.arange(n_keys, device=device) >= self._n_missing[:, None] * (BLOCK_TOKENS * rate)
        present = present.repeat_interleave(self._memory.layout.n_heads, dim=0)[:, None]
        return present if causal is None else present & causal

    def append(self, layer: int, k: Tensor, v: Tensor) -> list[Piece]:
        kv = self._memory.kv[layer]
        n_positions, d_head = kv.shape[3:]
        pieces: list[Piece] = []
        if self.n_past:
            past = kv.view(-1, n_positions * d_head)[self._gather]
            keys, values = past.view(*past.shape[:3], -1, d_head).unbind(0)
            pieces.append((keys, values))
        n_new = self._new_rows.shape[1]
        if n_new:
            for i, part in enumerate((k, v)):
                blocks = part.view(*part.shape[:2], n_new, n_positions, d_head)
                kv[i][:, self._new_rows] = blocks.transpose(0, 1)
        return [*pieces, (k, v)]

    def continued(self, x: Tensor, slot: int, n_left: int) -> Tensor:
        x = torch.cat([self._before[slot], x], dim=1)
        self._after[slot] = x[:, -n_left:]
        return x

    def commit(self) -> None:
        if self._new_rows.shape[1]:
            self._memory.keep_contexts(self._new_rows[:, -1], self._after)


class EstimatorBatch:
    """What S blocks of up to T frames see during one pass of the estimator, as rows of S * n_branches.

    No frame of a block attends to padding.
    """

    def __init__(
        self,
        memory: PassMemory,
        n_past: Tensor,
        n_frames: Tensor,
        ends: Tensor,
        table: Tensor,
        kernels: ModuleType | None = None,
    ) -> None:
        """All tensors are int64. `kernels`: of the GPU, if they run there (`gpu_kernels`).

        n_past, n_frames [S]: frames of each block's past, and of the block. ends [2, S]: the row whose left contexts
        the block continues, and the row that keeps its own. table [S, P + T / 50]: the rows of its past, padded with
        `ZERO_PAGE` to P, then the rows of the block itself, padded with `SCRATCH_PAGE`.
        """
        layout = memory.layout
        self._memory, self._kernels = memory, kernels
        n_rows = len(n_past) * layout.n_rows
        branches = torch.arange(layout.n_rows, device=table.device)
        self._table = (table[:, None] * layout.n_rows + branches[:, None]).view(n_rows, -1)
        continues, self._keeps_in = ends.unbind(0)
        self._before = memory.contexts_of(continues)
        self._after: dict[int, Tensor] = {}
        # The same for both branches of a block.
        self._n_past, self._n_frames = (n.repeat_interleave(layout.n_rows) for n in (n_past, n_frames))
        self._mask: Tensor | None = None
        self._ends: dict[int, Tensor] = {}
        """For each length of a left context: the indices of each block's last frames."""

    def attend(self, layer: int, qkv: Tensor, n_heads: int) -> Tensor:
        """qkv [S * n_branches, T, 3 * H * D] -> [S * n_branches, T, H * D]"""
        layout, kv = self._memory.layout, self._memory.kv[layer]
        n_rows, n, _ = qkv.shape
        if self._kernels is not None:
            attended: Tensor = self._kernels.attend_pages(qkv, kv, self._table, self._n_past, self._n_frames, n_heads)
            return attended
        n_blocks = n // BLOCK_FRAMES
        each = qkv.view(n_rows, n, 3, n_heads, layout.d_head)
        new = each[:, :, 1:].permute(2, 3, 0, 1, 4)
        # The block's own pages are gathered too, with whatever they hold, and the new keys and values are written over
        # them: to gather the past alone and to join both would copy all of it twice.
        seen = kv.index_select(2, self._table.flatten()).view(2, n_heads, n_rows, -1, layout.d_head)
        seen[:, :, :, -n:] = new
        kv[:, :, self._table[:, -n_blocks:]] = new.view(*new.shape[:3], n_blocks, BLOCK_FRAMES, -1)
        if self._mask is None:
            self._mask = self._additive_mask(n, seen.shape[3], qkv.dtype)
        keys, values = seen.transpose(1, 2).unbind(0)
        q = each[:, :, 0].transpose(1, 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self._mask).transpose(1, 2).flatten(2)

    def continued(self, x: Tensor, slot: int, n_left: int) -> Tensor:
        """As in `ConvolutionContext`. The context of the next block is read at the block's end, before its padding."""
        n_rows, n, d = x.shape
        x = torch.cat([self._before[slot], x], dim=1)
        if n_left not in self._ends:
            first = torch.arange(n_rows, device=x.device) * (n + n_left) + self._n_frames
            self._ends[n_left] = (first[:, None] + torch.arange(n_left, device=x.device)).flatten()
        self._after[slot] = x.flatten(0, 1).index_select(0, self._ends[n_left]).view(n_rows, n_left, d)
        return x

    def windows(self, x: Tensor, slot: int) -> Tensor:
        """With kernels: `continued` as rows of neighbours for a product: x [R, T, C] -> [R * T, 3 C]"""
        assert self._kernels is not None
        rows: Tensor
        rows, self._after[slot] = self._kernels.windows(x.contiguous(), self._before[slot], self._n_frames)
        return rows

    def commit(self) -> None:
        self._memory.keep_contexts(self._keeps_in, [self._after[slot] for slot in range(len(self._before))])

    def _additive_mask(self, n: int, n_keys: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores, 0 or -inf, [S * n_branches, 1, n, n_keys].

        A frame sees all of its past, all of its own block of 50, and the blocks between.
        """
        device = self._n_past.device
        past = torch.arange(n_keys - n, device=device) < self._n_past[:, None]
        new = torch.arange(n, device=device)
        block_ends = (new // BLOCK_FRAMES + 1) * BLOCK_FRAMES
        ends = torch.minimum(block_ends, self._n_frames[:, None])
        visible = torch.cat([past[:, None].expand(-1, n, -1), new < ends[:, :, None]], dim=-1)
        wide = math.ceil(n_keys / ALIGNED_TO) * ALIGNED_TO
        mask = torch.zeros(len(visible), 1, n, wide, dtype=dtype, device=device)[..., :n_keys]
        return mask.masked_fill_(~visible[:, None], float("-inf"))
