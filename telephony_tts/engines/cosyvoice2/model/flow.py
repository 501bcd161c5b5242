"""Flow: speech tokens to mel, whole or as a stream (specification 5, 8).

Two ways to the same frames. `full` recomputes everything from the first prompt token, as the reference does. A
`FlowStream` keeps what earlier blocks left behind and computes new frames only; on block boundaries (prompt and emitted
tokens together a multiple of 25) its chunks equal `full(..., streaming=True)` up to the order of float32 sums.

    prompt = flow.prompt(tokens, mel, embedding)     once per voice
    stream = flow.start(prompt)                      once per utterance
    mel = flow.extend(stream, new, lookahead)        at block ends; lookahead: the next 3 tokens, given again later
    mel = flow.finish(stream, rest)                  the rest, block-causally

What depends on the voice alone is the prompt's blocks that see no generated token, floor((P - 3) / 25) of them: these a
`FlowPrompt` holds, read-only, for all its streams. The rest of the prompt goes through the flow with the first chunk.
The reference's last chunk is another function, in which all frames see all others: `full(..., streaming=False)`.

`before_step` is called before each Euler step: it may raise, which ends the work there and the stream with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import BLOCK_FRAMES, BLOCK_TOKENS, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS, ModelConfig
from .flow_cache import Cache, nbytes
from .flow_decoder import BeforeStep, FlowDecoder, nothing
from .flow_encoder import FlowEncoder
from .flow_layers import Reader

GROWTH_FRAMES = 4 * BLOCK_FRAMES
"""How much a stream's buffers grow at a time. Half of it is spare on average: at full size in float16 230 MB (2 s)."""


@dataclass(frozen=True, slots=True)
class FlowPrompt:
    """A voice, ready to speak; read-only and shared. The caches hold its first `encoder.n` tokens."""

    spk: Tensor
    """[1, 80]"""
    tail_tokens: Tensor
    """[1, P - encoder.n] prompt tokens that go with a stream's first chunk"""
    tail_mel: Tensor
    """[1, 2 * (P - encoder.n), 80]"""
    encoder: Cache
    steps: tuple[Cache, ...]

    def nbytes(self) -> int:
        return nbytes([self.encoder, *self.steps])


@dataclass(slots=True)
class FlowStream:
    """One utterance. It belongs to one caller; dropping it frees what `nbytes` counts, the prompt's part stays."""

    prompt: FlowPrompt
    encoder: Cache
    steps: list[Cache]
    tail_tokens: Tensor
    """[1, n] of the prompt, empty after the first chunk"""
    n_emitted: int = 0
    """Tokens whose frames have been given out."""
    finished: bool = False

    def nbytes(self) -> int:
        """Bytes of its own, without those of the prompt it shares."""
        return nbytes([self.encoder, *self.steps])


