"""The Euler steps of all streams on a device, as one batch that takes the same launches whoever is in it.

Blocks are padded to a bucket: S streams (a power of two), T frames each (a multiple of 50), P pages of past. What a
step reads lies in tensors of the bucket that stay where they are, filled by one list of numbers from the host and one
copy for each kind of frames; all else is work that can be recorded (`graphs`). Spare rows compute something of no
meaning, which nobody reads. `prepare` records the buckets that calls come by most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder, Trajectory
from telephony_tts.engines.cosyvoice2.model.flow.pages import NOTHING, WASTE, Batch, Page, Pages, Past
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs

PAGES = 4, 8, 16, 32, 64
"""Of the past, to which a batch is filled up."""
MIXED_FRAMES = 2 * BLOCK_FRAMES
"""Blocks up to here are one batch, the short ones padded: as long as most ends of sentences are."""
MOST_FRAMES = 8 * BLOCK_FRAMES
"""Longer ones, as a voice's, and those with more past than `PAGES` go alone."""
PREPARED_FRAMES = BLOCK_FRAMES, MIXED_FRAMES
PREPARED_PAGES = 8, 16, 32
N_COUNTS = 6
"""Numbers of a block beside its pages, see `_Inputs.counts`."""

Bucket = tuple[int, int, int]
"""S, T and P."""
Path = TypeVar("Path", bound=Trajectory)


