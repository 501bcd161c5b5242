"""What streams hold of the flow's encoder on a device, in pages that all of them share.

    page          what a block of 25 tokens leaves behind: keys and values of all layers, and what both convolutions see
                  of its end
    PagedCache    the pages of a stream or of a voice, oldest first; a stream's begin with its voice's own
    Together      the caches of several streams as one, for one pass of the encoder with a row for each

A page is given back when the last who holds it lets it go. It is not cleared: whoever takes one writes all of it before
anybody reads it. Page `NOTHING` is nobody's and holds zeros: it fills up shorter pasts, at their beginnings, so that
the distance between a new token and an old one is the same in every row.

A second of speech takes 0.7 MB at full size in float16, a seventieth of what the estimator keeps of it. So the memory
grows when it is too small, by half of itself, and stays as large as it ever was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, FRAMES_PER_TOKEN, FlowEncoderConfig
from telephony_tts.engines.cosyvoice2.model.flow.attention import Piece
from telephony_tts.errors import EngineError

NOTHING = 0
FIRST_PAGES = 32


class Page:
    """One that somebody holds."""

    __slots__ = ("_pages", "index")

    def __init__(self, pages: EncoderPages, index: int) -> None:
        self.index = index
        self._pages = pages

    def __del__(self) -> None:
        self._pages.free.append(self.index)


class EncoderPages:
    """All there are. `kv`: of the layers at the tokens' rate and of those at the mel's, each
    [n_layers, n, 2, H, positions, D]; `lefts`: of each convolution [n, n_left, C]."""

    def __init__(self, config: FlowEncoderConfig, n_lefts: Sequence[int], like: Tensor) -> None:
        """On the device and in the dtype of `like`; `n_lefts`: what each convolution sees of the positions before."""
        self.n_heads, self.d_head = config.n_heads, config.d_model // config.n_heads
        rates = ((config.n_layers, BLOCK_TOKENS), (config.n_up_layers, BLOCK_TOKENS * FRAMES_PER_TOKEN))
        self.kv = [like.new_zeros(layers, 1, 2, self.n_heads, n, self.d_head) for layers, n in rates]
        self.lefts = [like.new_zeros(1, n, config.d_model) for n in n_lefts]
        self.free: list[int] = []
        """Any thread may put one here; one thread takes them."""

    @property
    def n_pages(self) -> int:
        """With the one that is nobody's."""
        return self.lefts[0].shape[0]

    @property
    def page_nbytes(self) -> int:
        return sum(memory.nbytes for memory in (*self.kv, *self.lefts)) // self.n_pages

    def take(self, n: int) -> list[Page]:
        """Raises EngineError, and none is taken, where the device has no memory for more."""
        if n > len(self.free):
            self._grow(max(n - len(self.free), self.n_pages // 2, FIRST_PAGES))
        return [Page(self, self.free.pop()) for _ in range(n)]

    def _grow(self, n_more: int) -> None:
        n = self.n_pages
        try:
            kv = [_longer(memory, 1, n_more) for memory in self.kv]
            lefts = [_longer(memory, 0, n_more) for memory in self.lefts]
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"the device has no memory for more than {n - 1} s of speech under way and ready voices; lower slots, "
                "ready_voices or flow_memory_mb of engines.cosyvoice2"
            ) from error
        self.kv, self.lefts = kv, lefts
        self.free[:0] = range(n + n_more - 1, n - 1, -1)


def _longer(memory: Tensor, dim: int, n_more: int) -> Tensor:
    """What is new holds nothing yet."""
    sizes = list(memory.shape)
    sizes[dim] += n_more
    longer = memory.new_empty(sizes)
    longer.narrow(dim, 0, memory.shape[dim]).copy_(memory)
    return longer


class PagedCache:
    """The left context of the encoder for one stream or voice: to its owner what `flow_cache.Cache` is on a CPU."""

    __slots__ = ("memory", "n", "n_shared", "pages")

    def __init__(self, memory: EncoderPages, n: int = 0, pages: Sequence[Page] = ()) -> None:
        """With `pages` that are another's."""
        self.memory = memory
        self.n = n
        """Tokens seen."""
        self.pages = list(pages)
        self.n_shared = len(pages)

    def fork(self, growth: int) -> PagedCache:
        """A stream's own that begins where this one stands. Pages do not grow, whatever `growth` is."""
        return PagedCache(self.memory, self.n, self.pages)

    def nbytes(self) -> int:
        """Bytes of its own."""
        return (len(self.pages) - self.n_shared) * self.memory.page_nbytes


class Together:
    """The caches of S streams, to the encoder one cache of S rows. Nothing changes for any of them before `keep`.

    `n`: the longest past, in tokens; the others are filled up to it."""

    def __init__(self, caches: Sequence[PagedCache], n_new: int, *, goes_on: bool) -> None:
        """For n_new tokens of each, after which something may follow or not: only then they must be whole blocks, and
        are kept. Raises EngineError where there is no memory for them."""
        if goes_on and n_new % BLOCK_TOKENS:
            raise ValueError(f"{n_new} tokens that something may follow are no whole blocks of {BLOCK_TOKENS}")
        self._caches = caches
        self._memory = memory = caches[0].memory
        n_blocks = n_new // BLOCK_TOKENS if goes_on else 0
        self._new = [memory.take(n_blocks) for _ in caches]
        self._n_new = n_new
        longest = max(len(cache.pages) for cache in caches)
        self.n = longest * BLOCK_TOKENS
        device = memory.lefts[0].device
        numbers = sent(
            [
                [longest - len(cache.pages)]
                + [cache.pages[-1].index if cache.pages else NOTHING]
                + [NOTHING] * (longest - len(cache.pages))
                + [page.index for page in (*cache.pages, *new)]
                for cache, new in zip(caches, self._new, strict=True)
            ],
            device,
        )
        n_missing, last, table, new = torch.split(numbers, [1, 1, longest, n_blocks], dim=1)
        self._n_missing = n_missing if len({len(cache.pages) for cache in caches}) > 1 else None
        """[S, 1]: blocks by which each past is filled up; None where none is."""
        self.left = [memory_of_conv[last[:, 0]] for memory_of_conv in memory.lefts]
        # Where keys and values of the past lie among [n * 2 * H, positions * D]: [2, S, H, longest].
        two, heads = (torch.arange(n, device=device) for n in (2, memory.n_heads))
        rows = (table[:, None] * 2 + two[:, None, None, None]) * memory.n_heads + heads[:, None]
        self.kv = [
            _LayerTogether(memory, rate, layer, rows, new)
            for rate, of_rate in enumerate(memory.kv)
            for layer in range(len(of_rate))
        ]
        self._ends = new[:, -1] if n_blocks else None

    def visible(self, n: int, n_positions: int) -> Tensor | None:
        """[S * H, 1, n + n_positions]: which of n positions of the past, and of the new ones, are there at all in each
        row; None where all are."""
        if self._n_missing is None:
            return None
        n_hidden = self._n_missing * (n // (self.n // BLOCK_TOKENS))
        seen = torch.arange(n + n_positions, device=n_hidden.device) >= n_hidden
        return seen.repeat_interleave(self._memory.n_heads, dim=0)[:, None]

    def commit(self, n: int, left: list[Tensor]) -> None:
        """When all is computed: the contexts [S, n_left, C] that the new tokens leave behind."""
        if self._ends is not None:
            for memory_of_conv, after in zip(self._memory.lefts, left, strict=True):
                memory_of_conv[self._ends] = after

    def keep(self) -> None:
        """The new tokens count as seen."""
        for cache, new in zip(self._caches, self._new, strict=True):
            cache.n += self._n_new
            cache.pages += new


class _LayerTogether:
    """What one attention layer has seen of S streams."""

    def __init__(self, memory: EncoderPages, rate: int, layer: int, rows: Tensor, new: Tensor) -> None:
        self._memory, self._rate, self._layer = memory, rate, layer
        self._rows, self._new = rows, new

    def append(self, k: Tensor, v: Tensor) -> list[Piece]:
        """Keeps k, v [S, H, N, D] of the new positions; all that each sees, oldest first. The pasts are one copy."""
        of_layer = self._memory.kv[self._rate][self._layer]
        n_positions, d_head = of_layer.shape[3:]
        pieces: list[Piece] = []
        if self._rows.shape[-1]:
            past = of_layer.view(-1, n_positions * d_head)[self._rows]
            keys, values = past.view(*past.shape[:3], -1, d_head).unbind(0)
            pieces.append((keys, values))
        n_blocks = self._new.shape[1]
        if n_blocks:
            for i, part in enumerate((k, v)):
                blocks = part.view(*part.shape[:2], n_blocks, n_positions, d_head)
                of_layer[:, i][self._new] = blocks.transpose(1, 2)
        return [*pieces, (k, v)]
