"""Keys and values of an estimator in int8 on a CPU: each position has a scale for each head (`kernels.cpp`).

    Int8Pass            CosyVoice2: a block sees what the blocks before have kept
    Int8WholeSequence   CosyVoice-300M: the input is the whole sentence, and nothing is kept

Those of CosyVoice2 lie in pieces. A block's keys and values are written behind those of the block before, as long as
the piece has room, so nothing is copied when a stream grows. A step of an older block reads the same piece, up to its
own length.
Memory of a piece that was never written to takes no room in the machine's memory. Memory of pieces that are not needed
any more is kept for the next ones: to get a page from the system costs more than to attend to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import HostPass, PassRecord, PassStorage
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PassLayout
from telephony_tts.engines.kernels.library import LeftContext, Piece, functions

MAX_SPARE = 20
"""Pieces of which memory is kept: of two streams with ten Euler steps each, 0.5 GB at full size."""


class PieceMemory:
    """Memory of a piece, uint8 [n_bytes]. When nothing refers to it any more, it becomes spare."""

    _spare: ClassVar[list[Tensor]] = []

    def __init__(self, n_bytes: int) -> None:
        """Takes spare memory of this size, or new memory. Its contents are undefined."""
        for i, spare in enumerate(self._spare):
            if len(spare) == n_bytes:
                with suppress(IndexError):  # another lane may take it first
                    spare = self._spare.pop(i)
                    if len(spare) == n_bytes:
                        self.tensor = spare
                        return
                break
        self.tensor = torch.empty(n_bytes, dtype=torch.uint8)

    def __del__(self) -> None:
        self._spare.append(self.tensor)
        del self._spare[:-MAX_SPARE]


@dataclass(frozen=True, slots=True)
class Int8Piece:
    """The first `n` positions of a piece, in all layers of one Euler step."""

    memory: PieceMemory
    capacity: int
    n: int

    @classmethod
    def empty(cls, layout: PassLayout, n_positions: int) -> Int8Piece:
        """A piece with room for `n_positions` or a few more."""
        library = functions()
        step = library.key_step()
        capacity = -(-n_positions // step) * step
        n_heads = len(layout.rates) * layout.n_rows * layout.n_heads
        n_bytes = n_heads * capacity * library.bytes_per_position(layout.d_head)
        return cls(PieceMemory(n_bytes), capacity, 0)


class Int8WholeSequence:
    """`WholeSequence` in int8, for one pass. All layers share the memory: each overwrites the layer before."""

    def __init__(self, n_rows: int, n_positions: int, n_heads: int, d_head: int) -> None:
        """`n_positions`: the most that a layer has."""
        library = functions()
        step = library.key_step()
        capacity = -(-n_positions // step) * step
        n_bytes = n_rows * n_heads * capacity * library.bytes_per_position(d_head)
        self._n_heads, self._d_head = n_heads, d_head
        self._memory = torch.empty(n_bytes, dtype=torch.uint8)
        self._piece = Piece(self._memory.data_ptr(), capacity, 0)
        self._address = ctypes.addressof(self._piece)
        self._run = library.attend

    def attend(self, qkv: Tensor) -> Tensor:
        """Contiguous float32 [B, T, 3 * H * D] -> [B, T, H * D]"""
        n_rows, n, d = qkv.shape
        out = qkv.new_empty(n_rows, n, d // 3)
        heads = self._n_heads, self._d_head
        # One block as long as the sentence: each position sees all others.
        self._run(qkv.data_ptr(), n_rows, n, *heads, 0, n, self._address, 1, out.data_ptr())
        return out


class Int8Pass(HostPass):
    """One pass of the estimator over the next tokens of one stream."""

    def __init__(
        self, storage: PassStorage, past: Sequence[PassRecord], new: PassRecord, sizes: tuple[int, int, int]
    ) -> None:
        super().__init__(storage, past, new, sizes)
        layout = storage.layout
        n_new = self._n_new * layout.rates[0]
        shared = [piece for record in self._shared for piece in record.int8]
        own = [] if self._replaced is None else list(self._replaced.int8)
        if not own or own[-1].n + n_new > own[-1].capacity:
            own.append(Int8Piece.empty(layout, max(n_new, storage.piece) if past else n_new))
        pieces = [*shared, *own]
        self._own = [*own[:-1], replace(own[-1], n=own[-1].n + n_new)]
        given = (Piece(each.memory.tensor.data_ptr(), each.capacity, each.n) for each in pieces)
        self._pieces = (Piece * len(pieces))(*given)
        self._before: list[Tensor] = []
        """Left contexts that a call of the kernels still reads."""
        self._run = functions().attend
        self._transform = functions().transform

    def left_context(self, slot: int) -> LeftContext:
        """The left context of convolution number `slot`, for one call of the kernels, which writes the next one."""
        before = self.contexts[slot]
        # In other memory: the context of the block before belongs to its record.
        self.contexts[slot] = torch.empty_like(before)
        self._before.append(before)
        return LeftContext(before.data_ptr(), self.contexts[slot].data_ptr())

    def transform(self, layers: int, n_layers: int, first: int, x: Tensor, n_heads: int) -> None:
        """x, contiguous float32 [B, T, C], goes through `n_layers` transformer blocks, in place.

        `layers`: the address of the first `TransformerLayer`; `first`: its number among the attention layers.
        """
        n_rows, n, _ = x.shape
        address, d_head = ctypes.addressof(self._pieces), self._storage.layout.d_head
        self._transform(
            layers, n_layers, first, x.data_ptr(), n_rows, n, n_heads, d_head, BLOCK_FRAMES, address, len(self._pieces)
        )

    def attend(self, layer: int, qkv: Tensor, n_heads: int) -> Tensor:
        n_rows, n, d = qkv.shape
        out = qkv.new_empty(n_rows, n, d // 3)
        address = ctypes.addressof(self._pieces)
        d_head, n_pieces = d // 3 // n_heads, len(self._pieces)
        self._run(qkv.data_ptr(), n_rows, n, n_heads, d_head, layer, BLOCK_FRAMES, address, n_pieces, out.data_ptr())
        return out

    def commit(self) -> None:
        super().commit()
        self._new.int8 = tuple(self._own)
