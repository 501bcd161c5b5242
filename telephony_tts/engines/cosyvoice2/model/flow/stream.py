"""What a voice and an utterance hold of the flow, and the blocks under way (specification 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.flow.cache import Cache, nbytes
from telephony_tts.engines.cosyvoice2.model.flow.decoder import Trajectory
from telephony_tts.engines.cosyvoice2.model.flow.encoder_pages import PagedCache
from telephony_tts.engines.cosyvoice2.model.flow.pages import Past

MOST_OPEN = 2
"""Blocks of a stream that may be under way at once: as many as two lanes can use, and each holds its frames."""


@dataclass(frozen=True, slots=True)
class FlowPrompt:
    """A voice, ready to speak; read-only and shared. The caches hold its first `encoder.n` tokens."""

    spk: Tensor
    """[1, 80]"""
    tail_tokens: Tensor
    """[1, P - encoder.n] prompt tokens that go with a stream's first chunk"""
    tail_mel: Tensor
    """[1, 2 * (P - encoder.n), 80]"""
    encoder: Cache | PagedCache
    steps: tuple[Cache | Past, ...]

    def nbytes(self) -> int:
        return nbytes([self.encoder, *self.steps])


@dataclass(slots=True)
class FlowStream:
    """One utterance. It belongs to one caller; dropping it frees what `nbytes` counts, the prompt's part stays."""

    prompt: FlowPrompt
    encoder: Cache | PagedCache
    steps: list[Cache | Past]
    tail_tokens: Tensor
    """[1, n] of the prompt, empty after the first chunk"""
    n_emitted: int = 0
    """Tokens whose frames have been given out."""
    finished: bool = False
    failed: bool = False
    """Its steps hold different frames: nothing goes on from there."""
    steps_done: list[int] = field(default_factory=list)
    """Of each block that was begun; each goes no further than the one before it has gone."""

    @property
    def n_open(self) -> int:
        """Blocks under way."""
        return sum(k < len(self.steps) for k in self.steps_done[-MOST_OPEN:])

    def nbytes(self) -> int:
        """Bytes of its own, without those of the prompt it shares."""
        return nbytes([self.encoder, *self.steps])


@dataclass(slots=True, eq=False)
class Solve(Trajectory):
    """One block under way, of a stream or of a voice's prompt. Dropping it and its stream frees all they hold."""

    n_hidden: int = 0
    """Frames at its beginning that are the prompt's and are given to nobody."""
    n_tokens: int = 0
    stream: FlowStream | None = None
    index: int = 0
    """Among the stream's blocks."""
    voice: FlowPrompt | None = None
    stopped: bool = False
    """A step of it has failed."""

    def mel(self) -> Tensor:
        """[1, 80, 2n] float32. Raises ValueError before it is done."""
        self._check_done()
        return self.x[:, self.n_hidden :].transpose(1, 2)

    def prompt(self) -> FlowPrompt:
        """What `begin_prompt` was asked for. Raises ValueError before it is done."""
        self._check_done()
        if self.voice is None:
            raise ValueError("a stream's block makes no prompt: ask what begin_prompt gave")
        return self.voice

    @property
    def failed(self) -> bool:
        """It goes no further."""
        return self.stopped or (self.stream is not None and self.stream.failed)

    @property
    def may_step(self) -> bool:
        """Whether the next step has what it sees: that of the block before it."""
        if self.done or self.failed:
            return False
        return self.stream is None or self.index == 0 or self.stream.steps_done[self.index - 1] > self.k

    def follows(self, stream: FlowStream, n_hidden: int, n_tokens: int, *, is_last: bool) -> None:
        """It is the stream's next block: `n_hidden` frames of the prompt, and those of `n_tokens` new tokens."""
        stream.finished = is_last
        stream.tail_tokens = stream.tail_tokens[:, :0]
        self.stream, self.n_hidden, self.n_tokens = stream, n_hidden, n_tokens
        self.index = len(stream.steps_done)
        stream.steps_done.append(self.k)

    def stepped(self) -> None:
        """Steps were made: tell the stream, which may end with this block done."""
        if self.stream is not None:
            self.stream.steps_done[self.index] = self.k
            if self.done:
                self.stream.n_emitted += self.n_tokens

    def fail(self) -> None:
        """It goes no further, and neither does its stream: the steps hold different frames."""
        self.stopped = True
        if self.stream is not None:
            self.stream.finished = self.stream.failed = True

    def _check_done(self) -> None:
        if not self.done:
            raise ValueError(f"{self.k} of {self.n_steps} steps are done")
