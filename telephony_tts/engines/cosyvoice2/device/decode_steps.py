"""Decode steps of many rows on a device, recorded as graphs (`model.graphs`).

A step has one of few shapes. Its rows are padded to a power of two with rows of the scratch slot
(`KvCache.scratch_slot`). Its
span of positions is padded to the smallest of a doubling series that holds the longest row.

All that differs from step to step lies in tensors that stay. A step reads them, draws, and leaves them as the next step
needs them. So the host sends one block of numbers for several ids, which it reads later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.sampling import Sampler
from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_TOKENS
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel

LEAST_SPAN = 256


def doubling(least: int, most: int) -> list[int]:
    """`least`, twice that, and so on; the last size is `most`."""
    sizes = [least]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return [*sizes[:-1], min(sizes[-1], most)]


def ban_bits(stops: Sequence[int]) -> int:
    """Banned stop ids as one number, for `banned_at`."""
    return sum(1 << stop - N_SPEECH_TOKENS for stop in stops)


def banned_at(bits: Tensor, n_ids: int) -> Tensor:
    """[B] of `ban_bits`, on a device -> [B, S] bool for each of the stop ids, which are the last of `n_ids`."""
    stops = torch.arange(n_ids - N_SPEECH_TOKENS, device=bits.device)
    return (bits[:, None] >> stops & 1).bool()


class DecodeSteps:
    """`n_most`: ids drawn at most in one call of `draw`."""

    def __init__(self, lm: LanguageModel, cache: KvCache, sampler: Sampler, n_most: int, graphs: Graphs) -> None:
        self._lm, self._cache, self._sampler, self._graphs = lm, cache, sampler, graphs
        self.n_rows = doubling(1, cache.n_slots)
        # A GPU's own kernels read no more of a slot than it has.
        self.spans = doubling(cache.max_len if lm.fused else min(LEAST_SPAN, cache.max_len), cache.max_len)
        device = cache.data.device
        n = cache.n_slots
        self._inputs = torch.zeros(4 + n_most, n, dtype=torch.int64, device=device)
        """Of each row: last id, slot, position, forced id or -1; then for each step the banned stop ids as bits."""
        self._drawn = torch.zeros(n_most, n, dtype=torch.int64, device=device)
        self._i = torch.zeros(1, dtype=torch.int64, device=device)
        """The next step of the call."""

    @torch.inference_mode()
    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """Record every shape. `check_wanted` is called before each and ends it by raising."""
        for n in self.n_rows if self._graphs.records else ():
            for span in self.spans:
                check_wanted()
                # All rows name the scratch slot, so no utterance is touched.
                self._fill([[0] * n, [self._cache.scratch_slot] * n, [0] * n, [0] * n, *[[0] * n] * len(self._drawn)])
                self._graphs.prepare(("decode", n, span), partial(self._step, n, span))

    @torch.inference_mode()
    def draw(
        self,
        ids: Sequence[int],
        slots: Sequence[int],
        banned: Sequence[Sequence[Sequence[int]]],
        forced: Sequence[int | None],
    ) -> Tensor:
        """Draw ids [steps, B], which stay on the device until the next call. Row i continues after `ids[i]` in
        `slots[i]`; the cache and the sampler take its ids in.

        `banned[i]`: for each step the stop ids that must not be drawn. `forced[i]`: the first id instead of a draw.
        Raises EngineError if a slot has no room, before anything is written.
        """
        cache, n_steps = self._cache, len(banned[0])
        starts = [cache.room(slot, n_steps) for slot in slots]
        n = next(size for size in self.n_rows if size >= len(slots))
        span = next(size for size in self.spans if size >= max(starts) + n_steps)
        spare = [0] * (n - len(slots))
        self._fill(
            [
                [*(max(0, each) for each in ids), *spare],
                [*slots, *(cache.scratch_slot for _ in spare)],
                [*starts, *spare],
                [*(-1 if each is None else each for each in forced), *spare],
                *(
                    [*(ban_bits(row[i]) for row in banned), *spare]
                    for i in range(n_steps)
                ),
            ]
        )
        for _ in range(n_steps):
            self._graphs.run(("decode", n, span), partial(self._step, n, span))
        for slot in slots:
            cache.lengths[slot] += n_steps
        return self._drawn[:n_steps, : len(slots)]

    def _fill(self, numbers: list[list[int]]) -> None:
        self._inputs[: len(numbers), : len(numbers[0])].copy_(sent(numbers, self._inputs.device))
        self._i.zero_()

    def _step(self, n: int, span: int) -> None:
        """Draw one id for each of n rows."""
        ids, slots, starts, forced = self._inputs[:4, :n]
        hidden = self._lm.decode_at(self._lm.embed_speech(ids), slots, starts, span, self._cache)
        bans = self._inputs[4:, :n].index_select(0, self._i)[0]
        is_banned = banned_at(bans, self._lm.head_bias.shape[0])
        drawn = self._sampler.sample_at(self._lm.logits(hidden), slots, is_banned, forced)
        self._drawn[:, :n].index_copy_(0, self._i, drawn[None])
        # Ids past the end are dropped later. The table has a row for each of them, but not for -1.
        ids.copy_(drawn.clamp(min=0))
        starts.add_(1)
        forced.fill_(-1)
        self._i.add_(1)
