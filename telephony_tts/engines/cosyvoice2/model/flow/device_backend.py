"""How the flow runs on a device: the Euler steps of all streams as one batch, always with the same launches.

Blocks are padded to a bucket: S streams (a power of two), T frames each (a multiple of 50), P pages of past. The inputs
of a step lie in tensors of the bucket that never move. The host fills them with one list of numbers, and with one copy
for each kind of frames. All other work can be recorded (`graphs`). Spare rows compute values that are not used.
`prepare` records the most frequent buckets.

The encoder runs once per block, over batches of blocks whose shapes agree; it is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import cast

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import (
    SCRATCH_PAGE,
    ZERO_PAGE,
    DevicePage,
    EncoderBatch,
    EstimatorBatch,
    PagePool,
)
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import EncoderContext
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockInput, FlowBlock
from telephony_tts.engines.cosyvoice2.model.gpu_kernels import kernels_of
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs

PAGES = 4, 8, 16, 32, 64
"""Pages of past to which a batch is padded."""
MIXED_FRAMES = 2 * BLOCK_FRAMES
"""Blocks of up to this length are one batch, with the shorter ones padded. Most ends of sentences are no longer."""
MOST_FRAMES = 8 * BLOCK_FRAMES
"""Longer blocks, such as a voice's, and blocks with more past than `PAGES`, go alone."""
PREPARED_FRAMES = BLOCK_FRAMES, MIXED_FRAMES
PREPARED_PAGES = 8, 16, 32
N_COUNTS = 6
"""Numbers of a block beside its pages, see `StepInputs.counts`."""

Bucket = tuple[int, int, int]
"""S, T and P."""


