"""How the flow runs on a device: the Euler steps of all streams as one batch, always with the same launches.

Blocks are padded to a bucket: S streams (a power of two), T frames each (a multiple of 50), P pages of past. The inputs
of a step lie in tensors of the bucket that never move. The host fills them with one list of numbers, and with one copy
for each kind of frames. All other work can be recorded (`graphs`). Spare rows compute values that are not used.
`prepare` records the most frequent buckets.

The encoder runs once per block, over batches of blocks of equal length. `prepare` records its passes over blocks of 25
tokens that are not the last of their streams, which most are, and over one or two last blocks. Only recorded passes
have spare rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Self, cast
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
)
from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import (
    N_RESERVED,
    SCRATCH_PAGE,
    ZERO_PAGE,
    DevicePage,
    EncoderBatch,
    EstimatorBatch,
    PagePool,
)
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockInput, FlowBlock
from telephony_tts.engines.cosyvoice2.model.gpu_kernels import kernels_for_heads
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs

PAGES = 4, 8, 16, 32, 64
"""Pages of past to which a batch is padded."""
MIXED_FRAMES = 2 * BLOCK_FRAMES
"""Blocks of up to this length are one batch, with the shorter ones padded. Most ends of sentences are no longer."""
MOST_FRAMES = 8 * BLOCK_FRAMES
"""Longer blocks, such as a voice's, and blocks with more past than `PAGES`, go alone."""
PREPARED_FRAMES = BLOCK_FRAMES, MIXED_FRAMES
PREPARED_PAGES = 8, 16, 32
END_TOKENS = range(LOOKAHEAD_TOKENS, BLOCK_TOKENS + LOOKAHEAD_TOKENS)
"""Tokens of an utterance's last block: what is left when another block and its lookahead do not fit."""
MOST_ENDS = 2
"""Few ends come at once: a pass of the encoder over more of them is not recorded."""
N_COUNTS = 6
"""Numbers of a block beside its pages, see `StepInputs.counts`."""

IntArray = NDArray[np.int64]
Bucket = tuple[int, int, int]
"""S, T and P."""
EncoderShape = tuple[int, int, int, bool]
"""S, P, the tokens of each block, and whether they are last blocks, which see no tokens ahead."""


def _load_kernels() -> ModuleType:
    from telephony_tts.engines.cosyvoice2.model.flow import triton_kernels

    return triton_kernels


