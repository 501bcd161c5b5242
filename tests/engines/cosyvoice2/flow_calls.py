"""Calls that speak through a small flow, for its tests: each by itself, or all of them interleaved."""

from __future__ import annotations

import torch
from freeze_flow import D_SPEAKER, N_MELS, N_VOCABULARY
from plain_flow import begin, extend, finish, prompt_of, tokens_to_block_end
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import BLOCK_TOKENS, LOOKAHEAD_TOKENS
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock, FlowStream

CALLS = ((27, 1, 3), (80, 2, 2), (0, 1, 5), (27, 1, 4), (53, 3, 6))
"""Of each call: tokens of its prompt, blocks of 25 tokens in its first request, Euler steps before it joins."""


def ids(n: int, seed: int) -> Tensor:
    return torch.randint(0, N_VOCABULARY, (1, n), generator=torch.Generator().manual_seed(seed))


def voice(flow: Flow, n_prompt: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt tokens [1, P], prompt mel [1, 2P, 80] and embedding [1, 24], on the flow's device."""
    g, device = torch.Generator().manual_seed(seed), flow.encoder.tokens.device
    mel, embedding = torch.randn(1, 2 * n_prompt, N_MELS, generator=g), torch.randn(1, D_SPEAKER, generator=g)
    return ids(n_prompt, seed).to(device), mel.to(device, flow.dtype), embedding.to(device, flow.dtype)


def call(flow: Flow, n_prompt: int, seed: int) -> FlowStream:
    """A new stream with a voice of its own."""
    return flow.start(prompt_of(flow, *voice(flow, n_prompt, seed)))


def chunk(flow: Flow, stream: FlowStream, n_blocks: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens [1, n] up to the end of the stream's next block or of a later one, and the three tokens [1, 3] ahead."""
    n = tokens_to_block_end(stream) + (n_blocks - 1) * BLOCK_TOKENS
    return ids(n, seed), ids(LOOKAHEAD_TOKENS, seed + 100)


def end(flow: Flow, seed: int, n: int = 9) -> Tensor:
    """The last tokens [1, n] of a call."""
    return ids(n, seed)


def alone(flow: Flow, n_prompt: int, n_blocks: int, seed: int) -> Tensor:
    """The mel of a call with two chunks and an end, with no other call beside it."""
    stream = call(flow, n_prompt, seed)
    mels = [extend(flow, stream, *chunk(flow, stream, n, seed)) for n in (n_blocks, 1)]
    return torch.cat([*mels, finish(flow, stream, end(flow, seed))], dim=2)


class InterleavedCalls:
    """All of `CALLS`, one Euler step each per round. They join at different rounds, so their steps differ."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.streams = [call(flow, n_prompt, seed) for seed, (n_prompt, _, _) in enumerate(CALLS)]
        self.mels: list[list[Tensor]] = [[] for _ in CALLS]
        self.blocks: dict[int, FlowBlock] = {}

    def speak(self) -> list[Tensor]:
        turn = 0
        while any(len(mels) < 3 for mels in self.mels):
            for i, (_, _, joins) in enumerate(CALLS):
                if turn >= joins and i not in self.blocks and len(self.mels[i]) < 3:
                    self.blocks[i] = self.begin(i)
            self.flow.step(list(self.blocks.values()))
            for i in [i for i, block in self.blocks.items() if block.done]:
                self.mels[i].append(self.blocks.pop(i).mel())
            turn += 1
        return [torch.cat(mels, dim=2) for mels in self.mels]

    def begin(self, i: int) -> FlowBlock:
        stream, n_done = self.streams[i], len(self.mels[i])
        if n_done == 2:
            return begin(self.flow, stream, end(self.flow, i), None)
        return begin(self.flow, stream, *chunk(self.flow, stream, CALLS[i][1] if n_done == 0 else 1, i))
