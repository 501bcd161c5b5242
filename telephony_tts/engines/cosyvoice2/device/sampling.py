"""Draws the next id from logits, for many utterances at once. On a device the host reads no value.

The rule is repetition-aware sampling (specification 4.3): draw from the nucleus; if that id is among the last few, draw
again from all other ids. Randomness is a function of an utterance's seed and of the number of ids drawn. So it depends
neither on other utterances nor on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_TOKENS, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.gpu_kernels import kernels_of

FEW_ROWS = 8
"""On a CPU the random numbers of so few rows are computed one by one."""
_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _load_kernels() -> ModuleType:
    from telephony_tts.engines.cosyvoice2.model import triton_kernels

    return triton_kernels


def _signed(value: int) -> int:
    """The int64 with the lowest 64 bits of `value`."""
    value &= _MASK_64
    return value - (1 << 64) if value >> 63 else value


def _shifted(x: Tensor, n_bits: int) -> Tensor:
    """Logical right shift; `>>` on int64 copies the sign."""
    return (x >> n_bits) & ((1 << (64 - n_bits)) - 1)


def splitmix64(x: Tensor) -> Tensor:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014) on 64 bits in an int64; it wraps around."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _mixed(x: int) -> int:
    """`splitmix64` of one number, which wraps around as 64 bits."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK_64
    return x ^ x >> 31


def _uniform_pair(seed: int, n_drawn: int) -> tuple[float, float]:
    """`uniforms` of one row, without tensors: each of their operations takes longer than all of this."""
    start = _mixed(seed + _GOLDEN & _MASK_64) + n_drawn * 2 * _GOLDEN
    u1, u2 = ((_mixed(start + k * _GOLDEN & _MASK_64) >> 11) * 2.0**-53 for k in (1, 2))
    return u1, u2


def uniforms(seeds: Tensor, n_drawn: Tensor) -> tuple[Tensor, Tensor]:
    """u1, u2 [B] float64 in [0, 1) for the draw after `n_drawn` [B] draws of utterances with `seeds` [B] (int64).

    The seed is mixed before the counter is added. Otherwise seeds whose difference is a multiple of the step would
    share a sequence.
    """
    if seeds.device.type == "cpu" and len(seeds) <= FEW_ROWS:
        pairs = [_uniform_pair(*each) for each in zip(seeds.tolist(), n_drawn.tolist(), strict=True)]
        u1, u2 = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).unbind(1)
        return u1, u2
    kernels = kernels_of(seeds.device, _load_kernels)
    if kernels is not None:
        u1, u2 = kernels.uniforms(seeds, n_drawn)
        return u1, u2
    start = splitmix64(seeds + _signed(_GOLDEN)) + n_drawn * _signed(2 * _GOLDEN)
    u1, u2 = (_shifted(splitmix64(start + _signed(k * _GOLDEN)), 11).double() * 2.0**-53 for k in (1, 2))
    return u1, u2


