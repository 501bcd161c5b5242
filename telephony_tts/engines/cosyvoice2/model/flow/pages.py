"""What streams hold of the estimator on a device, in pages of one memory that never moves.

    page     one block of 50 frames at one Euler step: keys and values of all attention layers, both guidance branches,
             and what the convolutions see of its end
    Past     the pages that one Euler step of a stream has seen, oldest first; those of its voice are the voice's own
    Batch    the pasts of many blocks as the estimator reads them: one gathering and one attention a layer for all

A page is given back when the last who holds it lets it go, so that a stream that is dropped on any path frees its own
and no more. Nothing needs to be cleared: whoever gets a page writes all of it before it is in anybody's past. What is
read beside a past, to fill it up to the longest one, is page `NOTHING`; what nobody will read goes into `WASTE`.

Blocks begin on a multiple of 50 frames, so that all pages of a past are full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES
from telephony_tts.errors import EngineError

NOTHING, WASTE = 0, 1
"""Pages that are nobody's: the one is read and has zeros, the other is written."""
ALIGNED_TO = 16
"""Columns of a mask that attention on a GPU reads where it lies, instead of copying it at every layer."""


@dataclass(frozen=True, slots=True)
class PageShape:
    n_layers: int
    n_branches: int
    n_heads: int
    d_head: int
    n_left: int
    d_lefts: tuple[int, ...]
    """Frames of each convolution's context, and its channels, by slot."""

    @property
    def n_numbers(self) -> int:
        """Of a page."""
        keys = 2 * self.n_layers * self.n_heads * BLOCK_FRAMES * self.d_head
        return self.n_branches * (keys + self.n_left * sum(self.d_lefts))


class Page:
    """One that somebody holds."""

    __slots__ = ("_pages", "index")

    def __init__(self, pages: Pages, index: int) -> None:
        self.index = index
        self._pages = pages

    @property
    def nbytes(self) -> int:
        return self._pages.page_nbytes

    def __del__(self) -> None:
        self._pages.free.append(self.index)


