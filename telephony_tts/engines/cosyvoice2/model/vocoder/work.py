"""What a joint asks of the vocoder: works that are done one by one, or several of equal shapes in one call.

A joint's way through a chunk is a talk: it asks for one work after the other, goes on with what it is given, and ends
with the chunk's audio. Whoever answers may hold several talks at once, and do what all of them ask for together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import SAMPLES_PER_FRAME
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Carry, Noise, Vocoder

log = logging.getLogger(__name__)


class Work(Protocol):
    @property
    def vocoder(self) -> Vocoder: ...
    @property
    def shape(self) -> Hashable:
        """Works of one kind and vocoder whose shapes are equal can be done together."""

    @classmethod
    def done(cls, works: Sequence[Self]) -> Sequence[Any]:
        """Of each, its result. Changes nothing but what it gives."""


Talk = Generator[Work, Any, Tensor]
Failed = Callable[[int, Exception], None]
"""Told which of several could not be done, and why, while that is being handled."""


@dataclass(frozen=True, slots=True, eq=False)
class Pitch:
    """Mel [1, 80, L] -> [1, L] in Hz."""

    vocoder: Vocoder
    mel: Tensor

    @property
    def shape(self) -> Hashable:
        # In float32 a batch rounds the pitch as no row alone does, and all later phases move with it.
        return self.mel.shape[2] if self.vocoder.wide is torch.float64 else id(self)

    @classmethod
    def done(cls, works: Sequence[Self]) -> list[Tensor]:
        return _rows(works[0].vocoder.f0(_stacked([work.mel for work in works])))


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The source of a pitch, [1, L] in Hz: the arguments of `Vocoder.excite`, and what it gives."""

    vocoder: Vocoder
    f0: Tensor
    first: int
    carry: Carry | None
    noise: Noise
    last: bool

    @property
    def shape(self) -> Hashable:
        return self.f0.shape[1], self.carry is None, self.last

    @classmethod
    def done(cls, works: Sequence[Self]) -> list[tuple[Tensor, Carry]]:
        carries = [work.carry for work in works if work.carry is not None]
        carry = None
        if carries:
            carry = Carry(_stacked([each.cycles for each in carries]), _stacked([each.voiced for each in carries]))
        f0 = _stacked([work.f0 for work in works])
        first, noise = _one_noise([(work.noise, work.first) for work in works])
        source, carry = works[0].vocoder.excite(f0, first, carry, noise, last=works[0].last)
        carries = [Carry(*each) for each in zip(_rows(carry.cycles), _rows(carry.voiced), strict=True)]
        return list(zip(_rows(source), carries, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class RestartedSource:
    """The source of a pitch, [1, L] in Hz, as upstream makes it anew for each chunk: [1, 1, 480 L]."""

    vocoder: Vocoder
    f0: Tensor
    first: int
    noise: Noise

    @property
    def shape(self) -> Hashable:
        return self.f0.shape[1]

    @classmethod
    def done(cls, works: Sequence[Self]) -> list[Tensor]:
        vocoder = works[0].vocoder
        first, noise = _one_noise([(work.noise, work.first) for work in works])
        return _rows(vocoder.mix(vocoder.restarted_sines(_stacked([work.f0 for work in works]), first, noise)))


@dataclass(frozen=True, slots=True, eq=False)
class Decode:
    """The arguments of `Vocoder.decode`, and the audio that it gives."""

    vocoder: Vocoder
    mel: Tensor
    source: Tensor
    first: int
    until: int

    @property
    def shape(self) -> Hashable:
        return self.mel.shape[2], self.first, self.until

    @classmethod
    def done(cls, works: Sequence[Self]) -> list[Tensor]:
        mel, source = _stacked([work.mel for work in works]), _stacked([work.source for work in works])
        return _rows(works[0].vocoder.decode(mel, source, works[0].first, works[0].until))


def answered(talks: Mapping[int, Talk], n: int, batched: bool | None, failed: Failed | None) -> list[Tensor | None]:
    """What the talks end with, each at its place among n. `batched` and `failed` as for `push_together`."""
    ended: list[Tensor | None] = [None] * n
    given: dict[int, Any] = dict.fromkeys(talks)
    while given:
        batches: dict[Hashable, list[tuple[int, Work]]] = {}
        for i, result in given.items():
            try:
                work = talks[i].send(result)
            except StopIteration as end:
                ended[i] = end.value
            except Exception as error:
                _fail(failed, i, error)
            else:
                together = work.vocoder.device.type != "cpu" if batched is None else batched
                batch = (type(work), id(work.vocoder), work.shape) if together else i
                batches.setdefault(batch, []).append((i, work))
        given = {}
        for asked in batches.values():
            _do(asked, given, failed)
    return ended


def _do(asked: Sequence[tuple[int, Work]], given: dict[int, Any], failed: Failed | None) -> None:
    """Works that can be done together. Where that fails each is done alone, and who fails then is to blame."""
    works = [work for _, work in asked]
    try:
        given.update(zip((i for i, _ in asked), type(works[0]).done(works), strict=True))
        return
    except Exception as error:
        if len(asked) == 1:
            _fail(failed, asked[0][0], error)
            return
        log.warning("a batch of %d could not be computed; each is tried alone", len(asked), exc_info=True)
    # Not while the error is handled, which holds what the batch had taken of the device's memory.
    for each in asked:
        _do([each], given, failed)


def _fail(failed: Failed | None, i: int, error: Exception) -> None:
    if failed is None:
        raise error
    failed(i, error)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def _rows(batch: Tensor) -> list[Tensor]:
    return list(torch.split(batch, 1))


def _one_noise(noises: Sequence[tuple[Noise, int]]) -> tuple[int, Noise]:
    """As one with a row for each, and the frame from which on it is asked for: each is from its own."""
    if len(noises) == 1:
        return noises[0][1], noises[0][0]
    counters = [noise for noise, _ in noises if isinstance(noise, CounterNoise)]

    def together(first: int, n: int) -> Tensor:
        firsts = [SAMPLES_PER_FRAME * frame + first for _, frame in noises]
        if len(counters) == len(noises):
            return CounterNoise.together(counters, firsts, n)
        return torch.cat([noise(at, n) for (noise, _), at in zip(noises, firsts, strict=True)])

    return 0, together
