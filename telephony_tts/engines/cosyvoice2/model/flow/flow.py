"""Flow: speech tokens to mel, whole or as a stream (specification 5, 8).

Two ways to the same frames. `full` recomputes everything from the first prompt token, as the reference does. A
`FlowStream` keeps what earlier blocks left behind and computes new frames only; on block boundaries (prompt and emitted
tokens together a multiple of 25) its chunks equal `full(..., streaming=True)` up to the order of float32 sums.

    prompt = flow.prompt(tokens, mel, embedding)     once per voice
    stream = flow.start(prompt)                      once per utterance
    mel = flow.extend(stream, new, lookahead)        at block ends; lookahead: the next 3 tokens, given again later
    mel = flow.finish(stream, rest)                  the rest, block-causally

Each of these is also to be had in pieces, so that many streams can take turns:

    solve = flow.begin(stream, new, lookahead)       the encoder, and the noise the block begins with; None at the end
    flow.step([solve, ...])                          one Euler step of each, until solve.done
    mel = solve.mel()

What depends on the voice alone is the prompt's blocks that see no generated token, floor((P - 3) / 25) of them: these a
`FlowPrompt` holds, read-only, for all its streams. The rest of the prompt goes through the flow with the first chunk.
The reference's last chunk is another function, in which all frames see all others: `full(..., streaming=False)`.

`before_step` is called before each Euler step: it may raise, which ends the work there and the stream with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_FRAMES,
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    ModelConfig,
)
from telephony_tts.engines.cosyvoice2.model.flow.batch import FlowBatches
from telephony_tts.engines.cosyvoice2.model.flow.cache import Cache
from telephony_tts.engines.cosyvoice2.model.flow.decoder import BeforeStep, FlowDecoder, Trajectory, nothing
from telephony_tts.engines.cosyvoice2.model.flow.encoder import FlowEncoder
from telephony_tts.engines.cosyvoice2.model.flow.encoder_pages import PagedCache
from telephony_tts.engines.cosyvoice2.model.flow.layers import Reader
from telephony_tts.engines.cosyvoice2.model.flow.pages import Page, Past
from telephony_tts.engines.cosyvoice2.model.flow.stream import MOST_OPEN, FlowPrompt, FlowStream, Solve
from telephony_tts.errors import EngineUnavailable

Weights = Literal["float", "int8"]
GROWTH_FRAMES = 4 * BLOCK_FRAMES
"""How much a stream's buffers grow at a time on an accelerator, where half of it is spare on average (at full size in
float16 230 MB, 2 s), and how much is in one piece on a CPU, where nothing is spare."""


class Flow:
    def __init__(self, config: ModelConfig, take: Reader) -> None:
        self.encoder = FlowEncoder(config.flow_encoder, take)
        self.decoder = FlowDecoder(config.flow_decoder, take)
        self.batches: FlowBatches | None = None
        """How `step` makes one batch of many blocks, see `use_pages`. None: each goes by itself, and comes out the same
        to the bit whoever else is there."""

    @classmethod
    def from_state(cls, config: ModelConfig, state: Mapping[str, Tensor], weights: Weights = "float") -> Self:
        """Reads the keys of `flow.pt` (specification 2.2); ValueError lists all missing, unexpected or mis-shaped.

        `weights`: "int8" multiplies most of the estimator in int8, on a CPU; keys and values keep the state's dtype.
        """
        take = Reader(state)
        flow = cls(config, take)
        take.finish("flow.pt")
        if weights == "int8":
            if flow.encoder.tokens.device.type != "cpu":
                raise ValueError("int8 weights are for a CPU: leave weights at float on an accelerator")
            flow.decoder.estimator.quantize()
        return flow

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.tokens.dtype

    @torch.inference_mode()
    def use_pages(self, n_bytes: int) -> None:
        """From now on what prompts and streams keep of the estimator lies in pages of `n_bytes`, and `step` takes all
        of them as one batch: an accelerator is as fast with many rows as with few. A CPU gains nothing by it.

        Before any prompt is made. Raises EngineUnavailable where not even a second of speech fits, or the device does
        not have as much.
        """
        of_a_second = self.decoder.estimator.page_nbytes() * len(self.decoder.times)
        if n_bytes < 2 * of_a_second:
            raise EngineUnavailable(
                f"{n_bytes >> 20} MB are too few for cosyvoice2's flow, in which a second of speech or a voice takes "
                f"{of_a_second / 2**20:.1f} MB; give it more (engines.cosyvoice2.flow_memory_mb)"
            )
        try:
            self.batches = FlowBatches(self.decoder, n_bytes)
        except RuntimeError as error:
            raise EngineUnavailable(
                f"cosyvoice2's flow cannot have {n_bytes >> 20} MB of {self.encoder.tokens.device}; give it less "
                "(engines.cosyvoice2.flow_memory_mb), or free what other programs hold there"
            ) from error

    @torch.inference_mode()
    def full(
        self,
        prompt_tokens: Tensor,
        tokens: Tensor,
        prompt_mel: Tensor,
        embedding: Tensor,
        *,
        streaming: bool,
        finalize: bool,
        before_step: BeforeStep = nothing,
    ) -> Tensor:
        """Everything from the first prompt token on, as the reference computes it.

        prompt_tokens [1, P], tokens [1, N], prompt_mel [1, 2P, 80], embedding [1, 192] -> mel [1, 80, 2N], float32; not
        finalize: mel [1, 80, 2 (N - 3)], the last 3 tokens are only looked ahead at. `streaming` chooses the masks:
        block-causal, or all frames see all.
        """
        return self._run(
            self.begin_full(
                prompt_tokens, tokens, prompt_mel, embedding, streaming=streaming, finalize=finalize
            ),
            before_step,
        ).mel()

    @torch.inference_mode()
    def begin_full(
        self,
        prompt_tokens: Tensor,
        tokens: Tensor,
        prompt_mel: Tensor,
        embedding: Tensor,
        *,
        streaming: bool,
        finalize: bool,
    ) -> Solve:
        """What `full` computes, in steps."""
        _check_prompt(prompt_tokens, prompt_mel)
        ids, ahead = torch.cat([prompt_tokens, tokens], dim=1), None
        if not finalize:
            ids, ahead = ids[:, :-LOOKAHEAD_TOKENS], ids[:, -LOOKAHEAD_TOKENS:]
        n_prompt = prompt_mel.shape[1]
        n_frames = ids.shape[1] * FRAMES_PER_TOKEN
        if n_frames <= n_prompt:
            raise ValueError(f"{tokens.shape[1]} tokens are too few: 1, and 3 to look ahead at unless it is the end")
        x = self.decoder.start(0, n_frames)
        mu = self.encoder.mu(self.encoder.encode(ids, ahead, streaming=streaming))
        cond = _followed_by_zeros(prompt_mel.to(mu.dtype), n_frames)
        spk = self.encoder.speaker(embedding)
        n_steps = len(self.decoder.times)
        return Solve(x, mu, spk, cond, n_steps, caches=None, streaming=streaming, n_hidden=n_prompt)

    @torch.inference_mode()
    def prompt(
        self,
        prompt_tokens: Tensor,
        prompt_mel: Tensor,
        embedding: Tensor,
        *,
        n_blocks: int | None = None,
        before_step: BeforeStep = nothing,
    ) -> FlowPrompt:
        """Computes a voice's shared part: prompt_tokens [1, P], prompt_mel [1, 2P, 80], embedding [1, 192]; P may be 0.

        `n_blocks` is for holding fewer blocks than the prompt has (0: every stream computes the whole prompt).
        """
        solve = self.begin_prompt(prompt_tokens, prompt_mel, embedding, n_blocks=n_blocks)
        return self._run(solve, before_step).prompt()

    @torch.inference_mode()
    def begin_prompt(
        self, prompt_tokens: Tensor, prompt_mel: Tensor, embedding: Tensor, *, n_blocks: int | None = None
    ) -> Solve:
        """What `prompt` computes, in steps; without a whole block to hold it is done at once."""
        _check_prompt(prompt_tokens, prompt_mel)
        most = max(0, prompt_tokens.shape[1] - LOOKAHEAD_TOKENS) // BLOCK_TOKENS
        n = min(most, most if n_blocks is None else n_blocks) * BLOCK_TOKENS
        cond = prompt_mel.to(self.dtype)
        prompt = FlowPrompt(
            spk=self.encoder.speaker(embedding),
            tail_tokens=prompt_tokens[:, n:].clone(),
            tail_mel=cond[:, n * FRAMES_PER_TOKEN :].clone(),
            encoder=self.encoder.cache(growth_frames=0),
            steps=tuple(self.batches.pasts() if self.batches else self.decoder.caches(growth_frames=0)),
        )
        ids, ahead = prompt_tokens[:, :n], prompt_tokens[:, n : n + LOOKAHEAD_TOKENS]
        solve = self._begin(prompt.encoder, prompt.steps, ids, ahead, prompt.spk, cond[:, : n * FRAMES_PER_TOKEN])
        solve.voice = prompt
        return solve

    @torch.inference_mode()
    def start(self, prompt: FlowPrompt, *, growth_frames: int = GROWTH_FRAMES) -> FlowStream:
        """A new utterance. Nothing is computed, and nothing of the prompt but convolution contexts is copied."""
        return FlowStream(
            prompt=prompt,
            encoder=prompt.encoder.fork(growth_frames // FRAMES_PER_TOKEN),
            steps=[step.fork(growth_frames) for step in prompt.steps],
            tail_tokens=prompt.tail_tokens,
        )

    def tokens_to_block_end(self, stream: FlowStream, n_least: int = 1) -> int:
        """How many new tokens, `n_least` or more, take the stream to the end of a block."""
        at = stream.encoder.n + stream.tail_tokens.shape[1]
        return n_least + -(at + n_least) % BLOCK_TOKENS

    @torch.inference_mode()
    def extend(
        self, stream: FlowStream, new: Tensor, lookahead: Tensor, before_step: BeforeStep = nothing
    ) -> Tensor:
        """new [1, n] ending on a block, lookahead [1, 3] the tokens after them -> mel [1, 80, 2n], float32.

        The lookahead tokens are not kept: they are the first of the next call's.
        """
        return self._emit(stream, new, lookahead, before_step)

    @torch.inference_mode()
    def finish(self, stream: FlowStream, rest: Tensor, before_step: BeforeStep = nothing) -> Tensor:
        """rest [1, n], n of any size -> mel [1, 80, 2n]; block-causal, equal to `full(streaming=True, finalize=True)`.

        `rest` begins with the tokens the last `extend` looked ahead at, so it has 3 or more unless nothing was emitted.
        """
        return self._emit(stream, rest, None, before_step)

    @torch.inference_mode()
    def begin(self, stream: FlowStream, new: Tensor, lookahead: Tensor | None) -> Solve:
        """The block that `extend`, or without `lookahead` `finish`, computes at once: its encoder is done, no step is.

        Two blocks of a stream may be under way, the second always a step or more behind the first: what a step sees of
        the frames before is what the same step has made of them. ValueError where `extend` and `finish` raise it, and
        for a third one.
        """
        self.check(stream, new.shape[1], None if lookahead is None else lookahead.shape[1])
        ids = torch.cat([stream.tail_tokens, new], dim=1) if new.shape[1] else new
        n_hidden = (ids.shape[1] - new.shape[1]) * FRAMES_PER_TOKEN
        cond = _followed_by_zeros(stream.prompt.tail_mel[:, :n_hidden], ids.shape[1] * FRAMES_PER_TOKEN)
        try:
            solve = self._begin(stream.encoder, stream.steps, ids, lookahead, stream.prompt.spk, cond)
        except BaseException:
            stream.finished = True  # the encoder may have gone on without the steps
            raise
        solve.follows(stream, n_hidden, new.shape[1], is_last=lookahead is None)
        return solve

    @torch.inference_mode()
    def step(self, solves: Sequence[Solve]) -> None:
        """One Euler step of each, wherever each stands.

        Where one raises, its stream is finished; the others stand as they were, or one step further.
        ValueError, and nothing is done, if one of them is done or has failed, or is given twice, or if the block before
        it has not gone further. Two blocks of one stream may be stepped from two threads at once; with pages there is
        one thread.
        """
        if len({id(solve) for solve in solves}) < len(solves):
            raise ValueError("a block cannot take two steps at once")
        for solve in solves:
            if solve.done or solve.failed:
                raise ValueError("the block is done" if solve.done else "a step of the block has failed")
            if not solve.may_step:
                raise ValueError("the block before it has not gone further: step that one first")
        apart = list(solves)
        if self.batches is not None:
            for batch in self.batches.groups(solves):
                # Where a batch fails, who is to blame shows when they go one by one; none has changed so far.
                with contextlib.suppress(Exception):
                    self.batches.step(batch)
                    apart = [solve for solve in apart if solve not in batch]
                    for each in batch:
                        each.stepped()
        for solve in apart:
            try:
                self._advance(solve)
            except BaseException:
                solve.fail()
                raise
            solve.stepped()

    def _emit(self, stream: FlowStream, new: Tensor, ahead: Tensor | None, before_step: BeforeStep) -> Tensor:
        if stream.n_open:
            raise ValueError("a block of the stream is under way: step it until it is done")
        return self._run(self.begin(stream, new, ahead), before_step).mel()

    def _run(self, solve: Solve, before_step: BeforeStep) -> Solve:
        """All steps of one."""
        if solve.done:
            return solve
        try:
            for _ in range(solve.k, solve.n_steps):
                before_step()
                self._advance(solve)
        except BaseException:
            solve.fail()
            raise
        solve.stepped()
        return solve

    def _advance(self, path: Trajectory) -> None:
        """The next Euler step of one."""
        if self.batches is not None and path.caches is not None:
            self.batches.step([path])
        else:
            self.decoder.advance(path)

    def _begin(
        self,
        encoder: Cache | PagedCache,
        steps: Sequence[Cache | Past],
        ids: Tensor,
        ahead: Tensor | None,
        spk: Tensor,
        cond: Tensor,
    ) -> Solve:
        """ids [1, n], cond [1, 2n, 80] after what the caches hold. No ids are done at once."""
        n_steps = len(self.decoder.times)
        # By the encoder's count: the steps of the block before may not have seen its frames yet.
        x = self.decoder.start(encoder.n * FRAMES_PER_TOKEN, cond.shape[1])
        if not ids.shape[1]:
            return Solve(x, cond, spk, cond, n_steps, steps, k=n_steps)
        kept = self.room(x.shape[1]) if ahead is not None else []
        mu = self.encoder.mu(self.encoder.encode(ids, ahead, streaming=True, cache=encoder))
        return Solve(x, mu, spk, cond, n_steps, steps, kept=kept)

    def room(self, n_frames: int) -> list[tuple[Page, ...]]:
        """Where a block is to be kept that something may follow. All of it at once: who has begun can go on to the end
        of the block, and only newcomers are refused. Raises EngineError."""
        return self.batches.room(n_frames) if self.batches is not None else []

    def check(self, stream: FlowStream, n: int, n_ahead: int | None) -> None:
        """Whether n new tokens can come next, `n_ahead` to look ahead at, None at the end; ValueError says why not."""
        if stream.n_open >= MOST_OPEN and not stream.finished:
            raise ValueError(f"{MOST_OPEN} blocks of the stream are under way: step the first until it is done")
        if stream.finished:
            raise ValueError("the stream is finished")
        if n_ahead is None:
            if (stream.n_emitted or stream.n_open) and n < LOOKAHEAD_TOKENS:
                raise ValueError(f"{n} tokens left, but {LOOKAHEAD_TOKENS} were looked ahead at")
            return
        if n < 1 or n != self.tokens_to_block_end(stream, n):
            at = stream.encoder.n + stream.tail_tokens.shape[1]
            raise ValueError(f"{n} tokens after {at} do not end on a block of {BLOCK_TOKENS}")
        if n_ahead != LOOKAHEAD_TOKENS:
            raise ValueError(f"{n_ahead} lookahead tokens, not {LOOKAHEAD_TOKENS}")


def _followed_by_zeros(mel: Tensor, n_frames: int) -> Tensor:
    """The condition: prompt mel [1, F, 80], then nothing -> [1, n_frames, 80] (specification 5, step 5)."""
    return F.pad(mel, (0, 0, 0, n_frames - mel.shape[1]))


def _check_prompt(prompt_tokens: Tensor, prompt_mel: Tensor) -> None:
    n_frames = prompt_tokens.shape[1] * FRAMES_PER_TOKEN
    if prompt_mel.shape[1] != n_frames:
        raise ValueError(f"{prompt_mel.shape[1]} frames of prompt mel; its tokens make {n_frames}")

