"""An utterance inside the engine: its stream, what the device holds of it, and what could be computed for it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    Need,
    OwedWork,
    PendingWork,
    Stage,
    due_after_ns,
)
from telephony_tts.engines.cosyvoice2.core.stream import OpenBlock, Piece, Stream
from telephony_tts.engines.cosyvoice2.model.config import MAX_OPEN_BLOCKS
from telephony_tts.engines.cosyvoice2.settings import AheadLimits
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.runtime.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.runner import Track
    from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt

MOST_UNVOICED_BLOCKS = 2
"""A stream begins no further block while this many are in the flow or wait for the vocoder."""
N_FIRST_BLOCKS = 3
"""Blocks of a piece that go through the flow with all lanes. The second one decides when the first can be heard, and
the third one whether a gap follows. Ids are drawn beside the last step of the second one and the last two of the third
only: an id gains less from the help of other lanes than a step of the flow (docs/experiments.md)."""
NEXT_AUDIO_MARGIN = 1.15
"""The next audio is expected to take this much longer than its batches took lately."""
TOKEN_STAGES = frozenset({Stage.PREFILL, Stage.DECODE})


@dataclass(slots=True, eq=False)
class Job:
    """Guarded by the core's lock. A stage in `busy` belongs to the lane that computes it."""

    key: int
    voice: str
    stream: Stream
    deadline_ns: int
    """When the listener hears silence if the first audio has not come by then."""
    follows: bool = False
    """Whether the turn is already being heard, so that silence before this utterance is a gap."""
    can_wait: bool = False
    """Whether it is for a file and not for a caller."""
    prompt: SpeakerPrompt | None = None
    """Its voice; None until that is ready."""
    track: Track | None = None
    """What the device holds of the piece that has the slot; None until the piece is fed."""
    earlier_track: Track | None = None
    """What the device holds of `Stream.earlier`."""
    dry_ns: int | None = None
    """When the audio made so far ends for the listener. None before the first audio."""
    n_made: int = 0
    """Samples made."""
    first_audio: list[Chunk] = field(default_factory=list)
    """Its first audio, while it is held back (`may_be_heard`)."""
    n_taken: int = 0
    """Samples that the listener has taken."""
    blocks: list[OpenBlock] = field(default_factory=list)
    """The blocks of `Stream.voicing` in the flow, oldest first. A second one, in another lane, may make as many steps
    as the first has made."""
    busy: set[Stage] = field(default_factory=set)
    """Stages that lanes compute now. For the flow see `blocks`."""
    is_releasing: bool = False
    """A lane gives back its slot and what the device holds of its piece."""
    has_begun: bool = False
    """Whether the utterance has ever had a slot."""
    is_over: bool = False
    """No further work begins for the utterance: it is complete, cancelled or failed."""
    error: EngineError | None = None
    """Why it failed."""

    @property
    def due_ns(self) -> int:
        """When the listener hears silence unless more audio comes."""
        return self.deadline_ns if self.dry_ns is None else self.dry_ns

    @property
    def is_new(self) -> bool:
        """Whether nothing of its turn has been heard yet."""
        return self.dry_ns is None and not self.follows

    @property
    def held_ms(self) -> float:
        """Audio made and not taken."""
        return 1000 * (self.n_made - self.n_taken) / self.stream.family.sample_rate_hz

    @property
    def voicing_track(self) -> Track | None:
        """What the device holds of `Stream.voicing`."""
        return self.earlier_track if self.stream.profile.whole_pieces else self.track

    @property
    def can_release(self) -> bool:
        """Whether the utterance or its piece is over, or the piece can give its slot back, and no lane works on it."""
        piece = self.stream.piece
        if not self.is_over and (piece is None or not (piece.is_over or self.stream.can_hand_over)):
            return False
        return not (self.is_releasing or self.busy or any(block.is_busy for block in self.blocks))

    @property
    def is_drawing(self) -> bool:
        """Whether ids remain to be drawn, now or later. Call it after `needs`. Unfit text fails the job."""
        piece = self.stream.piece
        if self.is_over or piece is None or piece.is_over:
            return False
        try:
            return piece.feed() is not None
        except Exception as error:
            self.fail(error)
            return False

    def pending_work(self, ahead: AheadLimits, n_flow_steps: int, is_in_vocoder: bool = False) -> PendingWork | None:
        """The work until its listener gets more audio. A block takes `n_flow_steps`. `is_in_vocoder`: its oldest
        mel is in the vocoder, and the work is that for the audio after it.

        None if it needs none: the turn has no audio yet, its text has not come, or enough audio is ready."""
        piece = self.stream.voicing or self.stream.piece
        has_audio = not self.is_new or bool(self.first_audio) or is_in_vocoder
        if not has_audio or self.is_over or piece is None or piece.is_over:
            return None
        if piece.n_mel_parts - int(is_in_vocoder) > 0:
            return PendingWork(self.due_ns, (0, 0, 0, piece.next_size))
        if self.blocks:
            first = self.blocks[0].flow_block
            n_steps = n_flow_steps - (first.k if first is not None else 0)
            return PendingWork(self.due_ns, (0, 0, n_steps, piece.next_size))
        n_missing = piece.n_missing
        if piece.all_begun or not self._is_behind(piece, ahead) or (n_missing and not self.is_drawing):
            return None
        is_unfed = piece is self.stream.piece and self.track is None
        return PendingWork(self.due_ns, (int(is_unfed), n_missing, n_flow_steps, piece.next_size))

    def may_be_heard(self, work: PendingWork | None, owed: OwedWork, n_lanes: int = 1, now_ns: int = 0) -> bool:
        """Whether its first audio lasts until the next comes, so that its listener hears no gap.

        `work`: until the next audio, None if no audio is to come; `owed`: that of all active streams, in
        `n_lanes` lanes, at recent prices of batches.
        """
        if work is None:
            return True
        n_samples = sum(len(chunk.pcm) for chunk in self.first_audio)
        dry_ns = due_after_ns(now_ns, n_samples, self.stream.family.sample_rate_hz)
        needed_ns = owed.time_to_audio_ns(work, dry_ns, n_lanes)
        return now_ns + needed_ns * NEXT_AUDIO_MARGIN <= dry_ns

    def record_audio(self, n_samples: int, now_ns: int) -> None:
        """Record audio that was given out. After an underrun it counts as heard from `now_ns` on: with the lost time
        this stream would have priority over all later ones."""
        begin_ns = max(self.deadline_ns if self.dry_ns is None else self.dry_ns, now_ns)
        self.dry_ns = due_after_ns(begin_ns, n_samples, self.stream.family.sample_rate_hz)

    def fail(self, error: Exception) -> None:
        """End it with an error. A job that is over keeps its first error, or none."""
        if self.is_over:
            return
        self.is_over = True
        self.error = error if isinstance(error, EngineError) else EngineError(f"cosyvoice2 failed: {error}")
        # The error may be kept by its receiver. Its frames would keep all tensors of the failed computation.
        link: BaseException | None = self.error
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__

    def needs(self, ahead: AheadLimits, may_decode: bool, lanes_help: bool = False) -> list[Need]:
        """The stages that could run now, besides those that run already. An error here fails the job.

        `lanes_help`: a lane without work makes the others faster, and no other utterance has any. Then one block after
        the other goes through the flow, each as soon as it can, and ids are drawn for the next one only.
        """
        if self.is_over:
            return []
        drawing, voicing = self.stream.piece, self.stream.voicing
        in_turn = lanes_help and not self.follows
        try:
            if drawing is None or drawing.is_over:
                needs = []
            elif in_turn:
                may_decode &= drawing is not voicing or not self._has_all_lanes(drawing)
                needs = self._token_needs(drawing, replace(ahead, n_tokens=0), may_decode)
            else:
                needs = self._token_needs(drawing, ahead, may_decode)
            if voicing is not None and not voicing.is_over:
                needs += self._audio_needs(voicing, ahead, 1 if in_turn else MAX_OPEN_BLOCKS)
            return needs
        except Exception as error:
            self.fail(error)
            return []

    def _has_all_lanes(self, piece: Piece) -> bool:
        """Whether the block in the flow is one of the first and not near its end (`N_FIRST_BLOCKS`)."""
        n = piece.n_voiced_blocks
        if not self.blocks or n >= N_FIRST_BLOCKS:
            return False
        first = self.blocks[0].flow_block
        return first is None or first.k < first.n_steps - n

    def _token_needs(self, piece: Piece, ahead: AheadLimits, may_decode: bool) -> list[Need]:
        # A piece is heard after the one before.
        n_before = self.stream.earlier.n_unheard_tokens if self.stream.earlier is not None else 0
        due_ns = self.due_ns + n_before * NS_PER_S // self.stream.family.tokens_per_s
        if not self.busy.isdisjoint(TOKEN_STAGES):
            return []
        n_spare = piece.n_spare
        feed = piece.feed() if n_spare < ahead.n_tokens else None
        if feed is None:
            return []
        if feed.speech_id is None or self.track is None:
            return [Need(self.key, Stage.PREFILL, due_ns, is_new=self.is_new)]
        return [Need(self.key, Stage.DECODE, due_ns, n_spare >= 0, self.is_new)] if may_decode else []

    def _audio_needs(self, piece: Piece, ahead: AheadLimits, n_most_blocks: int) -> list[Need]:
        needs, due_ns, is_new = [], self.due_ns, self.is_new
        if self.voicing_track is not None:
            block = self._free_block()
            if block is not None or (len(self.blocks) < n_most_blocks and self._may_begin(piece, ahead)):
                # A second block is heard after the first.
                n_before = len(self.blocks[0].block.new) if self.blocks and block is not self.blocks[0] else 0
                n_per_s = self.stream.family.tokens_per_s
                needs.append(Need(self.key, Stage.FLOW, due_ns + n_before * NS_PER_S // n_per_s, is_new=is_new))
        if Stage.VOCODE not in self.busy and piece.n_mel_parts:
            needs.append(Need(self.key, Stage.VOCODE, due_ns, is_new=is_new))
        return needs

    def claim_block(self) -> OpenBlock:
        """The block whose next step can be made, marked as busy. Without one the next block begins."""
        block = self._free_block()
        if block is None:
            assert self.stream.voicing is not None
            block = OpenBlock(self.stream.voicing.begin_block())
            self.blocks.append(block)
        block.is_busy = True
        return block

    def done_block(self) -> OpenBlock | None:
        """Remove and return its oldest block if all steps of it are made."""
        first = self.blocks[0] if self.blocks else None
        if first is None or first.is_busy or first.flow_block is None or not first.flow_block.done:
            return None
        return self.blocks.pop(0)

    def _free_block(self) -> OpenBlock | None:
        """The oldest block whose next step could be made now."""
        for block in self.blocks:
            if not block.is_busy and (block.flow_block is None or block.flow_block.may_step):
                return block
        return None

    def _may_begin(self, piece: Piece, ahead: AheadLimits) -> bool:
        """Whether the next block could begin now."""
        if self.blocks:
            first = self.blocks[0].flow_block
            if first is None or not first.k:
                return False
            # An end that is computed over the whole piece again does not continue the kept steps.
            if not self.stream.profile.causal_finish:
                return False
        may_begin = self._is_behind(piece, ahead) and piece.n_unvoiced_blocks < MOST_UNVOICED_BLOCKS
        return may_begin and piece.has_block()

    def _is_behind(self, piece: Piece, ahead: AheadLimits) -> bool:
        """Whether less audio is made or in the flow than the stream may have ahead. A piece that is computed at once
        may begin earlier by its own length, because computing it takes up to that long."""
        token_ms = 1000 / self.stream.family.tokens_per_s / self.stream.request.speed
        in_flow_ms = token_ms * piece.n_unvoiced_tokens
        own_ms = token_ms * len(piece.tokens) if self.stream.profile.whole_pieces else 0.0
        return self.held_ms + in_flow_ms < ahead.audio_ms + own_ms


def vocoded_size(jobs: Sequence[Job]) -> float:
    """How large the next audio of these jobs is, compared with that of whole blocks."""
    sizes = [job.stream.voicing.next_size for job in jobs if job.stream.voicing is not None]
    return sum(sizes) / len(sizes) if sizes else 1.0
