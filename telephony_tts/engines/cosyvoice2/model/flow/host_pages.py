"""Pages of streams on a CPU: a voice has one page, and each stream has one more that grows with every block.

    PassRecord   what one pass of a network kept: keys and values by layer, left contexts by convolution
    HostPage     the records of some tokens of a stream: one of the encoder, one of each Euler step
    HostPass     what the networks see of a stream's pages during one pass (`pass_context`)

Keys and values of a layer lie in pieces, and attention makes one product per piece. A voice has one piece per layer. A
stream's last piece is made anew for every block, with the positions so far copied to its beginning, until it is full.
Then the next piece begins.

A CPU does not use the pool of `device_pages`: its products copy keys and values that are not contiguous, so a piece has
no spare room. Pieces of one block each would cost more products. Either would change the order of sums, and
with it the bits of the audio.

When a page grows, the old page and the new one exist side by side, because the steps of the block before may still run.
But every layer's positions are in memory once: the old page then refers to the beginning of the new piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece, attend, block_mask, split_heads
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable, PassLayout

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.model.flow.int8_pages import Int8Piece

ENCODER_PIECE, STEP_PIECE = 100, 200
"""Positions of a full piece, for the layers of the encoder and of the estimator."""


class PassRecord:
    """What one pass of a network kept. Empty until the pass is done."""

    __slots__ = ("contexts", "int8", "kv")

    def __init__(self) -> None:
        self.kv: list[list[Tensor]] = []
        """For each attention layer, pieces of keys and values [2, B, H, T, D], oldest first."""
        self.contexts: list[Tensor] = []
        """For each convolution, the left context [B, n_left, C] of the tokens that follow."""
        self.int8: tuple[Int8Piece, ...] = ()
        """In place of `kv` in an estimator in int8 (`int8_pages`)."""


class HostPage:
    """What the encoder and the Euler steps keep of `n_tokens` tokens."""

    __slots__ = ("encoder", "n_copied", "n_tokens", "steps")

    def __init__(self, n_tokens: int, n_copied: int, n_steps: int) -> None:
        """The first `n_copied` tokens are those of the page before, which this page replaces."""
        self.n_tokens = n_tokens
        self.n_copied = n_copied
        self.encoder = PassRecord()
        self.steps = [PassRecord() for _ in range(n_steps)]


def next_page(table: PageTable, n_tokens: int, n_steps: int) -> HostPage:
    """A page for the stream's own tokens so far and the next `n_tokens`."""
    n_copied = table.pages[-1].n_tokens if len(table.pages) > table.n_shared else 0
    return HostPage(n_copied + n_tokens, n_copied, n_steps)


class PassStorage:
    """Makes the tensors of one kind of pass: sizes, dtypes and device, and the left contexts of a sentence's start."""

    def __init__(self, layout: PassLayout, like: Tensor, context_dtype: torch.dtype, piece: int) -> None:
        """Keys and values are of the device and dtype of `like`, left contexts of `context_dtype`.

        `piece`: positions of a full piece.
        """
        self.layout, self.piece = layout, piece
        self._like = like
        self.no_contexts = [
            like.new_zeros(layout.n_rows, n_left, d, dtype=context_dtype) for n_left, d in layout.contexts
        ]

    def new_piece(self, n_positions: int) -> Tensor:
        layout = self.layout
        return self._like.new_empty(2, layout.n_rows, layout.n_heads, n_positions, layout.d_head)


class HostPass:
    """One pass of the encoder or of the estimator over the next tokens of one stream."""

    def __init__(
        self, storage: PassStorage, past: Sequence[PassRecord], new: PassRecord, sizes: tuple[int, int, int]
    ) -> None:
        """`past`: the records of the pages before, oldest first; `new`: the record that this pass fills.

        `sizes`: tokens of all of `past`; tokens of its last record, if `new` replaces that, else 0; and new tokens.
        """
        self.n_past, n_copied, self._n_new = sizes
        self._storage = storage
        self._new = new
        self._replaced = past[-1] if n_copied else None
        self._shared = past[:-1] if n_copied else past
        self._kv: list[list[Tensor]] = []
        self._masks: dict[int, Tensor | None] = {}
        self.contexts = list(past[-1].contexts if past else storage.no_contexts)
        """For each convolution, [B, n_left, C]; each is replaced when the convolution has run."""

    def mask(self, n: int, rate: int) -> Tensor | None:
        if rate not in self._masks:
            device = self.contexts[0].device
            self._masks[rate] = block_mask(self.n_past * rate, n, BLOCK_TOKENS * rate, device)
        return self._masks[rate]

    def append(self, layer: int, k: Tensor, v: Tensor) -> list[Piece]:
        """Called once for each layer, in their order."""
        n_new = self._n_new * self._storage.layout.rates[layer]
        own = [] if self._replaced is None else self._replaced.kv[layer]
        if own and own[-1].shape[3] + n_new <= self._storage.piece:
            n_copied = own[-1].shape[3]
            piece = self._storage.new_piece(n_copied + n_new)
            own[-1] = piece[:, :, :, :n_copied].copy_(own[-1])
            own = own[:-1]
        else:
            piece = self._storage.new_piece(n_new)
        self._kv.append([*own, piece])
        keys, values = piece[:, :, :, -n_new:].unbind(0)
        keys.copy_(k)
        values.copy_(v)
        pieces = [*(piece for record in self._shared for piece in record.kv[layer]), *self._kv[-1]]
        return [(piece[0], piece[1]) for piece in pieces]

    def attend(self, layer: int, qkv: Tensor, n_heads: int) -> Tensor:
        q, k, v = split_heads(qkv, n_heads)
        return attend(q, self.append(layer, k, v), self.mask(q.shape[2], FRAMES_PER_TOKEN))

    def continued(self, x: Tensor, slot: int, n_left: int) -> Tensor:
        x = torch.cat([self.contexts[slot], x], dim=1)
        # Cloned: a view would keep all frames of the block alive.
        self.contexts[slot] = x[:, -n_left:].clone()
        return x

    def commit(self) -> None:
        self._new.kv, self._new.contexts = self._kv, self.contexts