class Pages:
    """All there are. `kv` [n_layers, 2, H, n * n_branches, 50, D], the branches of a page side by side; `lefts`
    [n, n_branches, n_left, sum of d_lefts]."""

    def __init__(self, shape: PageShape, n_bytes: int, like: Tensor) -> None:
        """As many as `n_bytes` have room for, on the device and in the dtype of `like`."""
        self.shape = shape
        self.page_nbytes = shape.n_numbers * like.element_size()
        n = max(n_bytes // self.page_nbytes, WASTE + 1)
        n_rows = n * shape.n_branches
        self.kv = like.new_empty(shape.n_layers, 2, shape.n_heads, n_rows, BLOCK_FRAMES, shape.d_head)
        self.lefts = like.new_empty(n, shape.n_branches, shape.n_left, sum(shape.d_lefts))
        self.kv[:, :, :, NOTHING * shape.n_branches : (NOTHING + 1) * shape.n_branches] = 0
        self.lefts[NOTHING] = 0
        self.n_pages = n - WASTE - 1
        """Those that can be held."""
        self.free = list(range(n - 1, WASTE, -1))
        """Any thread may put one here; one thread takes them."""

    def take(self, n_steps: int, n_blocks: int) -> list[tuple[Page, ...]]:
        """Pages for n_blocks at each of n_steps. EngineError, and none is taken, where so many are not free."""
        n = n_steps * n_blocks
        if n > len(self.free):
            megabytes = (self.n_pages + WASTE + 1) * self.page_nbytes >> 20
            raise EngineError(
                f"the speech model's memory for speech under way and ready voices is full: {self.n_pages // n_steps} s "
                f"of both fit in its {megabytes} MB; give it more (engines.cosyvoice2.flow_memory_mb), or lower slots "
                "or ready_voices"
            )
        return [tuple(Page(self, self.free.pop()) for _ in range(n_blocks)) for _ in range(n_steps)]


class Past:
    """What one Euler step of a stream or of a voice has seen."""

    __slots__ = ("n_shared", "pages")

    def __init__(self, pages: tuple[Page, ...] = ()) -> None:
        """With `pages` that are another's."""
        self.pages = pages
        self.n_shared = len(pages)

    @property
    def n(self) -> int:
        """Frames seen."""
        return len(self.pages) * BLOCK_FRAMES

    def fork(self, growth: int) -> Past:
        """A stream's own that begins where this one stands. Pages do not grow, whatever `growth` is."""
        return Past(self.pages)

    def nbytes(self) -> int:
        """Bytes of its own."""
        return sum(page.nbytes for page in self.pages[self.n_shared :])


class Batch:
    """What S blocks of up to T frames see, as one pass of the estimator reads it, rows of S * n_branches.

    What is padding is seen by none that is not. Made of the device's numbers, and of nothing that the host knows of
    the blocks: what is done with it can be recorded.
    """

    def __init__(self, pages: Pages, n_past: Tensor, n_frames: Tensor, ends: Tensor, table: Tensor) -> None:
        """All int64. n_past, n_frames [S]: frames of each block's past and of itself. ends [2, S]: the page whose
        contexts it goes on from, and the one that keeps its own. table [S, P + T / 50]: pages of its past, filled up
        with `NOTHING`, then those of itself, where it is to be kept."""
        shape = pages.shape
        self._pages = pages
        n_rows = len(n_past) * shape.n_branches
        branches = torch.arange(shape.n_branches, device=table.device)
        self._table = (table[:, None] * shape.n_branches + branches[:, None]).view(n_rows, -1)
        self._continues_from, self._keeps_in = ends.unbind(0)
        before = pages.lefts.index_select(0, self._continues_from).flatten(0, 1)
        self._before = torch.split(before, list(shape.d_lefts), dim=-1)
        self._after: dict[int, Tensor] = {}
        # The same for the branches of a block.
        self._n_past, self._n_frames = (n.repeat_interleave(shape.n_branches) for n in (n_past, n_frames))
        self._mask: Tensor | None = None

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """softmax(q k / sqrt(D)) v over each block's past and itself. qkv [S * n_branches, T, 3 * H * D] ->
        [S * n_branches, T, H * D]; keys and values are kept."""
        shape, kv = self._pages.shape, self._pages.kv[layer]
        n_rows, n, _ = qkv.shape
        n_blocks = n // BLOCK_FRAMES
        each = qkv.view(n_rows, n, 3, shape.n_heads, shape.d_head)
        new = each[:, :, 1:].permute(2, 3, 0, 1, 4)
        # The last pages come with what was in them before, in which place the new keys and values are put: gathering
        # the past alone, and putting the two together, would copy all of it twice.
        seen = kv.index_select(2, self._table.flatten()).view(2, shape.n_heads, n_rows, -1, shape.d_head)
        seen[:, :, :, -n:] = new
        kv[:, :, self._table[:, -n_blocks:]] = new.view(*new.shape[:3], n_blocks, BLOCK_FRAMES, -1)
        if self._mask is None:
            self._mask = self._visible(n, seen.shape[3], qkv.dtype)
        keys, values = seen.transpose(1, 2).unbind(0)
        q = each[:, :, 0].transpose(1, 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self._mask).transpose(1, 2).flatten(2)

    def continued(self, x: Tensor, slot: int) -> Tensor:
        """x [S * n_branches, T, C] behind the contexts of a convolution [S * n_branches, n_left, C]; what the next
        block sees of this one, at its own end, is remembered."""
        n_rows, n, d = x.shape
        n_left = self._pages.shape.n_left
        x = torch.cat([self._before[slot], x], dim=1)
        first = torch.arange(n_rows, device=x.device) * (n + n_left) + self._n_frames
        last = first[:, None] + torch.arange(n_left, device=x.device)
        self._after[slot] = x.flatten(0, 1).index_select(0, last.flatten()).view(n_rows, n_left, d)
        return x

    def keep(self) -> None:
        """When all is computed: the contexts at the ends of those that somebody may follow."""
        after = torch.cat([self._after[slot] for slot in range(len(self._before))], dim=-1)
        self._pages.lefts[self._keeps_in] = after.view(-1, self._pages.shape.n_branches, *after.shape[1:])

    def _visible(self, n: int, n_keys: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores, 0 or -inf, [S * n_branches, 1, n, n_keys]: a frame sees all of its past, of its
        own block and of those between."""
        device = self._n_past.device
        past = torch.arange(n_keys - n, device=device) < self._n_past[:, None]
        new = torch.arange(n, device=device)
        block_ends = (new // BLOCK_FRAMES + 1) * BLOCK_FRAMES
        ends = torch.minimum(block_ends, self._n_frames[:, None])
        visible = torch.cat([past[:, None].expand(-1, n, -1), new < ends[:, :, None]], dim=-1)
        wide = math.ceil(n_keys / ALIGNED_TO) * ALIGNED_TO
        mask = torch.zeros(len(visible), 1, n, wide, dtype=dtype, device=device)[..., :n_keys]
        return mask.masked_fill_(~visible[:, None], float("-inf"))
