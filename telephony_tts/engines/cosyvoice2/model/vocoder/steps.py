"""The steps of the vocoder, and how steps of several streams run as one batch.

The work of one chunk is a generator, `VocoderSteps`: it yields one step after the other, is sent the result of each,
and returns the audio of the chunk. `run_steps` drives several generators at once. On a GPU it runs equal steps of
several streams as one batch. The last step of a batch is repeated until their number is a power of two.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.failures import OnFailure, isolated
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Noise, SineState, Vocoder


class VocoderStep(Protocol):
    """One call of the network, for one stream."""

    @property
    def vocoder(self) -> Vocoder: ...
    @property
    def shape(self) -> Hashable:
        """Steps of one class and one vocoder can run as a batch if their shapes are equal."""

    @classmethod
    def run(cls, steps: Sequence[Self]) -> Sequence[Any]:
        """The result of each step. Changes no state, so a batch that fails can be tried again step by step."""


VocoderSteps = Generator[VocoderStep, Any, Tensor]

MOST_ROWS = 16
"""Steps in one batch. So many keep a GPU busy, and fewer sizes occur."""


def padded_rows(n: int) -> int:
    """The smallest power of two that is n or more.

    cuDNN plans each convolution anew for each new shape, which takes hundreds of milliseconds for all of them."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class PitchStep:
    """Mel [1, 80, L] -> pitch [1, L] in Hz."""

    vocoder: Vocoder
    mel: Tensor

    @property
    def shape(self) -> Hashable:
        # In float32 a batch rounds the pitch differently from a single row, and that moves all later phases.
        return self.mel.shape[2] if self.vocoder.source_dtype is torch.float64 else id(self)

    @classmethod
    def run(cls, steps: Sequence[Self]) -> list[Tensor]:
        return _rows(steps[0].vocoder.f0(_stacked([step.mel for step in steps])))


@dataclass(frozen=True, slots=True, eq=False)
class SourceStep:
    """The arguments of `Vocoder.excite` -> the source, and the state of the sines after it."""

    vocoder: Vocoder
    f0: Tensor
    """[1, L] in Hz"""
    first: int
    state: SineState | None
    noise: Noise
    last: bool

    @property
    def shape(self) -> Hashable:
        return self.f0.shape[1], self.state is None, self.last

    @classmethod
    def run(cls, steps: Sequence[Self]) -> list[tuple[Tensor, SineState]]:
        states = [step.state for step in steps if step.state is not None]
        state = None
        if states:
            state = SineState(_stacked([each.cycles for each in states]), _stacked([each.voiced for each in states]))
        f0 = _stacked([step.f0 for step in steps])
        first, noise = _noise_of_rows([(step.noise, step.first) for step in steps], steps[0].vocoder)
        source, state = steps[0].vocoder.excite(f0, first, state, noise, last=steps[0].last)
        states = [SineState(*each) for each in zip(_rows(state.cycles), _rows(state.voiced), strict=True)]
        return list(zip(_rows(source), states, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class RestartedSourceStep:
    """Pitch [1, L] in Hz -> source [1, 1, 480 L], restarted for each chunk as the reference does."""

    vocoder: Vocoder
    f0: Tensor
    first: int
    noise: Noise

    @property
    def shape(self) -> Hashable:
        return self.f0.shape[1]

    @classmethod
    def run(cls, steps: Sequence[Self]) -> list[Tensor]:
        vocoder = steps[0].vocoder
        first, noise = _noise_of_rows([(step.noise, step.first) for step in steps], vocoder)
        return _rows(vocoder.mix(vocoder.restarted_sines(_stacked([step.f0 for step in steps]), first, noise)))


@dataclass(frozen=True, slots=True, eq=False)
class DecodeStep:
    """The arguments of `Vocoder.decode` -> its audio."""

    vocoder: Vocoder
    mel: Tensor
    source: Tensor
    first: int
    until: int

    @property
    def shape(self) -> Hashable:
        return self.mel.shape[2], self.first, self.until

    @classmethod
    def run(cls, steps: Sequence[Self]) -> list[Tensor]:
        mel, source = _stacked([step.mel for step in steps]), _stacked([step.source for step in steps])
        return _rows(steps[0].vocoder.decode(mel, source, steps[0].first, steps[0].until))


def run_steps(
    chunks: Mapping[int, VocoderSteps], n: int, batched: bool | None, on_failure: OnFailure
) -> list[Tensor | None]:
    """Drives the chunks to their ends; the audio of each at its index among n. The rest as for `push_chunks`."""
    audio: list[Tensor | None] = [None] * n
    results: dict[int, Any] = dict.fromkeys(chunks)
    while results:
        batches: dict[Hashable, list[tuple[int, VocoderStep]]] = {}
        for i, result in results.items():
            try:
                step = chunks[i].send(result)
            except StopIteration as end:
                audio[i] = end.value
            except Exception as error:
                on_failure(i, error)
            else:
                is_batched = step.vocoder.device.type != "cpu" if batched is None else batched
                key = (type(step), id(step.vocoder), step.shape) if is_batched else i
                batches.setdefault(key, []).append((i, step))
        results = {}
        for batch in batches.values():
            for begin in range(0, len(batch), MOST_ROWS):
                _run_batch(batch[begin : begin + MOST_ROWS], results, on_failure)
    return audio


def _run_batch(batch: Sequence[tuple[int, VocoderStep]], results: dict[int, Any], on_failure: OnFailure) -> None:
    """Adds the results of the batch. If the batch fails, each of its steps is tried alone, and reports its failure."""

    def run(batch: Sequence[tuple[int, VocoderStep]]) -> list[tuple[int, Any]]:
        steps = [step for _, step in batch]
        made = type(steps[0]).run([*steps, *steps[-1:] * (padded_rows(len(steps)) - len(steps))])
        return list(zip((i for i, _ in batch), made, strict=False))

    results.update(isolated(batch, run, lambda each, error: on_failure(each[0], error)))


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def _rows(batch: Tensor) -> list[Tensor]:
    return list(torch.split(batch, 1))


def _noise_of_rows(noises: Sequence[tuple[Noise, int]], vocoder: Vocoder) -> tuple[int, Noise]:
    """A first frame and a noise function for the batch, from the noise function and first frame of each row."""
    if len(noises) == 1:
        return noises[0][1], noises[0][0]
    counters = [noise for noise, _ in noises if isinstance(noise, CounterNoise)]

    def batch_noise(first: int, n: int) -> Tensor:
        firsts = [vocoder.config.samples_per_frame * frame + first for _, frame in noises]
        if len(counters) == len(noises):
            return CounterNoise.batch(counters, firsts, n)
        return torch.cat([noise(at, n) for (noise, _), at in zip(noises, firsts, strict=True)])

    return 0, batch_noise
