"""Flow: speech tokens to mel frames, block by block (specification 5, 8).

    block = flow.begin_prompt(tokens, mel, embedding)      once per voice
    prompt = block.prompt()                                when all steps of the block are done
    stream = flow.start(prompt)                            once per utterance
    blocks = flow.begin([BlockRequest(stream, new, ahead)])  the next tokens of each stream: one pass of the encoder
    flow.step(blocks)                                      one Euler step of each block, until block.done
    mel = block.mel()                                      [1, 80, 2n]

A stream keeps what earlier blocks have left behind (`page_table`), so a block costs its own frames only. A block ends
where prompt and emitted tokens together are a multiple of 25. It sees the three tokens after it, which are given again
with the next block. Only the last block may have any length, and sees nothing ahead.

Two things depend on the machine: where pages lie, and how many streams go through a network at once (`backend`).

Of a prompt of P tokens, the first floor((P - 3) / 25) blocks see no generated token, so they depend on the voice alone.
They are computed once, and all streams of the voice read them. The rest is part of each stream's first block.

`begin_whole` computes a whole sentence once more, with all frames visible to all others. That is another function,
which the reference uses for the last block of a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal, Never, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    MAX_OPEN_BLOCKS,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure, isolated
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE
from telephony_tts.engines.cosyvoice2.model.flow.backend import FlowBackend
from telephony_tts.engines.cosyvoice2.model.flow.decoder import FlowDecoder, check_length
from telephony_tts.engines.cosyvoice2.model.flow.device_backend import DeviceBackend
from telephony_tts.engines.cosyvoice2.model.flow.device_pages import page_nbytes
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.host_backend import HostBackend
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.stream import (
    BlockInput,
    BlockRequest,
    FlowBlock,
    FlowPrompt,
    FlowStream,
)
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.state import State
from telephony_tts.runtime.errors import EngineUnavailable

Weights = Literal["float", "int8"]


class Flow:
    def __init__(self, config: ModelConfig, take: FlowReader) -> None:
        self.encoder = FlowEncoder(config.flow_encoder, take)
        self.decoder = FlowDecoder(config.flow_decoder, take)
        self.backend: FlowBackend = HostBackend(self.encoder, self.decoder)
        """A CPU's. Call `use_device_pages` on any other device."""

    @classmethod
    def from_state(cls, config: ModelConfig, state: State, weights: Weights = "float") -> Self:
        """Reads the keys of `flow.pt` (specification 2.2); ValueError lists all missing, unexpected or mis-shaped.

        `weights`: "int8" multiplies most of the estimator in int8, on a CPU; keys and values keep the state's dtype.
        """
        take = FlowReader(state)
        flow = cls(config, take)
        take.finish(FLOW_FILE)
        if weights == "int8":
            if flow.encoder.tokens.device.type != "cpu":
                raise ValueError("int8 weights are for a CPU: leave weights at float on an accelerator")
            flow.encoder.quantize()
            flow.decoder.estimator.quantize()
            flow.backend = HostBackend(flow.encoder, flow.decoder)
        return flow

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.tokens.dtype

    @torch.inference_mode()
    def use_device_pages(self, n_bytes: int) -> None:
        """Keep what streams and voices have seen in a pool of `n_bytes` on the device, and run streams in batches.

        Call it before any voice is made. Raises EngineUnavailable if not even a second of speech fits into `n_bytes`,
        or if the device does not have as much memory.
        """
        estimator = self.decoder.estimator
        n_steps, size = self.decoder.n_steps, estimator.time_1.weight.element_size()
        second_nbytes = page_nbytes(self.encoder.layout(), estimator.layout(), n_steps, size)
        if n_bytes < 2 * second_nbytes:
            raise EngineUnavailable(
                f"{n_bytes >> 20} MB are too few for cosyvoice2's flow, in which a second of speech or a voice takes "
                f"{second_nbytes / 2**20:.1f} MB; give it more (engines.cosyvoice2.flow_memory_mb)"
            )
        try:
            self.backend = DeviceBackend(self.encoder, self.decoder, n_bytes)
        except RuntimeError as error:
            raise EngineUnavailable(
                f"cosyvoice2's flow cannot have {n_bytes >> 20} MB of {self.encoder.tokens.device}; give it less "
                "(engines.cosyvoice2.flow_memory_mb), or free what other programs hold there"
            ) from error

    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """Warm up for up to `n_streams` streams. `check_wanted` is called between; what it raises ends the warm-up."""
        self.backend.prepare(graphs, n_streams, check_wanted)

    @torch.inference_mode()
    def begin_whole(self, prompt_tokens: Tensor, tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> FlowBlock:
        """A whole sentence from its first prompt token, in which all frames see all others.

        prompt_tokens [1, P], tokens [1, N], prompt_mel [1, 2P, 80], embedding [1, 192] -> a block whose mel is
        [1, 80, 2N]. Its encoder pass is done, no step is.
        """
        _check_prompt(prompt_tokens, prompt_mel)
        if not tokens.shape[1]:
            raise ValueError("a sentence without tokens has no frames")
        ids = torch.cat([prompt_tokens, tokens], dim=1)
        n_frames = ids.shape[1] * FRAMES_PER_TOKEN
        x = self.decoder.initial_noise(0, n_frames)
        mu = self.encoder.mu(self.encoder.encode(ids, None, WholeSequence()))
        # The condition: the prompt's mel, then zeros (specification 5, step 5).
        cond = F.pad(prompt_mel.to(mu.dtype), (0, 0, 0, n_frames - prompt_mel.shape[1]))
        spk = self.encoder.speaker(embedding)
        return FlowBlock(x, mu, spk, cond, self.decoder.n_steps, past=None, n_hidden=prompt_mel.shape[1])

    @torch.inference_mode()
    def begin_prompt(self, prompt_tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> FlowBlock:
        """A voice's shared part: prompt_tokens [1, P], prompt_mel [1, 2P, 80], embedding [1, 192]; P may be 0.

        The block is done at once if the prompt has no whole block to share. Raises EngineError if the memory is full.
        """
        _check_prompt(prompt_tokens, prompt_mel)
        n = max(0, prompt_tokens.shape[1] - LOOKAHEAD_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
        mel = prompt_mel.to(self.dtype)
        prompt = FlowPrompt(
            spk=self.encoder.speaker(embedding),
            tail_tokens=prompt_tokens[:, n:].clone(),
            tail_mel=mel[:, n * FRAMES_PER_TOKEN :].clone(),
            table=PageTable(),
        )
        ids, mel = prompt_tokens[0, : n + LOOKAHEAD_TOKENS], mel[:, : n * FRAMES_PER_TOKEN]
        (block,) = self._begin([BlockInput(prompt.table, prompt.spk, ids, (), mel, n, is_last=False)])
        block.voice = prompt
        return block

    def start(self, prompt: FlowPrompt, seed: int = 0) -> FlowStream:
        """A new utterance. Nothing is computed and nothing of the prompt is copied. The noise depends on no seed."""
        return FlowStream(prompt, prompt.table.fork(), prompt.tail_tokens, self.decoder.n_steps)

    @torch.inference_mode()
    def begin(self, requests: Sequence[BlockRequest]) -> list[FlowBlock]:
        """The next block of each of these streams. The encoder pass of each block is done, no Euler step is.

        Two blocks of a stream may be under way, but the second is always a step or more behind the first: a step sees
        the frames before as the same step has made them. If this raises, nothing has changed for any stream.

        Raises ValueError for a stream that is given twice or is finished, for a third block under way, for a block that
        does not end on a multiple of 25 tokens, for a wrong number of tokens ahead, and for more frames than there is
        noise. Raises EngineError if the memory is full.
        """
        if len({id(request.stream) for request in requests}) < len(requests):
            raise ValueError("two blocks of a stream begin one after the other")
        for request in requests:
            _check_request(request)
        blocks = self._begin([_input_of(request) for request in requests])
        for request, block in zip(requests, blocks, strict=True):
            n_frames = len(request.new) * FRAMES_PER_TOKEN
            block.join_stream(
                request.stream, block.x.shape[1] - n_frames, len(request.new), is_last=request.ahead is None
            )
        return blocks

    @torch.inference_mode()
    def step(self, blocks: Sequence[FlowBlock], on_failure: OnFailure | None = None) -> None:
        """One Euler step of each block, wherever it stands.

        A failed batch is tried again block by block. `on_failure` is called with the index of each block that fails
        alone, and with its error; without `on_failure`, the first error is raised at the end. The stream of such a
        block is finished. All other blocks take exactly one step.

        Raises ValueError, and does nothing, for a block that is done or given twice, and for a block that would
        overtake the one before it. On a CPU two blocks of one stream may be stepped from two threads at once; a device
        has one thread.
        """
        if len({id(block) for block in blocks}) < len(blocks):
            raise ValueError("a block cannot take two steps at once")
        for block in blocks:
            if block.done:
                raise ValueError("the block is done")
            if not (block.may_step or block.failed):
                raise ValueError("the block before it has not gone further: step that one first")
        raised: list[Exception] = []

        def report(block: FlowBlock, error: Exception) -> None:
            # Before `fail`: the error that another thread then gets for the stream's other block must not come first.
            if on_failure is not None:
                on_failure(blocks.index(block), error)
            elif not raised:
                raised.append(error)
            block.fail()

        batches = self.backend.step_batches(blocks)
        batched = {id(block) for batch in batches for block in batch}
        batches += [[block] for block in blocks if id(block) not in batched]
        for batch in batches:
            isolated(batch, self._step_batch, report)
        if raised:
            raise raised.pop()  # popped, so that error and frame do not keep each other alive

    def _step_batch(self, blocks: Sequence[FlowBlock]) -> Sequence[Never]:
        """If it raises, no block has changed."""
        if any(block.failed for block in blocks):
            raise ValueError("a step of the block has failed")
        if blocks[0].past is None:
            (block,) = blocks
            block.x = self.decoder.step(block.k, block.x, block.mu, block.spk, block.cond, WholeSequence())
            block.k += 1
        else:
            self.backend.step(blocks)
        for block in blocks:
            block.note_step()
        return ()

    def _begin(self, inputs: Sequence[BlockInput]) -> list[FlowBlock]:
        """Blocks of different streams or voices. Nothing changes before everything is computed."""
        for each in inputs:
            check_length((each.table.n_tokens + each.n_tokens) * FRAMES_PER_TOKEN)
        new = [self.backend.take(each.table, each.n_tokens, is_last=each.is_last) for each in inputs]
        batches: dict[Hashable, list[int]] = {}
        for i, each in enumerate(inputs):
            if each.n_tokens:
                batches.setdefault(self.backend.encoder_batch_key(each), []).append(i)
        mus: dict[int, Tensor] = {}
        for members in batches.values():
            batch = [inputs[i] for i in members]
            ids = _ids(batch, self.encoder.tokens.device)
            encoded = self.backend.encode(batch, [new[i] for i in members], ids)
            mus.update(zip(members, torch.split(encoded, 1), strict=True))
        # The rest follows while a device encodes. The noise is counted from the encoder's tokens: the steps of the
        # block before may still be on their way.
        x = [
            self.decoder.initial_noise(each.table.n_tokens * FRAMES_PER_TOKEN, each.n_tokens * FRAMES_PER_TOKEN)
            for each in inputs
        ]
        mu, cond = list(x), list(x)  # of blocks without tokens, which have no frames
        for members in batches.values():
            conditions = torch.split(_conditions([inputs[i] for i in members]), 1)
            for i, condition in zip(members, conditions, strict=True):
                mu[i], cond[i] = mus[i], condition
        blocks, n_steps = [], self.decoder.n_steps
        for i, each in enumerate(inputs):
            k = 0 if each.n_tokens else n_steps
            blocks.append(FlowBlock(x[i], mu[i], each.spk, cond[i], n_steps, each.table.pages, new[i], k))
            each.table.append(new[i])
        return blocks


def _check_request(request: BlockRequest) -> None:
    """Raises ValueError if the block cannot come next."""
    stream, n = request.stream, len(request.new)
    if stream.n_open >= MAX_OPEN_BLOCKS and not stream.finished:
        raise ValueError(f"{MAX_OPEN_BLOCKS} blocks of the stream are under way: step the first until it is done")
    if stream.finished:
        raise ValueError("the stream is finished")
    if request.ahead is None:
        if (stream.n_emitted or stream.n_open) and n < LOOKAHEAD_TOKENS:
            raise ValueError(f"{n} tokens left, but {LOOKAHEAD_TOKENS} were looked ahead at")
        return
    n_before = stream.table.n_tokens + stream.tail_tokens.shape[1]
    if n < 1 or (n_before + n) % BLOCK_TOKENS:
        raise ValueError(f"{n} tokens after {n_before} do not end on a block of {BLOCK_TOKENS}")
    if len(request.ahead) != LOOKAHEAD_TOKENS:
        raise ValueError(f"{len(request.ahead)} lookahead tokens, not {LOOKAHEAD_TOKENS}")


def _input_of(request: BlockRequest) -> BlockInput:
    """With the prompt's tail if it is the first block. A stream that ends without a token has no frames at all."""
    stream, ahead = request.stream, request.ahead
    tail = stream.tail_tokens[0] if request.new else stream.tail_tokens[0, :0]
    return BlockInput(
        stream.table,
        stream.prompt.spk,
        prompt_ids=tail,
        new_ids=(*request.new, *(ahead or ())),
        mel=stream.prompt.tail_mel[:, : len(tail) * FRAMES_PER_TOKEN],
        n_tokens=len(tail) + len(request.new),
        is_last=ahead is None,
    )


def _ids(batch: Sequence[BlockInput], device: torch.device) -> Tensor:
    """The ids of blocks of equal length, and the 3 ids ahead unless they are the last blocks."""
    new_ids = [item for each in batch for item in each.new_ids]
    parts = [each.prompt_ids for each in batch]
    if new_ids:
        # One transfer for all streams.
        on_device = torch.split(sent(new_ids, device), [len(each.new_ids) for each in batch])
        parts = [part for pair in zip(parts, on_device, strict=True) for part in pair]
    return torch.cat(parts).view(len(batch), -1)


def _conditions(batch: Sequence[BlockInput]) -> Tensor:
    """[S, F, 80]: the prompt's mel, then zeros (specification 5, step 5)."""
    n_frames, mels = batch[0].n_tokens * FRAMES_PER_TOKEN, [each.mel[0] for each in batch]
    zeros = mels[0].new_zeros(n_frames, mels[0].shape[1])
    parts = [part for mel in mels for part in (mel, zeros[len(mel) :])]
    return torch.cat(parts).view(len(batch), n_frames, -1)


def _check_prompt(prompt_tokens: Tensor, prompt_mel: Tensor) -> None:
    n_frames = prompt_tokens.shape[1] * FRAMES_PER_TOKEN
    if prompt_mel.shape[1] != n_frames:
        raise ValueError(f"{prompt_mel.shape[1]} frames of prompt mel; its tokens make {n_frames}")
