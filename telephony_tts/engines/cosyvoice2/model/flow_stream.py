"""What a voice and an utterance hold of the flow, and the blocks under way (specification 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .flow_cache import Cache, nbytes
from .flow_decoder import Trajectory

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
    solves: list[Solve] = field(default_factory=list)
    """Blocks under way, the oldest first; each may go as far as the one before it has gone."""

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
    voice: FlowPrompt | None = None
    failed: bool = False

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
    def may_step(self) -> bool:
        """Whether the next step has what it sees: that of the block before it."""
        if self.done or self.failed:
            return False
        before = self._before()
        return before is None or before.k > self.k

    def fail(self) -> None:
        """It goes no further, and neither does its stream: the steps hold different frames."""
        self.failed = True
        if self.stream is not None:
            self.stream.finished = True
            for solve in self.stream.solves:
                solve.failed = True

    def _before(self) -> Solve | None:
        """The block before it, if that is under way too."""
        before = None
        for solve in () if self.stream is None else tuple(self.stream.solves):
            if solve is self:
                return before
            before = solve
        return None

    def _check_done(self) -> None:
        if not self.done:
            raise ValueError(f"{self.k} of {self.n_steps} steps are done")