def mask_stops(logits: Tensor, banned: Tensor) -> Tensor:
    """Log-probabilities [B, V] float32 of `logits` [B, V], -inf at stop ids where `banned` [B, S] is true. The stop ids
    are the last S."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    n_speech = log_probs.shape[1] - banned.shape[1]
    stops = log_probs[:, n_speech:].masked_fill(banned, -math.inf)
    return torch.cat((log_probs[:, :n_speech], stops), dim=-1)


def greedy(log_probs: Tensor) -> Tensor:
    """The most likely id [B] of `log_probs` [B, V]."""
    return log_probs.argmax(dim=-1)


def _inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """The first index [B] where the cumulative share of `weights` [B, N] exceeds `u` [B]; summed in float64."""
    total = weights.cumsum(dim=-1, dtype=torch.float64)
    index = (total / total[:, -1:] <= u[:, None]).sum(dim=-1)
    # A u that rounds to 1 would give an index past the end.
    return index.clamp(max=weights.shape[-1] - 1)


def _most_likely(probs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The `n` largest of `probs` [B, V] >= 0, and their ids: [B, n], by descending probability and ascending id.

    The bits of floats that are not negative rank like the floats. With the id in the low bits no two keys are equal, so
    top-k suffices. Sorting all of them would take a CPU as long as a layer of the model.
    """
    from_last = torch.arange(probs.shape[-1] - 1, -1, -1, device=probs.device)
    keys = (probs.float().view(torch.int32).long() << 32) | from_last
    ids = keys.topk(min(n, probs.shape[-1]), dim=-1).indices
    return probs.gather(-1, ids).double(), ids


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw and its steps; all [B]."""

    ids: Tensor
    nucleus_size: Tensor
    nucleus_index: Tensor
    repeated: Tensor


def draw(log_probs: Tensor, recent: Tensor, u1: Tensor, u2: Tensor, config: SamplingConfig) -> Draw:
    """Repetition-aware draw from `log_probs` [B, V]. `recent` [B, window]: the last ids in any order, padded with -1.

    The nucleus has at most `top_k` ids, by descending probability and ascending id. It ends with the id that reaches
    `top_p`.
    A repetition is replaced by a second draw, from the vocabulary without the first id. On a device every row gets one,
    because a branch would make the host wait for the device.
    """
    probs, ids = _most_likely(torch.softmax(log_probs, dim=-1), config.top_k)
    inside = probs.cumsum(dim=-1) - probs < config.top_p
    # The difference above may round to top_p; the nucleus keeps one id.
    inside[:, 0] = True
    index = _inverse_cdf(probs * inside, u1)
    first = ids.gather(1, index[:, None])
    repeated = (recent == first).sum(dim=-1) >= config.window * config.max_repeat
    if repeated.device.type == "cpu" and not repeated.any():
        return Draw(first[:, 0], inside.sum(dim=-1), index, repeated)
    others = torch.softmax(log_probs.scatter(1, first, -math.inf), dim=-1)
    chosen = torch.where(repeated, _inverse_cdf(others, u2), first[:, 0])
    return Draw(chosen, inside.sum(dim=-1), index, repeated)


class Sampler:
    """The sampling state of every cache slot, on the device: seed, number of ids drawn, last ids.

    The scratch slot takes what the padding rows of a batch draw (`KvCache.scratch_slot`).
    """

    def __init__(
        self,
        config: SamplingConfig,
        n_slots: int,
        device: torch.device | str = "cpu",
        n_speech: int = N_SPEECH_TOKENS,
    ) -> None:
        """`n_speech`: speech ids. Those after them stop the speech."""
        self.config, self._n_speech = config, n_speech
        self.scratch_slot = n_slots
        self.seeds = torch.zeros(n_slots + 1, dtype=torch.int64, device=device)
        self.n_drawn = torch.zeros(n_slots + 1, dtype=torch.int64, device=device)
        self.recent = torch.full((n_slots + 1, config.window), -1, dtype=torch.int64, device=device)
        """A ring buffer: the rule does not need the order."""

    @torch.inference_mode()
    def start(self, slot: int, seed: int) -> None:
        """Begin an utterance in `slot`; any integer is a seed."""
        self.seeds[slot] = _signed(seed)
        self.n_drawn[slot] = 0
        self.recent[slot] = -1

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        banned: Sequence[Sequence[int]],
        forced: Sequence[int | None] | None = None,
        *,
        likeliest: bool = False,
    ) -> Tensor:
        """Draw the next ids [B] from `logits` [B, V] of `slots`, on the device, and record them.

        `banned`: for each row the stop ids that must not be drawn. `forced`: for each row the id instead of a draw, or
        None. `likeliest`: the most likely id without the repetition rule, for comparison with reference vectors. A row
        whose logits are not finite gets -1, which the reader of the ids must check.
        """
        n_rows, n_ids = logits.shape
        if not len(slots) == len(banned) == n_rows or (forced is not None and len(forced) != n_rows):
            raise ValueError(f"{n_rows} rows of logits for {len(slots)} slots and {len(banned)} rows of banned ids")
        if any(not self._n_speech <= stop < n_ids for row in banned for stop in row):
            raise ValueError(f"only stop ids can be banned: {self._n_speech} to {n_ids - 1}")
        device = self.recent.device
        is_banned = [[stop in row for stop in range(self._n_speech, n_ids)] for row in banned]
        fixed = None
        if forced is not None and any(item is not None for item in forced):
            fixed = sent([-1 if item is None else item for item in forced], device)
        return self.sample_at(
            logits, sent(slots, device), sent(is_banned, device, torch.bool), fixed, likeliest=likeliest
        )

    @torch.inference_mode()
    def sample_at(
        self, logits: Tensor, slots: Tensor, is_banned: Tensor, forced: Tensor | None, *, likeliest: bool = False
    ) -> Tensor:
        """`sample` with arguments on the device: `slots` [B], `is_banned` [B, S] bool, `forced` [B] or -1."""
        log_probs = mask_stops(logits, is_banned)
        n_drawn = self.n_drawn[slots]
        if likeliest:
            ids = greedy(log_probs)
        else:
            u1, u2 = uniforms(self.seeds[slots], n_drawn)
            ids = draw(log_probs, self.recent[slots], u1, u2, self.config).ids
        if forced is not None:
            ids = torch.where(forced >= 0, forced, ids)
        ids = ids.masked_fill(log_probs[:, 0].isnan(), -1)
        self.recent[slots, n_drawn % self.config.window] = ids
        self.n_drawn[slots] = n_drawn + 1
        return ids
