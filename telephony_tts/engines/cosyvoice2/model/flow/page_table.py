"""What a stream keeps of the flow between blocks: a table of pages, and how large a page is.

A block is the input of one call: up to a few hundred speech tokens. For each block the flow runs one pass of the
encoder and one pass of the estimator per Euler step. Each pass keeps the keys and values of its attention layers, and
the last frames that its convolutions read (their left contexts). A page holds all of this for some tokens of one
stream: one record for the encoder, one for each Euler step.

    PageTable    the pages of a stream or of a voice, oldest first
    PassLayout   the sizes of what one pass keeps

A stream starts with a fork of its voice's table: it refers to the same pages, and nothing is copied. Pages of a voice
are read by all of its streams and written by none of them.

Pages come in two kinds, because the two kinds of machine read them differently (`host_pages`, `device_pages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS


class KeptPage(Protocol):
    """What the encoder and all Euler steps keep of some tokens of a stream."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def n_copied(self) -> int:
        """Tokens at its beginning that repeat the page before, which this page replaces. 0 if it replaces none."""


class PageTable:
    """The pages of a stream or of a voice, oldest first."""

    __slots__ = ("n_shared", "pages")

    def __init__(self, pages: Sequence[KeptPage] = ()) -> None:
        """`pages` are the voice's, which the stream only reads."""
        self.pages = tuple(pages)
        self.n_shared = len(self.pages)

    @property
    def n_tokens(self) -> int:
        """Tokens that the encoder has seen. The Euler steps of the last blocks may still be on their way."""
        return sum(page.n_tokens for page in self.pages)

    def append(self, new: Sequence[KeptPage]) -> None:
        """The pages of the next block, in their order."""
        for page in new:
            self.pages = (*(self.pages[:-1] if page.n_copied else self.pages), page)

    def fork(self) -> PageTable:
        """The table of a new stream that starts where this one ends."""
        return PageTable(self.pages)


@dataclass(frozen=True, slots=True)
class PassLayout:
    """Sizes of what one pass of a network keeps."""

    n_rows: int
    """Rows of one stream in the network's batch: 2 where both guidance branches are computed, else 1."""
    n_heads: int
    d_head: int
    rates: tuple[int, ...]
    """Positions per token, for each attention layer."""
    contexts: tuple[tuple[int, int], ...]
    """Frames and channels of each convolution's left context."""

    @property
    def n_context_elements(self) -> int:
        """Elements in all left contexts of a row."""
        return sum(n_left * d for n_left, d in self.contexts)

    @property
    def n_block_elements(self) -> int:
        """Elements that the pass keeps of a block of 25 tokens."""
        n_positions = BLOCK_TOKENS * sum(self.rates)
        return self.n_rows * (2 * self.n_heads * self.d_head * n_positions + self.n_context_elements)