class Flow:
    def __init__(self, config: ModelConfig, take: Reader) -> None:
        self.encoder = FlowEncoder(config.flow_encoder, take)
        self.decoder = FlowDecoder(config.flow_decoder, take)

    @classmethod
    def from_state(cls, config: ModelConfig, state: Mapping[str, Tensor]) -> Self:
        """Reads the keys of `flow.pt` (specification 2.2); ValueError lists all missing, unexpected or mis-shaped."""
        take = Reader(state)
        flow = cls(config, take)
        take.finish()
        return flow

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.tokens.dtype

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
        mel = self.decoder.solve(x, mu, spk, cond, streaming=streaming, before_step=before_step)
        return mel[:, n_prompt:].transpose(1, 2)

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
        _check_prompt(prompt_tokens, prompt_mel)
        most = max(0, prompt_tokens.shape[1] - LOOKAHEAD_TOKENS) // BLOCK_TOKENS
        n = min(most, most if n_blocks is None else n_blocks) * BLOCK_TOKENS
        encoder, steps = self.encoder.cache(growth_frames=0), self.decoder.caches(growth_frames=0)
        spk = self.encoder.speaker(embedding)
        cond = prompt_mel.to(self.dtype)
        if n:
            ahead = prompt_tokens[:, n : n + LOOKAHEAD_TOKENS]
            known = cond[:, : n * FRAMES_PER_TOKEN]
            self._advance(encoder, steps, prompt_tokens[:, :n], ahead, spk, known, before_step)
        return FlowPrompt(
            spk=spk,
            tail_tokens=prompt_tokens[:, n:].clone(),
            tail_mel=cond[:, n * FRAMES_PER_TOKEN :].clone(),
            encoder=encoder,
            steps=tuple(steps),
        )

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
        _check_open(stream)
        if new.shape[1] < 1 or new.shape[1] != self.tokens_to_block_end(stream, new.shape[1]):
            at = stream.encoder.n + stream.tail_tokens.shape[1]
            raise ValueError(f"{new.shape[1]} tokens after {at} do not end on a block of {BLOCK_TOKENS}")
        if lookahead.shape[1] != LOOKAHEAD_TOKENS:
            raise ValueError(f"{lookahead.shape[1]} lookahead tokens, not {LOOKAHEAD_TOKENS}")
        return self._emit(stream, new, lookahead, before_step)

    @torch.inference_mode()
    def finish(self, stream: FlowStream, rest: Tensor, before_step: BeforeStep = nothing) -> Tensor:
        """rest [1, n], n of any size -> mel [1, 80, 2n]; block-causal, equal to `full(streaming=True, finalize=True)`.

        `rest` begins with the tokens the last `extend` looked ahead at, so it has 3 or more unless nothing was emitted.
        """
        _check_open(stream)
        if stream.n_emitted and rest.shape[1] < LOOKAHEAD_TOKENS:
            raise ValueError(f"{rest.shape[1]} tokens left, but {LOOKAHEAD_TOKENS} were looked ahead at")
        stream.finished = True
        if rest.shape[1] == 0:
            return torch.zeros(1, self.decoder.config.d_mel, 0, device=rest.device)
        return self._emit(stream, rest, None, before_step)

    def _emit(self, stream: FlowStream, new: Tensor, ahead: Tensor | None, before_step: BeforeStep) -> Tensor:
        ids = torch.cat([stream.tail_tokens, new], dim=1)
        n_tail = stream.tail_tokens.shape[1] * FRAMES_PER_TOKEN
        tail_mel = stream.prompt.tail_mel[:, :n_tail]
        cond = _followed_by_zeros(tail_mel, ids.shape[1] * FRAMES_PER_TOKEN)
        try:
            mel = self._advance(stream.encoder, stream.steps, ids, ahead, stream.prompt.spk, cond, before_step)
        except BaseException:
            stream.finished = True  # its steps may hold different frames
            raise
        stream.tail_tokens = stream.tail_tokens[:, :0]
        stream.n_emitted += new.shape[1]
        return mel[:, n_tail:].transpose(1, 2)

    def _advance(
        self,
        encoder: Cache,
        steps: list[Cache],
        ids: Tensor,
        ahead: Tensor | None,
        spk: Tensor,
        cond: Tensor,
        before_step: BeforeStep = nothing,
    ) -> Tensor:
        """ids [1, n], cond [1, 2n, 80] after what the caches hold -> mel [1, 2n, 80]."""
        x = self.decoder.start(steps[0].n, cond.shape[1])
        mu = self.encoder.mu(self.encoder.encode(ids, ahead, streaming=True, cache=encoder))
        return self.decoder.solve(x, mu, spk, cond, streaming=True, caches=steps, before_step=before_step)


def _followed_by_zeros(mel: Tensor, n_frames: int) -> Tensor:
    """The condition: prompt mel [1, F, 80], then nothing -> [1, n_frames, 80] (specification 5, step 5)."""
    return F.pad(mel, (0, 0, 0, n_frames - mel.shape[1]))


def _check_prompt(prompt_tokens: Tensor, prompt_mel: Tensor) -> None:
    n_frames = prompt_tokens.shape[1] * FRAMES_PER_TOKEN
    if prompt_mel.shape[1] != n_frames:
        raise ValueError(f"{prompt_mel.shape[1]} frames of prompt mel; its tokens make {n_frames}")


def _check_open(stream: FlowStream) -> None:
    if stream.finished:
        raise ValueError("the stream is finished")