class FlowBatches:
    """Used by one thread."""

    def __init__(self, decoder: FlowDecoder, n_bytes: int) -> None:
        """`n_bytes` of the device are for what streams and voices keep."""
        estimator = decoder.estimator
        self.pages = Pages(estimator.page_shape(), n_bytes, estimator.time_1.weight)
        self._decoder = decoder
        self._graphs: Graphs | None = None
        self._sizes = sent([dt for _, dt in decoder.times], decoder.noise.device, torch.float32)
        """Of the Euler steps."""
        self._prepared: dict[Bucket, _Inputs] = {}

    def pasts(self) -> list[Past]:
        """Of a voice, one for each Euler step."""
        return [Past() for _ in self._decoder.times]

    def room(self, n_frames: int) -> list[tuple[Page, ...]]:
        """Pages, for each Euler step, of whole blocks that something may follow. Raises EngineError where there are
        not as many."""
        return self.pages.take(len(self._decoder.times), n_frames // BLOCK_FRAMES)

    def groups(self, paths: Sequence[Path]) -> list[list[Path]]:
        """Those that can be one batch, two or more."""
        groups: dict[int, list[Path]] = {}
        for path in paths:
            n = _padded(path.x.shape[1])
            if path.caches is not None and n <= MOST_FRAMES and len(_past(path).pages) <= PAGES[-1]:
                groups.setdefault(max(n, MIXED_FRAMES), []).append(path)
        return [group for group in groups.values() if len(group) > 1]

    @torch.inference_mode()
    def step(self, paths: Sequence[Trajectory]) -> None:
        """The next Euler step of each, as one batch. Where it raises, all stand as they were."""
        n_frames = max(_padded(path.x.shape[1]) for path in paths)
        n_pages = max(len(_past(path).pages) for path in paths)
        inputs = self._inputs(_least_power(len(paths)), n_frames, n_pages)
        inputs.fill(paths)
        work = self._work(inputs)
        if self._graphs is None:
            work()
        else:
            self._graphs.run(inputs.name, work)
        # The next batch in this bucket is computed in the same place.
        after = inputs.x_after.clone()
        for path, x in zip(paths, after[:, None].unbind(0), strict=False):
            path.x = x[:, : path.x.shape[1]]
            _past(path).pages += path.kept[path.k] if path.kept else ()
            if path.kept:
                path.kept[path.k] = ()
            path.k += 1

    @torch.inference_mode()
    def prepare(self, graphs: Graphs, n_streams: int, look: Callable[[], object]) -> None:
        """Record the usual batches of up to `n_streams`, where that gains something; `look` is called before each, and
        what it raises ends it."""
        if graphs is not self._graphs:
            self._graphs, self._prepared = graphs, {}
        n_most = _least_power(n_streams)
        # The largest first: the others then do with the memory it took.
        counts = [1 << i for i in reversed(range(n_most.bit_length()))]
        for n_pages in reversed(PREPARED_PAGES):
            for n_frames in reversed(PREPARED_FRAMES):
                for n in counts:
                    bucket = n, n_frames, n_pages
                    if bucket in self._prepared:
                        continue
                    look()
                    if not graphs.records:
                        return
                    inputs = _Inputs(bucket, self._decoder)
                    inputs.fill([])
                    graphs.prepare(inputs.name, self._work(inputs))
                    self._prepared[bucket] = inputs

    def _inputs(self, n_streams: int, n_frames: int, n_pages: int) -> _Inputs:
        """Those of the least bucket that was prepared, or else the least."""
        least = _least(PAGES, n_pages)
        for n in (size for size in PAGES if size >= least):
            if (n_streams, n_frames, n) in self._prepared:
                return self._prepared[n_streams, n_frames, n]
        return _Inputs((n_streams, n_frames, least), self._decoder)

    def _work(self, inputs: _Inputs) -> Callable[[], None]:
        """A step of what lies in `inputs`."""
        decoder, pages, sizes = self._decoder, self.pages, self._sizes

        def work() -> None:
            k, n_past, n_frames, begins = inputs.counts[:-2]
            batch = Batch(pages, n_past, n_frames, inputs.counts[-2:], inputs.table)
            x, mu, cond = inputs.frames(begins, n_frames)
            velocity = decoder.velocity_together(x, mu, inputs.spk, cond, k, batch)
            inputs.x_after.copy_(x + sizes.index_select(0, k)[:, None, None] * velocity)

        return work


class _Inputs:
    """What a step of a bucket reads, and where it writes."""

    def __init__(self, bucket: Bucket, decoder: FlowDecoder) -> None:
        self.n_streams, self.n_frames, self.n_pages = bucket
        self.name = ("flow", *bucket)
        noise, dtype, d = decoder.noise, decoder.estimator.dtype, decoder.config.d_mel
        wide = torch.promote_types(dtype, torch.float32)
        n_columns = self.n_pages + self.n_frames // BLOCK_FRAMES
        self._numbers = noise.new_zeros((N_COUNTS + n_columns) * self.n_streams, dtype=torch.int64)
        self.counts = self._numbers[: N_COUNTS * self.n_streams].view(N_COUNTS, self.n_streams)
        """Of each stream: the Euler step; frames of the past; frames; where these begin among all streams'; the page
        that it goes on from; the page that keeps its end."""
        self.table = self._numbers[N_COUNTS * self.n_streams :].view(self.n_streams, n_columns)
        # The frames of all streams, one after the other, behind one of zeros, which all padding is.
        n_rows = 1 + self.n_streams * self.n_frames
        self._flat = {
            "x": noise.new_zeros(1, n_rows, d, dtype=wide),
            "mu": noise.new_zeros(1, n_rows, d, dtype=dtype),
            "cond": noise.new_zeros(1, n_rows, d, dtype=dtype),
        }
        self.spk = noise.new_zeros(self.n_streams, d, dtype=dtype)
        self.x_after = noise.new_zeros(self.n_streams, self.n_frames, d, dtype=wide)

    def fill(self, paths: Sequence[Trajectory]) -> None:
        """The next Euler step of each path; the other rows are spare."""
        blocks, begin = [], 1
        for path in paths:
            past, n = _past(path), path.x.shape[1]
            own = [page.index for page in path.kept[path.k]] if path.kept else []
            seen = [page.index for page in past.pages]
            from_and_in = seen[-1] if seen else NOTHING, own[-1] if own else WASTE
            blocks.append(([path.k, past.n, n, begin, *from_and_in], self._row(seen, own)))
            begin += n
        n_spare = self.n_streams - len(paths)
        blocks += [([0, 0, self.n_frames, 0, NOTHING, WASTE], self._row([], []))] * n_spare
        counts = [number for column in zip(*(counts for counts, _ in blocks), strict=True) for number in column]
        pages = [number for _, row in blocks for number in row]
        self._numbers.copy_(sent(counts + pages, self._numbers.device))
        if not paths:
            return
        for name, flat in self._flat.items():
            flat[:, 1:begin] = torch.cat([getattr(path, name) for path in paths], dim=1)
        self.spk[: len(paths)] = torch.cat([path.spk for path in paths])

    def frames(self, begins: Tensor, n_frames: Tensor) -> list[Tensor]:
        """x, mu and cond, each [S, T, 80]."""
        t = torch.arange(self.n_frames, device=begins.device)
        at = (begins[:, None] + t).where(t < n_frames[:, None], 0).flatten()
        return [flat[0].index_select(0, at).view(self.n_streams, self.n_frames, -1) for flat in self._flat.values()]

    def _row(self, seen: list[int], own: list[int]) -> list[int]:
        """The pages of a block, filled up."""
        n_blocks = self.n_frames // BLOCK_FRAMES
        padding = [NOTHING] * (self.n_pages - len(seen))
        return [*seen, *padding, *own, *[WASTE] * (n_blocks - len(own))]


def _past(path: Trajectory) -> Past:
    past = path.caches[path.k] if path.caches else None
    assert isinstance(past, Past)
    return past


def _padded(n_frames: int) -> int:
    return n_frames + -n_frames % BLOCK_FRAMES


def _least_power(n: int) -> int:
    """Of two, that is n or more."""
    return 1 << max(0, n - 1).bit_length()


def _least(sizes: Sequence[int], n: int) -> int:
    """Of `sizes`, or else of the multiples of the last, that is n or more."""
    return next((size for size in sizes if size >= n), -(-n // sizes[-1]) * sizes[-1])
