"""An utterance inside the engine: its stream, what the device holds of it, and what could be done for it now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from telephony_tts.clock import NS_PER_S
from telephony_tts.engines.cosyvoice2.core.scheduler import Ahead, Need, Owed, Stage, due_after_ns
from telephony_tts.engines.cosyvoice2.core.stream import Piece, Stream, UnderWay
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ, TOKENS_PER_S
from telephony_tts.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.runner import Track
    from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt

MOST_OPEN = 2
"""Blocks of a stream under way at once, see `model.flow`."""
MOST_MELS = 2
"""Blocks of a stream that are in the flow or wait for the vocoder; its flow rests then."""
WORDS = frozenset({Stage.PREFILL, Stage.DECODE})


@dataclass(slots=True, eq=False)
class Job:
    """Guarded by the core's lock; what is `busy` belongs to the lane that computes it."""

    key: int
    voice: str
    stream: Stream
    deadline_ns: int
    follows: bool = False
    """Its listener has heard what came before it, or hears it until the deadline."""
    prompt: SpeakerPrompt | None = None
    track: Track | None = None
    """Of the piece under way, once it has been fed."""
    dry_ns: int | None = None
    """When its listener will have heard all that was made; None before the first."""
    n_made: int = 0
    n_taken: int = 0
    """Samples given out, and taken by the listener."""
    blocks: list[UnderWay] = field(default_factory=list)
    """Of the piece under way, oldest first: the second may go as far as the first has gone, in another lane."""
    busy: set[Stage] = field(default_factory=set)
    """Stages that lanes compute now, but for the flow: see `blocks`."""
    has_begun: bool = False
    is_over: bool = False
    """Nothing more is begun for it."""
    error: EngineError | None = None

    @property
    def due_ns(self) -> int:
        """When its listener hears silence if nothing more comes."""
        return self.deadline_ns if self.dry_ns is None else self.dry_ns

    @property
    def is_new(self) -> bool:
        """Whoever asked for it hears nothing yet."""
        return self.dry_ns is None and not self.follows

    def owed(self, ahead: Ahead, n_flow_steps: int, n_run_ahead: int) -> Owed | None:
        """What is still to be done for who hears it: a block takes `n_flow_steps`, a batch draws `n_run_ahead` ids.

        None where that is nothing: it is new, waits for words, or its listener takes no more."""
        piece = self.stream.piece
        if self.is_new or self.is_over or piece is None or piece.is_over:
            return None
        if piece.n_mels:
            return Owed(self.due_ns, (0, 0, 0, 1))
        if self.blocks:
            solve = self.blocks[0].solve
            return Owed(self.due_ns, (0, 0, n_flow_steps - (solve.k if solve is not None else 0), 1))
        n_missing = 0 if piece.decoding.done else max(0, -piece.n_waiting)
        if piece.all_begun or not self._is_behind(piece, ahead) or (n_missing and not self.is_drawing):
            return None
        return Owed(self.due_ns, (int(self.track is None), -(-n_missing // n_run_ahead), n_flow_steps, 1))

    @property
    def is_drawing(self) -> bool:
        """Whether there are ids to be drawn for it, now or when it has less ahead. Asked after `needs`. Where nothing
        can come of it, it fails."""
        piece = self.stream.piece
        if self.is_over or piece is None or piece.is_over:
            return False
        try:
            return piece.feed() is not None
        except Exception as error:
            self.fail(error)
            return False

    def made(self, n_samples: int, now_ns: int) -> None:
        """So much audio is given out. Who has run dry hears it from now on: the silence before it is lost time, and to
        count it would put this listener before all who come later."""
        begin_ns = max(self.deadline_ns, now_ns) if self.dry_ns is None else max(self.dry_ns, now_ns)
        self.dry_ns = due_after_ns(begin_ns, n_samples, SAMPLE_RATE_HZ)
        self.n_made += n_samples

    @property
    def held_ms(self) -> float:
        """Audio made and not taken."""
        return 1000 * (self.n_made - self.n_taken) / SAMPLE_RATE_HZ

    @property
    def lets_go(self) -> bool:
        """What it holds can be given back: its piece is over, or it is, and no lane computes for it."""
        piece = self.stream.piece
        if self.busy or any(each.is_busy for each in self.blocks):
            return False
        return self.is_over or (piece is not None and piece.is_over)

    def fail(self, error: Exception) -> None:
        """It ends with an error; the first one counts, and none where nobody wants it any more."""
        if self.is_over:
            return
        self.is_over = True
        self.error = error if isinstance(error, EngineError) else EngineError(f"cosyvoice2 failed: {error}")
        # Who hears of it may keep it, and with its frames all that was being computed where it was raised.
        link: BaseException | None = self.error
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__

    def needs(self, ahead: Ahead, may_decode: bool) -> list[Need]:
        """What could be done for it now, beyond what is being done. Where nothing can come of it, it fails."""
        piece = self.stream.piece
        if self.is_over or piece is None or piece.is_over:
            return []
        try:
            return self._needs(piece, ahead, may_decode)
        except Exception as error:
            self.fail(error)
            return []

    def claim_block(self) -> UnderWay:
        """The block that the flow is needed for, marked as busy; begun if it is the next one."""
        block = self._free_block()
        if block is None:
            assert self.stream.piece is not None
            block = UnderWay(self.stream.piece.begin_block())
            self.blocks.append(block)
        block.is_busy = True
        return block

    def done_block(self) -> UnderWay | None:
        """Its oldest block, no longer among the others, if all steps of it are made."""
        first = self.blocks[0] if self.blocks else None
        if first is None or first.is_busy or first.solve is None or not first.solve.done:
            return None
        return self.blocks.pop(0)

    def _free_block(self) -> UnderWay | None:
        """The oldest block whose next step could be made now."""
        able = (each for each in self.blocks if not each.is_busy and (each.solve is None or each.solve.may_step))
        return next(able, None)

    def _may_begin(self, piece: Piece, ahead: Ahead) -> bool:
        """Whether the next block could be begun now."""
        if self.blocks:
            first = self.blocks[0].solve
            # An end that is computed over the whole again does not go on from what the steps have kept.
            if len(self.blocks) == MOST_OPEN or not self.stream.profile.causal_finish or first is None or not first.k:
                return False
        return self._is_behind(piece, ahead) and piece.n_mels + len(self.blocks) < MOST_MELS and piece.has_block()

    def _is_behind(self, piece: Piece, ahead: Ahead) -> bool:
        """Whether its listener may have more than is made and on its way."""
        on_its_way_ms = 1000 * piece.n_unheard / TOKENS_PER_S / self.stream.request.speed
        return self.held_ms + on_its_way_ms < ahead.audio_ms

    def _needs(self, piece: Piece, ahead: Ahead, may_decode: bool) -> list[Need]:
        """What could be done, and when it is heard that it was not."""
        needs, due_ns, is_new = [], self.due_ns, self.is_new
        if not self.busy & WORDS and piece.n_waiting < ahead.n_tokens:
            feed = piece.feed()
            if feed is not None and (feed.speech_id is None or self.track is None):
                needs.append(Need(self.key, Stage.PREFILL, due_ns, is_new=is_new))
            elif feed is not None and may_decode:
                needs.append(Need(self.key, Stage.DECODE, due_ns, piece.n_waiting >= 0, is_new))
        if self.track is not None:
            block = self._free_block()
            if block is not None or self._may_begin(piece, ahead):
                # What is behind another block is heard after it.
                n_before = len(self.blocks[0].block.new) if self.blocks and block is not self.blocks[0] else 0
                needs.append(Need(self.key, Stage.FLOW, due_ns + n_before * NS_PER_S // TOKENS_PER_S, is_new=is_new))
        if Stage.VOCODE not in self.busy and piece.n_mels:
            needs.append(Need(self.key, Stage.VOCODE, due_ns, is_new=is_new))
        return needs
