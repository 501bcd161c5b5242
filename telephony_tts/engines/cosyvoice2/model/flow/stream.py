"""The state of the flow for a voice and for an utterance, and the blocks under way (specification 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import MAX_OPEN_BLOCKS
from telephony_tts.engines.cosyvoice2.model.flow.page_table import KeptPage, PageTable


@dataclass(frozen=True, slots=True)
class FlowPrompt:
    """A voice that is ready to speak. All of its streams share it, and none of them writes to it.

    In `whole_flow` the whole prompt is its tail, and its mel has a number of frames of its own.
    """

    spk: Tensor
    """[1, 80]"""
    tail_tokens: Tensor
    """[1, P - table.n_tokens]: prompt tokens that each stream computes with its first block."""
    tail_mel: Tensor
    """[1, 2 * (P - table.n_tokens), 80]"""
    table: PageTable
    """The prompt's whole blocks."""


@dataclass(slots=True)
class FlowStream:
    """One utterance. Dropping it and its blocks frees its own pages; the prompt's pages stay."""

    prompt: FlowPrompt
    table: PageTable
    tail_tokens: Tensor
    """[1, n]: tokens of the prompt for the first block; empty after it."""
    n_steps: int
    n_emitted: int = 0
    """Tokens of the blocks that are done."""
    finished: bool = False
    """No further block can begin: the last one has begun, or a step has failed."""
    failed: bool = False
    """A step has failed. Its kept keys and values do not match any more, so the stream cannot go on."""
    steps_done: list[int] = field(default_factory=list)
    """Euler steps of each block that was begun. A block takes step k only after the block before has taken it."""
    seed: int = 0
    """Of the noise of `whole_flow`; CosyVoice2's noise is the same for all."""

    @property
    def n_open(self) -> int:
        """Blocks under way."""
        return sum(k < self.n_steps for k in self.steps_done[-MAX_OPEN_BLOCKS:])


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """The next block of a stream: its ids, and the three ids after them. `ahead` is None for the last block."""

    stream: FlowStream
    new: Sequence[int]
    ahead: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class BlockInput:
    """A block of a stream or of a voice, as the encoder is given it."""

    table: PageTable
    spk: Tensor
    """[1, 80]"""
    prompt_ids: Tensor
    """int64 [m] on the flow's device: the block's first ids."""
    new_ids: Sequence[int]
    """The ids after them. Without `is_last`, the last three of all ids are only looked ahead at."""
    mel: Tensor
    """[1, F, 80]: the prompt's mel, for the block's first frames."""
    n_tokens: int
    is_last: bool


@dataclass(slots=True, eq=False)
class FlowBlock:
    """One block under way from noise to mel, of a stream or of a voice: `k` of its Euler steps are done."""

    x: Tensor
    """[1, T, 80] float32, so that it is not rounded to half precision ten times on its way."""
    mu: Tensor
    """[1, T, 80]; like `spk` [1, 80] and `cond` [1, T, 80] in the weights' dtype"""
    spk: Tensor
    cond: Tensor
    n_steps: int
    past: tuple[KeptPage, ...] | None
    """Pages of the tokens before. None: the block is a whole sentence, and all of its frames see all others."""
    new: tuple[KeptPage, ...] = ()
    """Pages that each step fills. Empty on a device for the last block, because nothing will read them."""
    k: int = 0
    n_hidden: int = 0
    """Frames at its beginning that belong to the prompt and are not part of the mel."""
    n_tokens: int = 0
    """New tokens of the stream, without those of the prompt."""
    stream: FlowStream | None = None
    index: int = 0
    """Its number among the stream's blocks."""
    voice: FlowPrompt | None = None
    """The voice that becomes ready when the block is done."""
    step_failed: bool = False
    """A step of it has failed."""
    step_rows: Any = None
    """What `DeviceBackend` keeps from step to step: where its pages lie."""

    @property
    def done(self) -> bool:
        return self.k == self.n_steps

    def mel(self) -> Tensor:
        """[1, 80, 2n] float32. Raises ValueError before the block is done."""
        self._check_done()
        return self.x[:, self.n_hidden :].transpose(1, 2)

    def prompt(self) -> FlowPrompt:
        """The voice of `Flow.begin_prompt`. Raises ValueError before the block is done."""
        self._check_done()
        if self.voice is None:
            raise ValueError("a stream's block makes no prompt: call prompt() on the block of begin_prompt")
        return self.voice

    @property
    def failed(self) -> bool:
        """It cannot go on."""
        return self.step_failed or (self.stream is not None and self.stream.failed)

    @property
    def may_step(self) -> bool:
        """Whether the next step can run: the block before has taken it, so its frames are there to be seen."""
        if self.done or self.failed:
            return False
        return self.stream is None or self.index == 0 or self.stream.steps_done[self.index - 1] > self.k

    def join_stream(self, stream: FlowStream, n_hidden: int, n_tokens: int, *, is_last: bool) -> None:
        """Make it the stream's next block: `n_hidden` frames of the prompt, then those of `n_tokens` new tokens."""
        stream.finished = is_last
        stream.tail_tokens = stream.tail_tokens[:, :0]
        self.stream, self.n_hidden, self.n_tokens = stream, n_hidden, n_tokens
        self.index = len(stream.steps_done)
        stream.steps_done.append(self.k)

    def note_step(self) -> None:
        """Call after each step: tells the stream how far the block is."""
        if self.stream is not None:
            self.stream.steps_done[self.index] = self.k
            if self.done:
                self.stream.n_emitted += self.n_tokens
        if self.done:
            # What was replaced or not shared is free, even if the frames are kept.
            self.past, self.new = (), ()

    def fail(self) -> None:
        """Neither it nor its stream can go on: the steps have seen different frames."""
        self.step_failed = True
        if self.stream is not None:
            self.stream.finished = self.stream.failed = True

    def _check_done(self) -> None:
        if not self.done:
            raise ValueError(f"{self.k} of {self.n_steps} steps are done")
