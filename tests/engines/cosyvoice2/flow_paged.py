"""The small flow with pages, for its tests, on a device that counts what it is asked for; what is held against it."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence

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

N_STEPS = 6
"""As few as leave each of `CALLS` at a step of its own. Every one more is a hundred operations of a slow device."""
WITHIN = 1e-4
"""Of the signal's rms: the order of float32 sums."""
MEMORY = 100 << 20
Chunk = tuple[int, int]
"""Blocks, and the seed of its tokens."""


def placed(device: str = pretend_device.NAME, dtype: torch.dtype = torch.float32, n_bytes: int = MEMORY) -> Flow:
    """The flow. In its pages, but for the one that is read beside others, is nothing but what is no number."""
    state = {key: value.to(device, dtype) for key, value in random_state(seed=5).items()}
    flow = Flow.from_state(flow_config(with_steps(N_STEPS), state), state)
    flow.use_device_pages(n_bytes)
    pages = batches(flow).pages
    with torch.inference_mode():
        for memory in (pages.encoder, pages.estimator):
            for kv in memory.kv:
                kv[:, :, SCRATCH_PAGE * memory.layout.n_rows :] = torch.nan
            memory.contexts[SCRATCH_PAGE:] = torch.nan
    return flow


def batches(flow: Flow) -> DeviceBackend:
    assert isinstance(flow.backend, DeviceBackend)
    return flow.backend


def n_free(flow: Flow) -> int:
    gc.collect()
    return len(batches(flow).pages.free)


def pages_of(of: FlowStream | FlowBlock) -> set[int]:
    """A stream's own, or those that a block is yet to fill."""
    pages = of.new if isinstance(of, FlowBlock) else of.table.pages[of.table.n_shared :]
    return {page.index for page in pages if isinstance(page, DevicePage)}


@functools.cache
def said(n_prompt: int, seed: int, *chunks: Chunk, end_seed: int | None = None) -> list[Tensor]:
    """What a call says that is alone on the CPU and has no pages: each chunk, and the end if it has one."""
    with torch.inference_mode(), _disable_current_modes():  # type: ignore[no-untyped-call]
        flow = small_flow(n_steps=N_STEPS)
        stream = call(flow, n_prompt, seed)
        mels = [extend(flow, stream, *chunk(flow, stream, *each)) for each in chunks]
        return mels if end_seed is None else [*mels, finish(flow, stream, end(flow, end_seed))]


def begun(flow: Flow, streams: Sequence[FlowStream]) -> list[FlowBlock]:
    """The first block of each, whose tokens have the seed of its place."""
    return [begin(flow, stream, *chunk(flow, stream, 1, seed)) for seed, stream in enumerate(streams)]


def held_against(ours: Tensor, wanted: Tensor, within: float = WITHIN) -> None:
    ours = ours.cpu()
    assert ours.shape == wanted.shape
    rms = wanted.square().mean().sqrt()
    assert torch.isfinite(ours).all() and (ours - wanted).abs().max() <= within * rms


def watched(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Of each batch from now on: each block's frames, and the step it is at."""
    seen: list[list[tuple[int, int]]] = []
    step = batches(flow).step

    def watch(paths: list[FlowBlock]) -> None:
        seen.append([(path.x.shape[1], path.k) for path in paths])
        step(paths)

    monkeypatch.setattr(batches(flow), "step", watch)
    return seen
