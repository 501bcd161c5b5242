"""What a stream keeps of the flow between chunks (specification 8), and nothing else does.

Keys and values are one tensor per attention layer [2, B, H, T, D] in two parts:

    shared   the prompt's whole blocks, computed once per voice, read by every stream of that voice, written by none
    own      the stream's, in a buffer that grows by `growth` positions at a time

Appending writes only into `own`, so the shared part needs no copy and no lock. A buffer that grows, not a list of
pieces, keeps attention at two products however long the stream is. Growing copies a layer's own history, which
attention reads at every chunk anyway, and goes layer by layer, so that no more than one layer is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


class KeyValues:
    """What one attention layer has seen: keys and values [2, B, H, T, D]."""

    __slots__ = ("growth", "n_own", "own", "shared")

    def __init__(self, own: Tensor, growth: int, shared: Tensor | None = None) -> None:
        """`own` [2, B, H, 0, D] gives sizes, dtype and device. With growth 0 the buffer has no spare room."""
        self.own = own
        self.n_own = 0
        self.growth = growth
        self.shared = shared

    def append(self, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keeps k, v [B, H, N, D] of N new positions; returns all so far, oldest first, as one or two pieces (k, v)."""
        n = self.n_own + k.shape[2]
        capacity = self.own.shape[3]
        if n > capacity:
            grown = self.own.new_empty(*self.own.shape[:3], max(n, capacity + self.growth), self.own.shape[4])
            grown[:, :, :, : self.n_own] = self.own[:, :, :, : self.n_own]
            self.own = grown
        self.own[0, :, :, self.n_own : n] = k
        self.own[1, :, :, self.n_own : n] = v
        self.n_own = n
        pieces = [] if self.shared is None else [(self.shared[0], self.shared[1])]
        return [*pieces, (self.own[0, :, :, :n], self.own[1, :, :, :n])]

    def fork(self, growth: int) -> KeyValues:
        """One that begins with what this one holds, by reference. Only a prompt's can be: it shares nothing itself."""
        if self.shared is not None:
            raise ValueError("only keys and values that share nothing can be forked")
        held = self.own[:, :, :, : self.n_own]
        return KeyValues(self.own[:, :, :, :0].clone(), growth, held if self.n_own else None)


@dataclass(slots=True)
class Cache:
    """The left context of one network: the encoder, or the estimator at one Euler step (both guidance branches)."""

    n: int
    """Positions seen: tokens of the encoder, frames of the estimator."""
    left: list[Tensor]
    """Convolution contexts [B, k - 1, C], replaced at each chunk."""
    kv: list[KeyValues]

    def fork(self, growth: int) -> Cache:
        """A stream's own cache that begins where this one stands. It owns all but the keys and values so far."""
        return Cache(self.n, [left.clone() for left in self.left], [kv.fork(growth) for kv in self.kv])

    def tensors(self) -> Iterator[Tensor]:
        """What this cache owns; the shared part belongs to its prompt."""
        yield from self.left
        yield from (kv.own for kv in self.kv)


def nbytes(caches: Sequence[Cache]) -> int:
    """Bytes the caches own, buffers' spare room included."""
    return sum(tensor.untyped_storage().nbytes() for cache in caches for tensor in cache.tensors())


def empty(left: Sequence[tuple[int, int]], kv: Sequence[tuple[int, int, int]], n_batch: int, like: Tensor) -> Cache:
    """A cache of nothing: left (frames, channels) per convolution; kv (heads, d_head, growth) per attention layer."""
    return Cache(
        n=0,
        left=[like.new_zeros(n_batch, n_left, d) for n_left, d in left],
        kv=[KeyValues(like.new_empty(2, n_batch, h, 0, d), growth) for h, d, growth in kv],
    )
