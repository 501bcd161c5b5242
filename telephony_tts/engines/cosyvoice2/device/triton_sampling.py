"""Kernels of a GPU around the layers of the language model, in Triton: ids to embeddings, and logits to ids.

    embedded     the embeddings of a prompt's ids, which are of several tables
    draw         the next ids, as `sampling.draw` draws them with some fifty operations of PyTorch
    draw_step    the same between two decode steps: it leaves the tensors of the steps as the next one needs them

One program draws a row. The nucleus lies among the k most likely ids (top-k), and finding those is most of the work:

    V logits ─ how far each is below the highest, as bits that rank like the numbers
             ─ the highest of each of some groups ─ the k-th of these is a bound: k ids or more reach it
             ─ few more do (else the bound is raised) ─ they are stored side by side, and each is compared with each

An id's group is its remainder, because ids that are alike, and so probably likely together, are often neighbours.
Rows whose first id repeats take the second draw, which sums over all ids; the others skip it.

Equal logits rank by id. Softmax sums in another order than PyTorch, so where a cumulative share lies within some 1e-7
of a random number the two can draw neighbours. Shares are summed in float64.
"""

# Triton reads the annotations of a kernel: they are not types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import N_SPEECH_ROWS, N_SPEECH_TOKENS, SamplingConfig
from telephony_tts.engines.cosyvoice2.model.triton_kernels import padded

N_KEPT = 64
"""Ids that are compared with each other; at least twice top-k."""
N_WARPS = 16
"""Threads of a row, by 32. A row is alone on its part of the GPU, which has room for so many."""
MOST_STOPS = 31
"""Banned stop ids are bits of a number of 32 bits."""
MOST_TABLES = 3


# ------------------------------------------------------------------------------------------------- embeddings


