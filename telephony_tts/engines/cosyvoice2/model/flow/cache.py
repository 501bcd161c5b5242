"""What a stream keeps of the flow between chunks (specification 8), and nothing else does.

Keys and values are one tensor per attention layer in two parts:

    shared   the prompt's whole blocks, computed once per voice, read by every stream of that voice, written by none
    own      the stream's, in a buffer that grows by `growth` positions at a time

Appending writes only into `own`, so the shared part needs no copy and no lock. On an accelerator a buffer that grows
keeps attention at two products however long the stream is. Growing copies a layer's own history, which attention reads
at every chunk anyway, and goes layer by layer, so that no more than one layer is there twice. On a CPU a product would
copy a buffer that has spare room, keys and values, each time: there it never has any, and is made anew for every chunk
until it holds `growth` positions; then it stays, and the next begins.

The estimator's on a device lie in pages instead, where a batch reads those of all streams at once (`flow_pages`).

What a network appends counts from `Cache.commit` on, which is its last act: where it raises before that, the cache is
what it was, and what was written past its end is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece


class KeyValues:
    """What one attention layer has seen. Half of a buffer [2, B, H, capacity * D] holds keys, half values, both as
    [B, H, capacity, D]."""

    __slots__ = ("_before", "d_head", "full", "growth", "n_next", "n_own", "own", "shared")

    def __init__(self, own: Tensor, d_head: int, growth: int, shared: Tensor | None = None) -> None:
        """`own` [2, B, H, 0] gives sizes, dtype and device. With growth 0 the buffer has no spare room.

        `shared` is a buffer as above that is full.
        """
        self.own = own
        self.d_head = d_head
        self.n_own = self.n_next = 0
        """Positions in `own` that count, and that will when they are committed."""
        self.growth = growth
        self.shared = shared
        self.full: list[Tensor] = []
        """Buffers before `own` that are the stream's too."""
        self._before = [] if shared is None else [self._first(shared, shared.shape[3] // d_head)]

    def reserve(self, n: int) -> list[Tensor]:
        """Room for n new positions: all so far and these, oldest first, as pieces [2, B, H, T, D]; the caller writes
        the new ones to the end of the last."""
        if self.own.device.type == "cpu":
            if self.n_own and self.n_own + n > self.growth:
                self.full.append(self.own)
                self._before.append(self._first(self.own, self.n_own))
                self.own, self.n_own = self.own[..., :0].clone(), 0
            self._resize(self.n_own + n)
        elif (self.n_own + n) * self.d_head > self.own.shape[3]:
            self._resize(max(self.n_own + n, self.own.shape[3] // self.d_head + self.growth))
        self.n_next = self.n_own + n
        return [*self._before, self._first(self.own, self.n_next)]

    def append(self, k: Tensor, v: Tensor) -> list[Piece]:
        """Keeps k, v [B, H, N, D] of N new positions; returns all so far, oldest first."""
        pieces = self.reserve(k.shape[2])
        keys, values = pieces[-1][:, :, :, self.n_own :].unbind(0)
        keys.copy_(k)
        values.copy_(v)
        return [(piece[0], piece[1]) for piece in pieces]

    def commit(self) -> None:
        self.n_own = self.n_next

    def fork(self, growth: int) -> KeyValues:
        """One that begins with what this one holds, by reference. Only a prompt's can be: it shares nothing itself."""
        if self.shared is not None or self.full or self.n_own * self.d_head < self.own.shape[3]:
            raise ValueError("only keys and values in one piece that share nothing, without spare room, can be forked")
        return KeyValues(self.own[..., :0].clone(), self.d_head, growth, self.own if self.n_own else None)

    def tensors(self) -> Iterator[Tensor]:
        """All that is its own."""
        yield from self.full
        yield self.own

    def _resize(self, capacity: int) -> None:
        if capacity * self.d_head == self.own.shape[3]:
            return
        resized = self.own.new_empty(*self.own.shape[:3], capacity * self.d_head)
        if self.n_own:
            self._first(resized, self.n_own).copy_(self._first(self.own, self.n_own))
        self.own = resized

    def _first(self, buffer: Tensor, n: int) -> Tensor:
        """The first n positions of a buffer, where they lie: [2, B, H, n, D]."""
        return buffer.view(*buffer.shape[:3], buffer.shape[3] // self.d_head, self.d_head)[:, :, :, :n]


class Cache:
    """The left context of one network: the encoder, or the estimator at one Euler step (both guidance branches)."""

    __slots__ = ("kv", "left", "n")

    def __init__(self, n: int, left: list[Tensor], kv: list[KeyValues]) -> None:
        self.n = n
        """Positions seen: tokens of the encoder, frames of the estimator."""
        self.left = left
        """Convolution contexts [B, k - 1, C], replaced at each chunk."""
        self.kv = kv

    def commit(self, n: int, left: list[Tensor]) -> None:
        """Counts n new positions as seen: their keys and values are appended, `left` is what they leave behind."""
        self.n += n
        self.left = left
        for kv in self.kv:
            kv.commit()

    def fork(self, growth: int) -> Cache:
        """A stream's own cache that begins where this one stands. It owns all but the keys and values so far."""
        return Cache(self.n, [left.clone() for left in self.left], [kv.fork(growth) for kv in self.kv])

    def tensors(self) -> Iterator[Tensor]:
        """What this cache owns; the shared part belongs to its prompt."""
        yield from self.left
        for kv in self.kv:
            yield from kv.tensors()

    def nbytes(self) -> int:
        """Bytes of its own, buffers' spare room included."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors())


class Held(Protocol):
    def nbytes(self) -> int: ...


def nbytes(caches: Sequence[Held]) -> int:
    """Bytes that these own."""
    return sum(cache.nbytes() for cache in caches)


def empty(
    left: Sequence[tuple[int, int]],
    kv: Sequence[tuple[int, int, int]],
    n_batch: int,
    like: Tensor,
    dtype: torch.dtype | None = None,
) -> Cache:
    """A cache of nothing: left (frames, channels) per convolution; kv (heads, d_head, growth) per attention layer.

    Keys and values are of the dtype of `like`, the contexts of `dtype`, if it is another.
    """
    return Cache(
        n=0,
        left=[like.new_zeros(n_batch, n_left, d, dtype=dtype) for n_left, d in left],
        kv=[KeyValues(like.new_empty(2, n_batch, h, 0), d, growth) for h, d, growth in kv],
    )
