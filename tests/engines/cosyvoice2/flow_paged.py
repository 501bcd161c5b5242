"""The small flow with a page pool on a pretended device, for its tests, and the mels that it is compared with."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Hashable, Sequence

import pretend_device
import pytest
import torch
from flow_calls import call, chunk, end
from freeze_flow import random_state, small_flow, with_steps
from parity_flow import flow_config
from plain_flow import begin, extend, finish
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from telephony_tts.engines.cosyvoice2.model.flow.device_backend import DeviceBackend
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import SCRATCH_PAGE, DevicePage
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock, FlowStream
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs, Work

N_STEPS = 6
"""The fewest with which each of `CALLS` is at a different step. Each step is a hundred slow operations here."""
WITHIN = 1e-4
"""Largest difference, relative to the signal's rms: the order of float32 sums."""
MEMORY = 100 << 20
Chunk = tuple[int, int]
"""Blocks of 25 tokens, and the seed of the tokens."""


def flow_without_pages() -> Flow:
    """The plain path, of the same weights."""
    return small_flow(n_steps=N_STEPS, few_layers=True)


def paged_flow(
    device: str = pretend_device.NAME,
    dtype: torch.dtype = torch.float32,
    n_bytes: int = MEMORY,
    *,
    few_layers: bool = True,
) -> Flow:
    """The small flow. All of its pages but `ZERO_PAGE` hold NaN, so that reading an unwritten page shows."""
    state = {key: value.to(device, dtype) for key, value in random_state(5, few_layers=few_layers).items()}
    flow = Flow.from_state(flow_config(with_steps(N_STEPS, few_layers=few_layers), state), state)
    flow.use_device_pages(n_bytes)
    pages = backend_of(flow).pages
    with torch.inference_mode():
        for memory in (pages.encoder, pages.estimator):
            for kv in memory.kv:
                kv[:, :, SCRATCH_PAGE * memory.layout.n_rows :] = torch.nan
            memory.contexts[SCRATCH_PAGE:] = torch.nan
    return flow


def backend_of(flow: Flow) -> DeviceBackend:
    assert isinstance(flow.backend, DeviceBackend)
    return flow.backend


def n_free(flow: Flow) -> int:
    gc.collect()
    return len(backend_of(flow).pages.free)


def pages_of(of: FlowStream | FlowBlock) -> set[int]:
    """A stream's own pages, or the pages that a block fills."""
    pages = of.new if isinstance(of, FlowBlock) else of.table.pages[of.table.n_shared :]
    return {page.index for page in pages if isinstance(page, DevicePage)}


@functools.cache
def spoken_alone(n_prompt: int, seed: int, *chunks: Chunk, end_seed: int | None = None) -> list[Tensor]:
    """The mels of a call by itself on the CPU's backend: each chunk, and the end if it has one."""
    with torch.inference_mode(), _disable_current_modes():  # type: ignore[no-untyped-call]
        flow = flow_without_pages()
        stream = call(flow, n_prompt, seed)
        mels = [extend(flow, stream, *chunk(flow, stream, *each)) for each in chunks]
        return mels if end_seed is None else [*mels, finish(flow, stream, end(flow, end_seed))]


def begin_first_blocks(flow: Flow, streams: Sequence[FlowStream]) -> list[FlowBlock]:
    """The first block of each stream. The seed of its tokens is the stream's index."""
    return [begin(flow, stream, *chunk(flow, stream, 1, seed)) for seed, stream in enumerate(streams)]


class CountedGraphs(Graphs):
    """Records as `Pretence` does, and counts the replays of each kind of work."""

    def __init__(self, pretence: pretend_device.Pretence) -> None:
        super().__init__(pretend_device.device(), pretence.record)
        self.replayed: Counter[str] = Counter()

    def run(self, name: Hashable, work: Work) -> None:
        if name in self._prepared:
            assert isinstance(name, tuple)
            self.replayed[name[0]] += 1
        super().run(name, work)


def assert_near(ours: Tensor, wanted: Tensor, within: float = WITHIN) -> None:
    ours = ours.cpu()
    assert ours.shape == wanted.shape
    rms = wanted.square().mean().sqrt()
    assert torch.isfinite(ours).all() and (ours - wanted).abs().max() <= within * rms


def watch_batches(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Records every batch from now on: each block's number of frames, and its Euler step."""
    seen: list[list[tuple[int, int]]] = []
    step = backend_of(flow).step

    def record(blocks: list[FlowBlock]) -> None:
        seen.append([(block.x.shape[1], block.k) for block in blocks])
        step(blocks)

    monkeypatch.setattr(backend_of(flow), "step", record)
    return seen
