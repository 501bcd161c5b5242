"""The vocoder on a GPU: the most frequent chunks, recorded as graphs (`model.graphs`).

A chunk has about 180 launches, without Triton about 700, which a GPU computes faster than the host makes them. One
graph does all of a batch of chunks: pitch, source and decode. There is a graph for each usual `ChunkPlan` and each
number of rows. The end of an utterance has a plan for each length, and few ends come at once: there are graphs for few
rows. All other chunks are computed without a graph: those of speech that is made faster or slower, utterances of a
single block, and all profiles but the default.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import (
    MOST_ROWS,
    ChunkPlan,
    ChunkStep,
    VocoderStep,
    padded_rows,
    run_batch,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import SineState, Vocoder

Computed = tuple[Tensor, Tensor, SineState]
"""The result of a `ChunkStep`."""

_AHEAD_FRAMES = FRAMES_PER_TOKEN * LOOKAHEAD_TOKENS
END_FRAMES = range(_AHEAD_FRAMES, BLOCK_FRAMES + _AHEAD_FRAMES, FRAMES_PER_TOKEN)
"""Mel frames of an utterance's last block: what is left when another block and its lookahead do not fit."""
MOST_ENDS = 2
"""Rows of a batch of ends that have a graph."""


class RecordedChunks:
    """Used by one thread."""

    def __init__(self, vocoder: Vocoder, graphs: Graphs) -> None:
        self._vocoder, self._graphs = vocoder, graphs
        self._recorded: dict[tuple[Hashable, int], RecordedChunk] = {}
        """By `ChunkStep.shape` and number of rows"""

    @torch.inference_mode()
    def prepare(self, n_streams: int, first_frames: Sequence[int], check_wanted: Callable[[], object]) -> None:
        """Record the chunks of utterances that begin with one of `first_frames`, if the device records.

        `check_wanted` is called before each and ends it by raising. A warm-up that was broken off can be repeated.
        """
        usual = usual_chunks(self._vocoder, first_frames, check_wanted) if self._graphs.records else []
        n_most = min(padded_rows(n_streams), MOST_ROWS)
        # The largest first: the smaller ones then use the memory that it took.
        for n in (1 << i for i in reversed(range(n_most.bit_length()))):
            for step, result in usual:
                if (step.plan, n) in self._recorded or (step.plan.last and n > MOST_ENDS):
                    continue
                check_wanted()
                if not self._graphs.records:
                    return
                chunk = RecordedChunk(step, result, n)
                self._graphs.prepare(chunk.name, chunk.work)
                self._recorded[step.plan, n] = chunk

    def run(self, steps: Sequence[VocoderStep]) -> Sequence[Any]:
        """`run_batch`, by a graph if there is one."""
        if self._recorded and steps[0].vocoder is self._vocoder:
            chunk = self._recorded.get((steps[0].shape, len(steps)))
            if chunk is not None:
                return self._replayed(chunk, steps)
        return run_batch(steps)

    def _replayed(self, chunk: RecordedChunk, steps: Sequence[Any]) -> list[Computed]:
        for kept, given in zip(chunk.inputs, ChunkStep.stacked(steps), strict=True):
            kept.copy_(given)
        self._graphs.run(chunk.name, chunk.work)
        # Cloned: the next batch of this plan is computed in the same memory.
        return ChunkStep.results([each.clone() for each in chunk.outputs])


class RecordedChunk:
    """One plan for one number of rows, and the tensors that its graph reads and writes."""

    def __init__(self, step: ChunkStep, result: Computed, n: int) -> None:
        """`step` and its result are examples: they have the plan and the shapes of a row."""
        audio, source, sines = result
        self.name = ("vocoder", step.plan, n)
        self.inputs = [each.clone() for each in ChunkStep.stacked([step] * n)]
        self.outputs = [torch.cat([each] * n) for each in (audio, source, *sines)]
        self._step = step

    def work(self) -> None:
        for kept, made in zip(self.outputs, self._step.computed(self.inputs), strict=True):
            kept.copy_(made)


def usual_chunks(
    vocoder: Vocoder, first_frames: Sequence[int], check_wanted: Callable[[], object]
) -> list[tuple[ChunkStep, Computed]]:
    """A step of each plan that occurs in utterances of silence in blocks, and its result.

    The first block has one of `first_frames`, each later one `BLOCK_FRAMES`, and the last one of `END_FRAMES`. From the
    third on the plan is the same.
    """
    usual: dict[ChunkPlan, tuple[ChunkStep, Computed]] = {}

    def push(joint: ContinuousJoint, n: int, *, last: bool) -> None:
        check_wanted()
        chunk = joint.steps(torch.zeros(1, vocoder.config.d_mel, n, device=vocoder.device), last=last)
        step = next(chunk)
        assert isinstance(step, ChunkStep)
        (result,) = step.run([step])
        usual.setdefault(step.plan, (step, result))
        with suppress(StopIteration):
            chunk.send(result)

    for n_first in first_frames:
        noise = CounterNoise(0, vocoder.config.n_harmonics + 1, vocoder.device)
        joint = ContinuousJoint(vocoder, noise)
        for n in (n_first, BLOCK_FRAMES, BLOCK_FRAMES):
            push(joint, n, last=False)
        for n_end in END_FRAMES:
            push(copy(joint), n_end, last=True)
    return list(usual.values())