class DeviceBackend:
    """Used by one thread."""

    def __init__(self, encoder: FlowEncoder, decoder: FlowDecoder, n_bytes: int) -> None:
        """`n_bytes` of the device are for the pages of streams and voices."""
        estimator = decoder.estimator
        n_steps = decoder.n_steps
        self.pages = PagePool(encoder.layout(), estimator.layout(), n_steps, n_bytes, estimator.time_1.weight)
        self._encoder, self._decoder = encoder, decoder
        self._kernels = kernels = kernels_for_heads(decoder.noise.device, decoder.config.d_head, _load_kernels)
        if kernels is not None:
            estimator.fuse(kernels)
        # The kernels read no padding of pasts, so that one size is as good as several.
        self._step_pages = PREPARED_PAGES if kernels is None else PAGES[-1:]
        self._graphs: Graphs | None = None
        self._step_sizes = sent([dt for _, dt in decoder.euler_times], decoder.noise.device, torch.float32)
        self._prepared: dict[Bucket, StepInputs] = {}
        self._prepared_passes: dict[EncoderShape, EncoderInputs] = {}

    def take(self, table: PageTable, n_tokens: int, *, is_last: bool) -> tuple[KeptPage, ...]:
        # All of the block's pages at once: a block that has begun can be finished, and only new blocks are refused.
        return self.pages.take(0 if is_last else n_tokens // BLOCK_TOKENS)

    def encoder_batch_key(self, block: BlockInput) -> Hashable:
        # Pasts of different lengths are one batch, but a long one is not padded to more than about twice its length.
        return block.n_tokens, block.is_last, _padded_pages(max(len(block.table.pages), PREPARED_PAGES[0]))

    def encode(self, blocks: Sequence[BlockInput], new: Sequence[tuple[KeptPage, ...]], ids: Tensor) -> Tensor:
        n_pages = max(len(block.table.pages) for block in blocks)
        inputs = self._encoder_inputs(len(blocks), n_pages, blocks[0].n_tokens, is_last=blocks[0].is_last)
        inputs.fill(blocks, new, ids)
        self._run(inputs.name, self._encoder_work(inputs))
        # Cloned: the next batch of this shape is computed in the same memory.
        return inputs.mu[: len(blocks)].clone()

    def step_batches(self, blocks: Sequence[FlowBlock]) -> list[list[FlowBlock]]:
        batches: dict[int, list[FlowBlock]] = {}
        for block in blocks:
            n = _whole_blocks(block.x.shape[1])
            if block.past is not None and n <= MOST_FRAMES and len(block.past) <= PAGES[-1]:
                batches.setdefault(max(n, MIXED_FRAMES), []).append(block)
        return [batch for batch in batches.values() if len(batch) > 1]

    @torch.inference_mode()
    def step(self, blocks: Sequence[FlowBlock]) -> None:
        n_frames = max(_whole_blocks(block.x.shape[1]) for block in blocks)
        n_pages = max(len(block.past or ()) for block in blocks)
        inputs = self._inputs(_power_of_two(len(blocks)), n_frames, n_pages)
        inputs.fill(blocks)
        self._run(inputs.name, self._work(inputs))
        # Cloned: the next batch of this bucket is computed in the same memory.
        after = inputs.x_after.clone()
        for block, x in zip(blocks, after[:, None].unbind(0), strict=False):
            block.x = x.narrow(1, 0, block.x.shape[1])
            block.k += 1

    @torch.inference_mode()
    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """Record the most frequent batches, if the device records. A warm-up that was broken off can be repeated."""
        if graphs is not self._graphs:
            self._graphs, self._prepared, self._prepared_passes = graphs, {}, {}
        n_most = _power_of_two(n_streams)
        # The largest first: the smaller ones then use the memory that it took.
        counts = [1 << i for i in reversed(range(n_most.bit_length()))]
        for n_pages in reversed(self._step_pages):
            for n_frames in reversed(PREPARED_FRAMES):
                for n in counts:
                    bucket = n, n_frames, n_pages
                    if bucket in self._prepared:
                        continue
                    check_wanted()
                    if not graphs.records:
                        return
                    inputs = StepInputs(bucket, self._decoder)
                    inputs.fill([])
                    graphs.prepare(inputs.name, self._work(inputs))
                    self._prepared[bucket] = inputs
        whole = [(n, n_pages, BLOCK_TOKENS, False) for n_pages in reversed(PREPARED_PAGES) for n in counts]
        ends = [
            (n, PREPARED_PAGES[-1], n_tokens, True) for n in counts if n <= MOST_ENDS for n_tokens in END_TOKENS
        ]
        for shape in (*whole, *ends):
            if shape in self._prepared_passes:
                continue
            check_wanted()
            if not graphs.records:
                return
            of_pass = EncoderInputs(shape, self._encoder)
            of_pass.fill([], [], None)
            graphs.prepare(of_pass.name, self._encoder_work(of_pass))
            self._prepared_passes[shape] = of_pass

    def _run(self, name: Hashable, work: Callable[[], None]) -> None:
        if self._graphs is None:
            work()
        else:
            self._graphs.run(name, work)

    def _inputs(self, n_streams: int, n_frames: int, n_pages: int) -> StepInputs:
        """The inputs of the smallest bucket that was prepared, or else of the smallest bucket."""
        least = _padded_pages(n_pages)
        for n in (size for size in PAGES if size >= least):
            if (n_streams, n_frames, n) in self._prepared:
                return self._prepared[n_streams, n_frames, n]
        return StepInputs((n_streams, n_frames, least), self._decoder)

    def _work(self, inputs: StepInputs) -> Callable[[], None]:
        """One Euler step of `inputs`."""
        decoder, memory, step_sizes = self._decoder, self.pages.estimator, self._step_sizes

        def work() -> None:
            k, n_past, n_frames, begins = inputs.counts[:-2]
            past = EstimatorBatch(memory, n_past, n_frames, inputs.counts[-2:], inputs.table, self._kernels)
            x, mu, cond = inputs.frames(begins, n_frames)
            velocity = decoder.velocity_of_batch(x, mu, inputs.spk, cond, k, past)
            inputs.x_after.copy_(x + step_sizes.index_select(0, k)[:, None, None] * velocity)

        return work

    def _encoder_inputs(self, n_streams: int, n_pages: int, n_tokens: int, *, is_last: bool) -> EncoderInputs:
        """The inputs of the smallest pass that was prepared, or else of a pass without padding."""
        for n in (size for size in PREPARED_PAGES if size >= n_pages):
            shape = _power_of_two(n_streams), n, n_tokens, is_last
            if shape in self._prepared_passes:
                return self._prepared_passes[shape]
        return EncoderInputs((n_streams, n_pages, n_tokens, is_last), self._encoder)

    def _encoder_work(self, inputs: EncoderInputs) -> Callable[[], None]:
        """One pass of the encoder over `inputs`."""
        encoder, memory = self._encoder, self.pages.encoder

        def work() -> None:
            n_missing, continues = inputs.counts
            context = EncoderBatch(memory, n_missing, continues, inputs.past, inputs.new)
            inputs.mu.copy_(encoder.mu(encoder.encode(inputs.ids, inputs.ahead, context)))

        return work


class EncoderInputs:
    """The tensors that a pass of the encoder reads and writes."""

    def __init__(self, shape: EncoderShape, encoder: FlowEncoder) -> None:
        self.n_streams, self.n_pages, n_tokens, is_last = shape
        self.name = ("flow encoder", *shape)
        tokens = encoder.tokens
        self.n_new = 0 if is_last else n_tokens // BLOCK_TOKENS
        n_columns = 2 + self.n_pages + self.n_new
        self._numbers = tokens.new_zeros(self.n_streams, n_columns, dtype=torch.int64)
        self.counts = self._numbers[:, :2].unbind(1)
        """See `EncoderBatch`, also for `past` and `new`."""
        self.past, self.new = torch.split(self._numbers[:, 2:], [self.n_pages, self.n_new], dim=1)
        n_ids = n_tokens + (0 if is_last else LOOKAHEAD_TOKENS)
        self._all_ids = tokens.new_zeros(self.n_streams, n_ids, dtype=torch.int64)
        self.ids, self.ahead = self._all_ids[:, :n_tokens], None if is_last else self._all_ids[:, n_tokens:]
        self.mu = tokens.new_zeros(self.n_streams, n_tokens * FRAMES_PER_TOKEN, encoder.config.d_out)

    def fill(self, blocks: Sequence[BlockInput], new: Sequence[tuple[KeptPage, ...]], ids: Tensor | None) -> None:
        """The blocks, the pages that they fill, and `ids` as of `FlowBackend.encode`; the other rows are spare."""
        rows = []
        for block, filled in zip(blocks, new, strict=True):
            seen, kept = (
                [page.encoder_row for page in cast("tuple[DevicePage, ...]", pages)]
                for pages in (block.table.pages, filled)
            )
            n_missing = self.n_pages - len(seen)
            rows.append([n_missing, seen[-1] if seen else ZERO_PAGE, *[ZERO_PAGE] * n_missing, *seen, *kept])
        spare = [self.n_pages, ZERO_PAGE, *[ZERO_PAGE] * self.n_pages, *[SCRATCH_PAGE] * self.n_new]
        rows += [spare] * (self.n_streams - len(blocks))
        self._numbers.copy_(sent(rows, self._numbers.device))
        if ids is not None:
            self._all_ids[: len(ids)] = ids


class _FilledBlock(NamedTuple):
    """Knows a block again by what it is computed from, without keeping the block or its memory."""

    step_rows: Any
    mu: ref[Tensor]
    cond: ref[Tensor]
    spk: ref[Tensor]

    @classmethod
    def of(cls, block: FlowBlock) -> Self:
        return cls(block.step_rows, ref(block.mu), ref(block.cond), ref(block.spk))

    def is_of(self, block: FlowBlock) -> bool:
        rows, mu, cond, spk = self
        return block.step_rows is rows and mu() is block.mu and cond() is block.cond and spk() is block.spk


class StepInputs:
    """The tensors of a bucket that a step reads and writes."""

    def __init__(self, bucket: Bucket, decoder: FlowDecoder) -> None:
        self.n_streams, self.n_frames, self.n_pages = bucket
        self.name = ("flow", *bucket)
        noise, dtype, d = decoder.noise, decoder.estimator.dtype, decoder.config.d_mel
        wide = torch.promote_types(dtype, torch.float32)
        n_columns = self.n_pages + self.n_frames // BLOCK_FRAMES
        self._numbers = noise.new_zeros((N_COUNTS + n_columns) * self.n_streams, dtype=torch.int64)
        self.counts = self._numbers[: N_COUNTS * self.n_streams].view(N_COUNTS, self.n_streams)
        """[6, S], for each stream: the Euler step; frames of its past; frames of the block; the first of them among the
        frames of all streams; the row whose left contexts it continues; the row that keeps its own."""
        self.table = self._numbers[N_COUNTS * self.n_streams :].view(self.n_streams, n_columns)
        self._here = np.zeros(self._numbers.shape, np.int64)
        """The same on the host"""
        self._counts_here = self._here[: N_COUNTS * self.n_streams].reshape(N_COUNTS, self.n_streams)
        self._table_here = self._here[N_COUNTS * self.n_streams :].reshape(self.n_streams, n_columns)
        self._spare_counts = np.array([[0], [0], [self.n_frames], [0], [ZERO_PAGE], [SCRATCH_PAGE]])
        # The frames of all streams, one stream after the other, behind one frame of zeros that all padding reads.
        n_rows = 1 + self.n_streams * self.n_frames
        self._flat = {
            "x": noise.new_zeros(1, n_rows, d, dtype=wide),
            "mu": noise.new_zeros(1, n_rows, d, dtype=dtype),
            "cond": noise.new_zeros(1, n_rows, d, dtype=dtype),
        }
        self.spk = noise.new_zeros(self.n_streams, d, dtype=dtype)
        self.x_after = noise.new_zeros(self.n_streams, self.n_frames, d, dtype=wide)
        self._filled: list[_FilledBlock] = []
        """The blocks of the last call of `fill`."""

    def fill(self, blocks: Sequence[FlowBlock]) -> None:
        """The next Euler step of each block; the other rows are spare."""
        if self._fill_next(blocks):
            return
        counts, table = self._counts_here, self._table_here
        counts[:] = self._spare_counts
        table[:, : self.n_pages], table[:, self.n_pages :] = ZERO_PAGE, SCRATCH_PAGE
        begin = 1
        for i, block in enumerate(blocks):
            block.step_rows = block.step_rows or _first_rows(block)
            seen, kept = block.step_rows
            k, n, n_seen, n_kept = block.k, block.x.shape[1], len(seen), len(kept)
            table[i, :n_seen] = seen
            table[i, :n_seen] += k
            table[i, self.n_pages : self.n_pages + n_kept] = kept
            table[i, self.n_pages : self.n_pages + n_kept] += k
            ends = seen[-1] + k if n_seen else ZERO_PAGE, kept[-1] + k if n_kept else SCRATCH_PAGE
            counts[:, i] = k, BLOCK_FRAMES * n_seen, n, begin, *ends
            begin += n
        self._numbers.copy_(sent(self._here, self._numbers.device))
        if not blocks:
            return
        for name, flat in self._flat.items():
            flat[:, 1:begin] = torch.cat([getattr(block, name) for block in blocks], dim=1)
        self.spk[: len(blocks)] = torch.cat([block.spk for block in blocks])
        self._filled = [_FilledBlock.of(block) for block in blocks]

    def _fill_next(self, blocks: Sequence[FlowBlock]) -> bool:
        """`fill` if these are the blocks of the last call, each a step further: all but x stays where it is, and memory
        rows are the next ones. False if they are not."""
        filled, self._filled = self._filled, []
        n = len(blocks)
        if not n or len(filled) != n:
            return False
        k = self._counts_here[0].tolist()
        if any(block.k != k[i] + 1 or not filled[i].is_of(block) for i, block in enumerate(blocks)):
            return False
        counts, table = self._counts_here[:, :n], self._table_here[:n]
        counts[0] += 1
        for rows in (counts[-2:], table):
            rows += rows >= N_RESERVED  # all rows of blocks, but not those that stand for none
        self._numbers.copy_(sent(self._here, self._numbers.device))
        x = self._flat["x"]
        x[:, 1 : 1 + sum(block.x.shape[1] for block in blocks)] = torch.cat([block.x for block in blocks], dim=1)
        self._filled = filled
        return True

    def frames(self, begins: Tensor, n_frames: Tensor) -> list[Tensor]:
        """x, mu and cond, each [S, T, 80]."""
        t = torch.arange(self.n_frames, device=begins.device)
        at = (begins[:, None] + t).where(t < n_frames[:, None], 0).flatten()
        return [flat[0].index_select(0, at).view(self.n_streams, self.n_frames, -1) for flat in self._flat.values()]


def _first_rows(block: FlowBlock) -> tuple[IntArray, IntArray]:
    """The memory rows of a block's past, and of the block, in Euler step 0. In step k they are k more."""
    past, new = (cast("tuple[DevicePage, ...]", pages) for pages in (block.past, block.new))
    seen, kept = (np.array([page.step_row(0) for page in pages], np.int64) for pages in (past, new))
    return seen, kept


def _whole_blocks(n_frames: int) -> int:
    """`n_frames` rounded up to a multiple of 50."""
    return n_frames + -n_frames % BLOCK_FRAMES


def _power_of_two(n: int) -> int:
    """The smallest power of two that is n or more."""
    return 1 << max(0, n - 1).bit_length()


def _padded_pages(n: int) -> int:
    """The smallest of `PAGES` that is n or more, or else of the multiples of the last."""
    return next((size for size in PAGES if size >= n), -(-n // PAGES[-1]) * PAGES[-1])