class DeviceBackend:
    """Used by one thread."""

    def __init__(self, encoder: FlowEncoder, decoder: FlowDecoder, n_bytes: int) -> None:
        """`n_bytes` of the device are for the pages of streams and voices."""
        estimator = decoder.estimator
        n_steps = decoder.n_steps
        self.pages = PagePool(encoder.layout(), estimator.layout(), n_steps, n_bytes, estimator.time_1.weight)
        self._decoder = decoder
        kernels = kernels_of(decoder.noise.device)
        if kernels is not None:
            estimator.fuse(kernels)
        self._graphs: Graphs | None = None
        self._step_sizes = sent([dt for _, dt in decoder.euler_times], decoder.noise.device, torch.float32)
        self._prepared: dict[Bucket, StepInputs] = {}

    def take(self, table: PageTable, n_tokens: int, *, is_last: bool) -> tuple[KeptPage, ...]:
        # All of the block's pages at once: a block that has begun can be finished, and only new blocks are refused.
        return self.pages.take(0 if is_last else n_tokens // BLOCK_TOKENS)

    def encoder_batch_key(self, block: BlockInput) -> Hashable:
        # Pasts of different lengths are one batch, but none is padded to more than twice its own length.
        return block.n_tokens, block.is_last, len(block.table.pages).bit_length()

    def encoder_context(
        self, tables: Sequence[PageTable], new: Sequence[tuple[KeptPage, ...]], n_tokens: int
    ) -> EncoderContext:
        pasts = [cast("tuple[DevicePage, ...]", table.pages) for table in tables]
        return EncoderBatch(self.pages.encoder, pasts, cast("Sequence[tuple[DevicePage, ...]]", new))

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
        work = self._work(inputs)
        if self._graphs is None:
            work()
        else:
            self._graphs.run(inputs.name, work)
        # Cloned: the next batch of this bucket is computed in the same memory.
        after = inputs.x_after.clone()
        for block, x in zip(blocks, after[:, None].unbind(0), strict=False):
            block.x = x[:, : block.x.shape[1]]
            block.k += 1

    @torch.inference_mode()
    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """Record the most frequent batches, if the device records. A warm-up that was broken off can be repeated."""
        if graphs is not self._graphs:
            self._graphs, self._prepared = graphs, {}
        n_most = _power_of_two(n_streams)
        # The largest first: the smaller ones then use the memory that it took.
        counts = [1 << i for i in reversed(range(n_most.bit_length()))]
        for n_pages in reversed(PREPARED_PAGES):
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
            past = EstimatorBatch(memory, n_past, n_frames, inputs.counts[-2:], inputs.table)
            x, mu, cond = inputs.frames(begins, n_frames)
            velocity = decoder.velocity_of_batch(x, mu, inputs.spk, cond, k, past)
            inputs.x_after.copy_(x + step_sizes.index_select(0, k)[:, None, None] * velocity)

        return work


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
        # The frames of all streams, one stream after the other, behind one frame of zeros that all padding reads.
        n_rows = 1 + self.n_streams * self.n_frames
        self._flat = {
            "x": noise.new_zeros(1, n_rows, d, dtype=wide),
            "mu": noise.new_zeros(1, n_rows, d, dtype=dtype),
            "cond": noise.new_zeros(1, n_rows, d, dtype=dtype),
        }
        self.spk = noise.new_zeros(self.n_streams, d, dtype=dtype)
        self.x_after = noise.new_zeros(self.n_streams, self.n_frames, d, dtype=wide)

    def fill(self, blocks: Sequence[FlowBlock]) -> None:
        """The next Euler step of each block; the other rows are spare."""
        rows, begin = [], 1
        for block in blocks:
            past, new = (cast("tuple[DevicePage, ...]", pages) for pages in (block.past, block.new))
            n = block.x.shape[1]
            seen, kept = [page.step_row(block.k) for page in past], [page.step_row(block.k) for page in new]
            ends = seen[-1] if seen else ZERO_PAGE, kept[-1] if kept else SCRATCH_PAGE
            rows.append(([block.k, BLOCK_FRAMES * len(past), n, begin, *ends], self._table_row(seen, kept)))
            begin += n
        n_spare = self.n_streams - len(blocks)
        rows += [([0, 0, self.n_frames, 0, ZERO_PAGE, SCRATCH_PAGE], self._table_row([], []))] * n_spare
        counts = [number for column in zip(*(counts for counts, _ in rows), strict=True) for number in column]
        table = [number for _, table_row in rows for number in table_row]
        self._numbers.copy_(sent(counts + table, self._numbers.device))
        if not blocks:
            return
        for name, flat in self._flat.items():
            flat[:, 1:begin] = torch.cat([getattr(block, name) for block in blocks], dim=1)
        self.spk[: len(blocks)] = torch.cat([block.spk for block in blocks])

    def frames(self, begins: Tensor, n_frames: Tensor) -> list[Tensor]:
        """x, mu and cond, each [S, T, 80]."""
        t = torch.arange(self.n_frames, device=begins.device)
        at = (begins[:, None] + t).where(t < n_frames[:, None], 0).flatten()
        return [flat[0].index_select(0, at).view(self.n_streams, self.n_frames, -1) for flat in self._flat.values()]

    def _table_row(self, seen: list[int], kept: list[int]) -> list[int]:
        """The memory rows of a block's past and of the block, padded."""
        n_blocks = self.n_frames // BLOCK_FRAMES
        padding = [ZERO_PAGE] * (self.n_pages - len(seen))
        return [*seen, *padding, *kept, *[SCRATCH_PAGE] * (n_blocks - len(kept))]


def _whole_blocks(n_frames: int) -> int:
    """`n_frames` rounded up to a multiple of 50."""
    return n_frames + -n_frames % BLOCK_FRAMES


def _power_of_two(n: int) -> int:
    """The smallest power of two that is n or more."""
    return 1 << max(0, n - 1).bit_length()


def _padded_pages(n: int) -> int:
    """The smallest of `PAGES` that is n or more, or else of the multiples of the last."""
    return next((size for size in PAGES if size >= n), -(-n // PAGES[-1]) * PAGES[-1])
