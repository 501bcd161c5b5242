"""The beginning of many streams' blocks on a device: what `Flow.begin` does for one, with one pass of the encoder for
all whose shapes agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.encoder_pages import PagedCache, Together
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowStream, Solve


@dataclass(frozen=True, slots=True)
class Wanted:
    """The next block of a stream: new ids, and the three after them; None where these are the last."""

    stream: FlowStream
    new: Sequence[int]
    ahead: Sequence[int] | None

    @property
    def n_tokens(self) -> int:
        """Those of the prompt that come with the first block included; a stream that says nothing more says none."""
        return self.n_hidden + len(self.new)

    @property
    def n_hidden(self) -> int:
        """Tokens at its beginning that are the prompt's."""
        return self.stream.tail_tokens.shape[1] if self.new else 0

    @property
    def cache(self) -> PagedCache:
        assert isinstance(self.stream.encoder, PagedCache)
        return self.stream.encoder

    @property
    def batch(self) -> tuple[int, bool, int]:
        """Equal ones are one batch. Pasts need not be of one length: none is filled up to more than twice its own."""
        return self.n_tokens, self.ahead is None, len(self.cache.pages).bit_length()


@torch.inference_mode()
def begin_together(flow: Flow, blocks: Sequence[Wanted]) -> list[Solve]:
    """`Flow.begin` for blocks of different streams. Where it raises, nothing has changed for any of them."""
    if len({id(block.stream) for block in blocks}) < len(blocks):
        raise ValueError("two blocks of a stream begin one after the other")
    for block in blocks:
        flow.check(block.stream, len(block.new), None if block.ahead is None else len(block.ahead))
    kept = [[] if block.ahead is None else flow.room(block.n_tokens * FRAMES_PER_TOKEN) for block in blocks]
    x = [flow.decoder.start(block.cache.n * FRAMES_PER_TOKEN, block.n_tokens * FRAMES_PER_TOKEN) for block in blocks]
    batches: dict[tuple[int, bool, int], list[int]] = {}
    for i, block in enumerate(blocks):
        if block.n_tokens:
            batches.setdefault(block.batch, []).append(i)
    mu, cond = list(x), list(x)  # of those that say nothing more, which are done
    passes = []
    for members in batches.values():
        of_batch = [blocks[i] for i in members]
        n_tokens, goes_on = of_batch[0].n_tokens, of_batch[0].ahead is not None
        caches = Together([block.cache for block in of_batch], n_tokens, goes_on=goes_on)
        passes.append(caches)
        ids, ahead = _ids(of_batch, flow.encoder.tokens.device)
        mus = flow.encoder.mu(flow.encoder.encode(ids, ahead, streaming=True, cache=caches))
        conds = _conditions(of_batch, flow.dtype)
        for row, i in enumerate(members):
            mu[i], cond[i] = mus[row : row + 1], conds[row : row + 1]
    for caches in passes:
        caches.keep()
    solves = []
    for i, block in enumerate(blocks):
        n_steps, stream = len(flow.decoder.times), block.stream
        k = 0 if block.n_tokens else n_steps
        solve = Solve(x[i], mu[i], stream.prompt.spk, cond[i], n_steps, stream.steps, k=k, kept=kept[i])
        solve.follows(stream, block.n_hidden * FRAMES_PER_TOKEN, len(block.new), is_last=block.ahead is None)
        solves.append(solve)
    return solves


def _ids(blocks: Sequence[Wanted], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """[S, N] and what is looked ahead at, [S, 3] or None. Those of the prompts are on the device already."""
    given = sent([item for block in blocks for item in (*block.new, *(block.ahead or ()))], device)
    parts = []
    at = 0
    for block in blocks:
        n = len(block.new) + len(block.ahead or ())
        parts += [block.stream.tail_tokens[0], given[at : at + n]]
        at += n
    ids = torch.cat(parts).view(len(blocks), -1)
    n_tokens = blocks[0].n_tokens
    return ids[:, :n_tokens], None if blocks[0].ahead is None else ids[:, n_tokens:]


def _conditions(blocks: Sequence[Wanted], dtype: torch.dtype) -> Tensor:
    """[S, F, 80]: the prompt's mel, then nothing (specification 5, step 5)."""
    n_frames = blocks[0].n_tokens * FRAMES_PER_TOKEN
    mels = [block.stream.prompt.tail_mel[0, : block.n_hidden * FRAMES_PER_TOKEN] for block in blocks]
    nothing = mels[0].new_zeros(n_frames, mels[0].shape[1], dtype=dtype)
    parts = [part for mel in mels for part in (mel, nothing[len(mel) :])]
    return torch.cat(parts).view(len(blocks), n_frames, -1)