@triton.jit(do_not_specialize_on_alignment=["of_table", "ids"])
def _embedded(of_table, ids, table_0, table_1, table_2, out, d: tl.constexpr, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    source = tl.load(ids + row) * d
    table = tl.load(of_table + row) + 0 * at  # the same number for each channel, as masks are
    inside = at < d
    value = tl.load(table_0 + source + at, mask=inside & (table == 0), other=0.0)
    value = tl.where(table == 1, tl.load(table_1 + source + at, mask=inside & (table == 1), other=0.0), value)
    value = tl.where(table == 2, tl.load(table_2 + source + at, mask=inside & (table == 2), other=0.0), value)
    tl.store(out + row * d + at, value, mask=inside)


def embedded(of_table: Tensor, ids: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Row `ids[i]` of `tables[of_table[i]]`, for each i -> [N, D]. `of_table`, `ids` [N] int64; up to three tables
    [*, D], contiguous."""
    n, d = len(ids), tables[0].shape[1]
    assert len(tables) <= MOST_TABLES
    out = tables[0].new_empty(n, d)
    three = [*tables, *[tables[0]] * (MOST_TABLES - len(tables))]
    _embedded[(n,)](of_table, ids, *three, out, d, padded(d))
    return out


# ------------------------------------------------------------------------------------------------------ draws


@triton.jit
def splitmix64(x):
    x = (x ^ (x >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def _uniform_pair(seed, n_drawn):
    """`sampling.uniforms` of one row."""
    golden = tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    seed, drawn = seed.to(tl.uint64, bitcast=True), n_drawn.to(tl.uint64, bitcast=True)
    counter = splitmix64(seed + golden) + drawn * (golden + golden) + golden
    share = tl.full((), 1.0 / 9007199254740992.0, tl.float64)  # 2^-53
    u1 = (splitmix64(counter) >> 11).to(tl.int64, bitcast=True).to(tl.float64) * share
    u2 = (splitmix64(counter + golden) >> 11).to(tl.int64, bitcast=True).to(tl.float64) * share
    return u1, u2


@triton.jit
def _candidates(bits, at, kept, k: tl.constexpr, n_kept: tl.constexpr, width: tl.constexpr):
    """Keys [n_kept] of the k lowest `bits` [width] >= 0 and a few more, in any order; the highest key where there are
    no more. A key is `bits` << 32 | `at`. `kept`: memory for n_kept numbers, which other threads can read."""
    n_groups: tl.constexpr = 2 * n_kept
    lowest = tl.min(tl.reshape(bits, (width // n_groups, n_groups)), 0)
    group = tl.arange(0, n_groups)
    keys = (lowest.to(tl.int64) << 32) | group
    rank = tl.sum((keys[None, :] < keys[:, None]).to(tl.int32), 1)
    # k bits or more are up to `bound`, and fewer than k are up to `below`.
    bound, below = tl.sum(tl.where(rank == k - 1, lowest, 0)), tl.full((), -1, tl.int32)
    n = tl.sum((bits <= bound).to(tl.int32))
    while (n > n_kept) & (bound - below > 1):
        middle = below + (bound - below) // 2
        n_middle = tl.sum((bits <= middle).to(tl.int32))
        below = tl.where(n_middle >= k, below, middle)
        bound = tl.where(n_middle >= k, middle, bound)
        n = tl.where(n_middle >= k, n_middle, n)
    # More than n_kept are left only if they are equal. Then the first ids of these count.
    is_below = (bits < bound).to(tl.int32)
    counts = tl.cumsum(is_below + ((bits == bound).to(tl.int32) << 16), 0)
    place = tl.where(bits < bound, counts & 0xFFFF, tl.sum(is_below) + (counts >> 16)) - 1
    key = (bits.to(tl.int64) << 32) | at
    tl.store(kept + place, key, mask=(bits <= bound) & (place >= 0) & (place < n_kept))
    tl.debug_barrier()
    slot = tl.arange(0, n_kept)
    return tl.load(kept + slot, mask=slot < n, other=0x7FFFFFFFFFFFFFFF)


@triton.jit
def _sums_to(values, n: tl.constexpr):
    """values [n] float64 -> the sum of each and those before it. A scan of Triton 3.6 gave other sums on an H200."""
    at = tl.arange(0, n)
    is_before = tl.expand_dims(at, 0) <= tl.expand_dims(at, 1)
    return tl.sum(tl.where(is_before, tl.expand_dims(values, 0), 0.0), 1)


@triton.jit
def _second_draw(below, at, first, u2, n_ids: tl.constexpr, width: tl.constexpr, n_groups: tl.constexpr):
    """An id other than `first`: the one at which the cumulative share passes `u2`."""
    n_each: tl.constexpr = width // n_groups
    below = tl.where(at == first, float("inf"), below)
    weights = tl.exp(tl.min(below) - below)
    weights = (weights / tl.sum(weights)).to(tl.float64)
    # First the group of neighbours in which the share is passed, then the id in it.
    grouped = tl.reshape(weights, (n_groups, n_each))
    to_group = _sums_to(tl.sum(grouped, 1), n_groups)
    group = tl.arange(0, n_groups)
    wanted = u2 * tl.max(to_group)
    # A u2 near 1 may be rounded to it: then the last group that has any share.
    is_passed = to_group > wanted
    last = tl.max(tl.where(tl.sum(grouped, 1) > 0, group, 0))
    own = tl.minimum(tl.min(tl.where(is_passed, group, n_groups)), last)
    before = tl.max(tl.where(group < own, to_group, 0.0))
    of_group = tl.sum(tl.where(tl.expand_dims(group, 1) == own, grouped, 0.0), 0)
    each = tl.arange(0, n_each)
    is_found = (before + _sums_to(of_group, n_each) > wanted) & (of_group > 0)
    found = tl.min(tl.where(is_found, each, n_each))
    found = tl.where(found < n_each, found, tl.maximum(tl.max(tl.where(of_group > 0, each, -1)), 0))
    return own * n_each + found


@triton.jit(
    do_not_specialize=["row_stride", "bans_stride", "drawn_stride"],
    do_not_specialize_on_alignment=[
        "slots", "bans", "forced", "seeds", "n_drawn", "recent", "drawn", "step", "ids", "positions",
    ],
)  # fmt: skip
def _draw(
    logits, slots, bans, forced, seeds, n_drawn, recent, kept, drawn, step, ids, positions, table, rows,
    row_stride, bans_stride, drawn_stride, n_ids: tl.constexpr, n_speech: tl.constexpr, k: tl.constexpr,
    top_p: tl.constexpr, window: tl.constexpr, n_repeats: tl.constexpr, d: tl.constexpr,
    width: tl.constexpr, n_kept: tl.constexpr, window_width: tl.constexpr, d_width: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    n_before = tl.load(n_drawn + slot)
    u1, u2 = _uniform_pair(tl.load(seeds + slot), n_before)
    bans_at, drawn_at = row, row
    if step is not None:
        i = tl.load(step + row)
        bans_at, drawn_at = row + i * bans_stride, row + i * drawn_stride
    banned = tl.load(bans + bans_at).to(tl.int32)
    fixed = tl.full((), -1, tl.int64)
    if forced is not None:
        fixed = tl.load(forced + row)

    at = tl.arange(0, width)
    value = tl.load(logits + row * row_stride + at, mask=at < n_ids, other=float("-inf")).to(tl.float32)
    is_bad = (value != value) | (value == float("inf"))
    is_banned = (at >= n_speech) & (((banned >> tl.maximum(at - n_speech, 0)) & 1) == 1)
    value = tl.where(is_banned, float("-inf"), value)
    # How far a logit is below the highest one. NaN in all if none is finite.
    below = tl.max(value) - value
    whole = tl.sum(tl.where(is_bad, float("nan"), tl.exp(-below)))
    bits = tl.where(at < n_ids, below.to(tl.int32, bitcast=True), 0x7FFFFFFE)

    keys = _candidates(bits, at, kept + row * n_kept, k, n_kept, width)
    rank = tl.sum((keys[None, :] < keys[:, None]).to(tl.int32), 1)
    probs = tl.exp(-(keys >> 32).to(tl.int32).to(tl.float32, bitcast=True)) / whole
    probs = tl.where(rank < k, probs.to(tl.float64), 0.0)
    other, own = tl.expand_dims(rank, 0), tl.expand_dims(rank, 1)
    before = tl.sum(tl.where(other < own, tl.expand_dims(probs, 0), 0.0), 1)
    inside = ((before < tl.full((), top_p, tl.float64)) & (rank < k)) | (rank == 0)
    # What is inside are the first in rank, so the sum before an id is that before it in the nucleus.
    total = before + probs
    share = total / tl.max(tl.where(inside, total, 0.0))
    index = tl.sum((inside & (share <= u1)).to(tl.int32))
    first = tl.sum(tl.where(rank == index, (keys & 0x7FFFFFFF).to(tl.int32), 0))

    age = tl.arange(0, window_width)
    last = tl.load(recent + slot * window + age, mask=age < window, other=-1)
    chosen = first
    if (tl.sum((last == first).to(tl.int32)) >= n_repeats) & (fixed < 0) & (whole == whole):
        chosen = _second_draw(below, at, first, u2, n_ids, width, 2 * n_kept)
    result = tl.where(fixed >= 0, fixed, chosen.to(tl.int64))
    result = tl.where(whole == whole, result, -1)
    tl.store(recent + slot * window + n_before % window, result)
    tl.store(n_drawn + slot, n_before + 1)
    tl.store(drawn + drawn_at, result)
    if step is not None:
        # Ids past the end are dropped later. The table has a row for each of them, but not for -1.
        following = tl.maximum(result, 0)
        tl.store(step + row, i + 1)
        tl.store(ids + row, following)
        tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(forced + row, -1)
        channel = tl.arange(0, d_width)
        embedding = tl.load(table + following * d + channel, mask=channel < d, other=0.0)
        tl.store(rows + row * d + channel, embedding, mask=channel < d)


class SlotDraws:
    """Draws for slots of a sampler, whose `seeds`, `n_drawn` [slots] and `recent` [slots, window] they read and
    change. The ids from `n_speech` on are stop ids, and bit i of a row of `bans` bans the i-th of them."""

    def __init__(self, seeds: Tensor, n_drawn: Tensor, recent: Tensor, config: SamplingConfig, n_speech: int) -> None:
        self._state = seeds, n_drawn, recent
        self._config, self._n_speech = config, n_speech

    embedded = staticmethod(embedded)

    def draw(self, logits: Tensor, slots: Tensor, bans: Tensor, forced: Tensor | None) -> Tensor:
        """The next ids [B] of `slots` [B] from `logits` [B, V]: `forced[i]` where that is no -1, and -1 where the
        logits are not finite. All numbers are int64."""
        drawn = torch.empty_like(slots)
        self._launch(logits, slots, bans, forced, drawn)
        return drawn

    def draw_step(
        self, logits: Tensor, inputs: Tensor, step: Tensor, drawn: Tensor, table: Tensor, rows: Tensor
    ) -> None:
        """Draw for the rows of `inputs` [4 + n, B]: last id, slot, position, forced id, and the bans of each of n steps
        (`DecodeSteps`). The ids go to `drawn` [n, B]; the number of each row's step is in `step` [B]. All of these are
        left as the next step needs them, and the embeddings of the ids, of `table` [V, D], in `rows` [B, D]."""
        ids, slots, positions, forced = inputs[:4]
        self._launch(logits, slots, inputs[4:], forced, drawn, step, ids, positions, table, rows)

    def _launch(
        self, logits: Tensor, slots: Tensor, bans: Tensor, forced: Tensor | None, drawn: Tensor, *step: Tensor
    ) -> None:
        config = self._config
        n, n_ids = logits.shape
        k = min(config.top_k, n_ids)
        n_kept = max(N_KEPT, padded(2 * k))
        assert logits.stride(1) == 1 and n_ids - self._n_speech <= MOST_STOPS
        n_repeats = math.ceil(config.window * config.max_repeat)
        d = step[3].shape[1] if step else 1
        width = max(padded(n_ids), 2 * n_kept)
        _draw[(n,)](
            logits, slots, bans, forced, *self._state, slots.new_empty(n, n_kept), drawn,
            *(step or [None] * 5), logits.stride(0), bans.stride(0), drawn.stride(0), n_ids, self._n_speech, k,
            config.top_p, config.window, n_repeats, d, width, n_kept, padded(config.window), padded(d),
            num_warps=N_WARPS,
        )  # fmt: skip


def run_once(device: torch.device) -> None:
    """Run the kernels with the official sizes. Raises whatever Triton raises."""
    n_rows, d = 2, 896
    numbers = torch.zeros(5, n_rows, dtype=torch.int64, device=device)
    logits = torch.zeros(n_rows, N_SPEECH_ROWS, device=device)
    table = torch.zeros(N_SPEECH_ROWS, d, dtype=torch.float16, device=device)
    config = SamplingConfig()
    recent = numbers.new_zeros(n_rows, config.window)
    draws = SlotDraws(numbers[0], numbers.new_zeros(n_rows), recent, config, N_SPEECH_TOKENS)
    draws.draw(logits, numbers[1], numbers[2], numbers[3])
    rows = embedded(numbers[0], numbers[1], [table, table, table])
    step = numbers.new_zeros(n_rows)
    draws.draw_step(logits.half(), numbers, step, numbers.new_zeros(1, n_rows), table, rows)
    torch.cuda.synchronize(device)
