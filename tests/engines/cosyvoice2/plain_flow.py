"""The flow in plain sequences of calls, for tests: a whole sentence recomputed, and a stream block after block.

`recomputed` is the slow formula: one encoder pass over all tokens, and all Euler steps over all frames. Nothing is kept
between calls. The other functions call `Flow.begin` and `Flow.step` for one stream until a block is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.attention import block_mask
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.host_pages import HostPage
from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt, FlowStream


class BlockCausalSequence(WholeSequence):
    """The input is the whole sentence. A position sees all positions up to the end of its own block of 25 tokens."""

    def mask(self, n: int, rate: int) -> Tensor | None:
        return block_mask(0, n, BLOCK_TOKENS * rate, torch.device("cpu"))


def sequence(*, streaming: bool) -> WholeSequence:
    return BlockCausalSequence() if streaming else WholeSequence()


def velocity(
    flow: Flow, x: Tensor, mu: Tensor, t: Tensor, spk: Tensor, cond: Tensor, *, streaming: bool
) -> Tensor:
    """The estimator alone, over frames that are all there are: x, mu, cond [B, T, 80], t [B], spk [B, 80]."""
    estimator = flow.decoder.estimator
    features = torch.cat([x, mu, spk[:, None].expand_as(x), cond], dim=-1).to(estimator.dtype)
    return estimator.velocity(features, estimator.time_vectors(t), sequence(streaming=streaming))


@torch.inference_mode()
def states(
    flow: Flow,
    prompt_tokens: Tensor,
    tokens: Tensor,
    prompt_mel: Tensor,
    embedding: Tensor,
    *,
    streaming: bool,
    finalize: bool,
) -> list[Tensor]:
    """x [1, T, 80] of all frames before each Euler step and after the last.

    prompt_tokens [1, P], tokens [1, N], prompt_mel [1, 2P, 80], embedding [1, 192]. Without `finalize` the last 3
    tokens are only looked ahead at.
    """
    ids, ahead = torch.cat([prompt_tokens, tokens], dim=1), None
    if not finalize:
        ids, ahead = ids[:, :-LOOKAHEAD_TOKENS], ids[:, -LOOKAHEAD_TOKENS:]
    mu = flow.encoder.mu(flow.encoder.encode(ids, ahead, sequence(streaming=streaming)))
    cond = torch.zeros_like(mu)
    cond[:, : prompt_mel.shape[1]] = prompt_mel
    spk = flow.encoder.speaker(embedding)
    x = [flow.decoder.initial_noise(0, mu.shape[1])]
    for k in range(flow.decoder.n_steps):
        x.append(flow.decoder.step(k, x[-1], mu, spk, cond, sequence(streaming=streaming)))
    return x


def recomputed(
    flow: Flow,
    prompt_tokens: Tensor,
    tokens: Tensor,
    prompt_mel: Tensor,
    embedding: Tensor,
    *,
    streaming: bool,
    finalize: bool,
) -> Tensor:
    """Mel [1, 80, frames after the prompt] of a sentence, computed from its first prompt token on."""
    x = states(flow, prompt_tokens, tokens, prompt_mel, embedding, streaming=streaming, finalize=finalize)
    return x[-1][:, prompt_mel.shape[1] :].transpose(1, 2)


def stepped(flow: Flow, block: FlowBlock) -> Tensor:
    """The mel of a block, after the steps that it still needs."""
    while not block.done:
        flow.step([block])
    return block.mel()


def prompt_of(
    flow: Flow, prompt_tokens: Tensor, prompt_mel: Tensor, embedding: Tensor, *, n_blocks: int | None = None
) -> FlowPrompt:
    """A voice that is ready. With `n_blocks` it shares only so many blocks, and its streams compute the others."""
    most = max(0, prompt_tokens.shape[1] - LOOKAHEAD_TOKENS) // BLOCK_TOKENS
    n = (most if n_blocks is None else min(n_blocks, most)) * BLOCK_TOKENS
    n_given = n + LOOKAHEAD_TOKENS if n_blocks is not None else prompt_tokens.shape[1]
    given = prompt_tokens[:, :n_given]
    block = flow.begin_prompt(given, prompt_mel[:, : FRAMES_PER_TOKEN * given.shape[1]], embedding)
    stepped(flow, block)
    mel = prompt_mel.to(flow.dtype)[:, FRAMES_PER_TOKEN * n :]
    return dataclasses.replace(block.prompt(), tail_tokens=prompt_tokens[:, n:].clone(), tail_mel=mel.clone())


def tokens_to_block_end(stream: FlowStream, n_least: int = 1) -> int:
    """How many new tokens, `n_least` or more, take the stream to the end of a block."""
    at = stream.table.n_tokens + stream.tail_tokens.shape[1]
    return n_least + -(at + n_least) % BLOCK_TOKENS


def begin(flow: Flow, stream: FlowStream, new: Tensor, ahead: Tensor | None) -> FlowBlock:
    """The next block of one stream: new [1, n], ahead [1, 3] or None at the end."""
    request = BlockRequest(stream, new[0].tolist(), None if ahead is None else ahead[0].tolist())
    (block,) = flow.begin([request])
    return block


def extend(flow: Flow, stream: FlowStream, new: Tensor, ahead: Tensor) -> Tensor:
    """The next block's mel [1, 80, 2n]."""
    return stepped(flow, begin(flow, stream, new, ahead))


def finish(flow: Flow, stream: FlowStream, rest: Tensor) -> Tensor:
    """The last block's mel [1, 80, 2n]; `rest` starts with the tokens that the block before looked ahead at."""
    return stepped(flow, begin(flow, stream, rest, None))


def tensors(pages: Iterable[KeptPage]) -> list[Tensor]:
    """All tensors of pages on a CPU: keys and values, and left contexts."""
    found: list[Tensor] = []
    for page in pages:
        assert isinstance(page, HostPage)
        for record in (page.encoder, *page.steps):
            found += [piece for pieces in record.kv for piece in pieces]
            found += record.contexts
    return found


def storages(pages: Iterable[KeptPage]) -> dict[int, int]:
    """Bytes of all tensors of pages on a CPU, by the address of their memory."""
    found = [tensor.untyped_storage() for tensor in tensors(pages)]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def own_bytes(*of: PageTable | FlowBlock) -> int:
    """Bytes of what streams and blocks under way keep, without their voices' pages."""
    tables = [each for each in of if isinstance(each, PageTable)]
    shared = {id(page) for table in tables for page in table.pages[: table.n_shared]}
    pages = [page for table in tables for page in table.pages]
    pages += [page for each in of if isinstance(each, FlowBlock) for page in (*(each.past or ()), *each.new)]
    return sum(storages(page for page in pages if id(page) not in shared).values())
