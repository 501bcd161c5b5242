"""The steps of the vocoder, and how steps of several streams run as one batch.

The work of one chunk is a generator, `VocoderSteps`: it yields one step after the other, is sent the result of each,
and returns the audio of the chunk. `run_steps` drives several generators at once. On a GPU it runs equal steps of
several streams as one batch. The last step of a batch is repeated until their number is a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure, isolated
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise, NoiseRows
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
RunBatch = Callable[[Sequence[VocoderStep]], Sequence[Any]]
"""`run_batch`, or what does the same faster"""

MOST_ROWS = 16
"""Steps in one batch. So many keep a GPU busy, and fewer sizes occur."""


def padded_rows(n: int) -> int:
    """The smallest power of two that is n or more.

    So few shapes occur: cuDNN plans each convolution anew for each new shape."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """What a `ChunkStep` computes. Frames count from the first frame of its mel."""

    n_mel: int
    n_source: int
    """Samples of the source that exist before the step"""
    begins: bool
    """Whether the sines have no state yet"""
    last: bool
    pitch_first: int
    """The pitch is computed from this frame on,"""
    new_first: int
    """has no source yet from this one on,"""
    new_until: int
    """and is final before this one."""
    left: int
    """The decode sees the frames left .. right."""
    right: int
    """0: nothing is decoded."""
    source_first: int
    """The sample of the source at which the decode begins"""
    first: int
    """Frames of the audio, from `left` on"""
    until: int


def compute_chunk(
    vocoder: Vocoder, plan: ChunkPlan, mel: Tensor, source: Tensor, sines: SineState | None, first: int, noise: Noise
) -> tuple[Tensor, Tensor, SineState]:
    """The audio, the source with that of the frames whose pitch is now final, and the sines after them.

    `first`: the position in the utterance of frame `new_first`. Frames after `new_until` get a provisional source, as
    far as the audio needs it.
    """
    f0 = vocoder.f0(mel[:, :, plan.pitch_first :])[:, plan.new_first - plan.pitch_first :]
    n_new = plan.new_until - plan.new_first
    if n_new:
        made, sines = vocoder.excite(f0[:, :n_new], first, sines, noise, last=plan.last)
        source = torch.cat([source, made], 2)
    assert sines is not None
    if not plan.right:
        return mel.new_zeros(mel.shape[0], 0, dtype=torch.float32), source, sines
    end = plan.source_first + (plan.right - plan.left) * vocoder.config.samples_per_frame
    seen = source
    if end > source.shape[2]:
        provisional, _ = vocoder.excite(f0[:, n_new:], first + n_new, sines, noise, last=True)
        seen = torch.cat([source, provisional], 2)
    seen = seen[:, :, plan.source_first : end]
    return vocoder.decode(mel[:, :, plan.left : plan.right], seen, plan.first, plan.until), source, sines


@dataclass(frozen=True, slots=True, eq=False)
class ChunkStep:
    """A whole chunk of a source that continues: the arguments of `compute_chunk` -> its results."""

    vocoder: Vocoder
    plan: ChunkPlan
    mel: Tensor
    source: Tensor
    sines: SineState | None
    first: int
    noise: Noise

    @property
    def shape(self) -> Hashable:
        # In float32 a batch rounds the pitch differently from a single row, and that moves all later phases.
        is_wide = self.vocoder.source_dtype is torch.float64
        return self.plan if is_wide and isinstance(self.noise, CounterNoise) else id(self)

    @classmethod
    def run(cls, steps: Sequence[Self]) -> list[tuple[Tensor, Tensor, SineState]]:
        one = steps[0]
        if len(steps) == 1:
            return [compute_chunk(one.vocoder, one.plan, one.mel, one.source, one.sines, one.first, one.noise)]
        return cls.results(one.computed(cls.stacked(steps)))

    @staticmethod
    def stacked(steps: Sequence[ChunkStep]) -> list[Tensor]:
        """The inputs of a batch: the numbers of its noise, mel, source, and the state of the sines if there is one."""
        numbers = _noise_numbers([(step.noise, step.first) for step in steps], steps[0].vocoder)
        inputs = [(step.mel, step.source, *(step.sines or ())) for step in steps]
        return [numbers, *(_stacked(rows) for rows in zip(*inputs, strict=True))]

    def computed(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`stacked` inputs -> audio, source, and both parts of the state of the sines. Work that can be recorded."""
        numbers, mel, source, *sines = inputs
        noise, state = NoiseRows(numbers, self.vocoder.config.n_harmonics + 1), SineState(*sines) if sines else None
        audio, source, state = compute_chunk(self.vocoder, self.plan, mel, source, state, 0, noise)
        return audio, source, *state

    @staticmethod
    def results(outputs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, SineState]]:
        """What `computed` returns -> the result of each step."""
        by_row = zip(*(_rows(each) for each in outputs), strict=True)
        return [(audio, source, SineState(cycles, voiced)) for audio, source, cycles, voiced in by_row]


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
class RestartedSourceStep:
    """Pitch [1, L] in Hz -> source [1, 1, 480 L], restarted for each chunk as the reference does."""

    vocoder: Vocoder
    f0: Tensor
    first: int
    noise: Noise

    @property
    def shape(self) -> Hashable:
        return self.f0.shape[1] if isinstance(self.noise, CounterNoise) else id(self)

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


def run_batch(steps: Sequence[VocoderStep]) -> Sequence[Any]:
    """The result of each of several equal steps."""
    return type(steps[0]).run(steps)


def run_steps(
    chunks: Mapping[int, VocoderSteps], n: int, batched: bool | None, on_failure: OnFailure, run: RunBatch
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
                _run_batch(batch[begin : begin + MOST_ROWS], results, on_failure, run)
    return audio


def _run_batch(
    batch: Sequence[tuple[int, VocoderStep]], results: dict[int, Any], on_failure: OnFailure, run: RunBatch
) -> None:
    """Adds the results of the batch. If the batch fails, each of its steps is tried alone, and reports its failure."""

    def padded(batch: Sequence[tuple[int, VocoderStep]]) -> list[tuple[int, Any]]:
        steps = [step for _, step in batch]
        made = run([*steps, *steps[-1:] * (padded_rows(len(steps)) - len(steps))])
        return list(zip((i for i, _ in batch), made, strict=False))

    results.update(isolated(batch, padded, lambda each, error: on_failure(each[0], error)))


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def _rows(batch: Tensor) -> list[Tensor]:
    return list(torch.split(batch, 1))


def _noise_of_rows(noises: Sequence[tuple[Noise, int]], vocoder: Vocoder) -> tuple[int, Noise]:
    """A first frame and a noise function for the batch, from the noise function and first frame of each row."""
    if len(noises) == 1:
        return noises[0][1], noises[0][0]
    return 0, NoiseRows(_noise_numbers(noises, vocoder), vocoder.config.n_harmonics + 1)


def _noise_numbers(noises: Sequence[tuple[Noise, int]], vocoder: Vocoder) -> Tensor:
    """For `NoiseRows`, from the noise function and first frame of each row."""
    n_frame = vocoder.config.samples_per_frame
    numbers = [noise.numbers(n_frame * frame) for noise, frame in noises if isinstance(noise, CounterNoise)]
    return sent(numbers, vocoder.device, torch.int32)
