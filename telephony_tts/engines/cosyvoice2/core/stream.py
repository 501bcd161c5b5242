"""One utterance: its text, ids, blocks and audio. It decides what comes next and counts; it computes nothing.

    text ─ pieces ─ decoding ─ feed ⇢ ids ─ blocks ⇢ mel ⇢ PCM ─ chunks          ⇢ computed by the runner

What an utterance does is a function of its text, voice and seed alone: the sizes of its blocks come from its profile,
its randomness from its own seed, so neighbours and timing change nothing. A piece of text is one run of the language
model, in a slot that it has from its first feed to its last sample; the next piece begins after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_NOISE_FRAMES,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    TOKENS_PER_S,
    LmConfig,
)
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding, Decoding, Feed, SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import GrowingText, Request, Spoken, cut, decoding_of
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.text.word_clock import WordClock
from telephony_tts.engines.words import without_endless_words
from telephony_tts.errors import EngineError

MAX_SPEECH_TOKENS = 2250
"""Of a piece, 90 s, where the longest piece takes 70: beside 20 per text token, the end of a model that never ends."""
CHUNK_SAMPLES = SAMPLE_RATE_HZ // 5

ENDLESS = "the speech model did not come to an end; what it said after {:.0f} s is left out, say it again"
BROKEN = "the speech model's numbers went out of range; this text was given up (see models check)"


@dataclass(frozen=True, slots=True)
class Block:
    """One call of the flow: `new` ids, and the three after them; None where these are the last. `all_ids` where the end
    is computed over the whole piece again (`Profile.causal_finish`), `n_before` of them being heard already."""

    new: tuple[int, ...]
    ahead: tuple[int, ...] | None
    all_ids: tuple[int, ...] | None = None
    n_before: int = 0


class Solving(Protocol):
    """A block in the flow, as far as it can be told without a device."""

    @property
    def k(self) -> int: ...

    @property
    def done(self) -> bool: ...

    @property
    def may_step(self) -> bool: ...


@dataclass(slots=True, eq=False)
class UnderWay:
    """A block on its way through the flow. `solve` is None before the first step; `is_busy`: a lane makes one now."""

    block: Block
    solve: Solving | None = None
    is_busy: bool = False


class Piece:
    """One run of the language model, and the sound of it."""

    def __init__(
        self, stream: Stream, decoding: Decoding, seed: int, n_positions: int, clock: WordClock | None
    ) -> None:
        self._stream = stream
        self.decoding = decoding
        self.seed = seed
        self._clock = clock
        self.tokens: list[int] = []
        self.n_drawn = 0
        spoken = stream.spoken
        room = N_NOISE_FRAMES // FRAMES_PER_TOKEN - spoken.n_flow_tokens
        self._n_most = min(MAX_SPEECH_TOKENS, room)
        self._n_positions = n_positions
        self._feed: Feed | None = None
        self._error: EngineError | None = None
        self._hop = stream.profile.hop(0, spoken.n_flow_tokens)
        self._n_blocks = 0
        self.n_begun = 0
        """Tokens that are on their way through the flow, or past it."""
        self._n_voiced = 0
        self._block_ends: deque[int] = deque()
        """Tokens begun, at the end of each block that is not yet voiced."""
        self.n_mels = 0
        """Blocks of mel not yet made audible."""
        self.all_begun = False
        self.is_over = False

    def feed(self) -> Feed | None:
        """What the language model is to be fed; None where it waits for text, or is through."""
        if self._feed is None and not self._words_over:
            try:
                self._feed = self.decoding.next_feed()
            except EngineError as error:
                # What was drawn before is heard to the last whole block, however far the sound is behind.
                self._error = error
            if self._feed is not None and self.n_drawn == 0:
                n = self._feed.n_positions
                if n > self._n_positions:
                    raise EngineError(
                        f"prompt, text and speech exceed {self._n_positions} tokens; speak it in shorter pieces"
                    )
                self._n_most = min(self._n_most, self._n_positions - n)
        if self.decoding.done and self.n_drawn == 0:
            self.is_over = True  # text of no tokens is nothing to be heard
        return self._feed

    @property
    def _words_over(self) -> bool:
        return self.decoding.done or self._error is not None

    @property
    def n_sure(self) -> int:
        """Ids that may be drawn before any is looked at."""
        if not isinstance(self.decoding, SentenceDecoding):
            return 1
        return max(1, min(self._n_most - self.n_drawn, self.decoding.max_len - self.decoding.n_out))

    def banned_after(self, n: int) -> tuple[int, ...]:
        """What must not be drawn `n` ids from now; 0 is the next one."""
        if isinstance(self.decoding, SentenceDecoding):
            return self.decoding.banned_at(self.decoding.n_out + n)
        return self._feed.banned if self._feed is not None else ()

    def drew(self, ids: Sequence[int]) -> None:
        """These were drawn after the last feed, one after the other. Raises EngineError for what is no number."""
        self._feed = None
        for number in ids:
            if number < 0:
                raise EngineError(BROKEN)
            self.n_drawn += 1
            speech = self.decoding.consume(number)
            if speech is not None:
                self.tokens.append(speech)
        if self.n_drawn >= self._n_most and not self.decoding.done:
            self._error = EngineError(ENDLESS.format(self.n_drawn / TOKENS_PER_S))

    @property
    def n_waiting(self) -> int:
        """Tokens beyond those that the next block takes."""
        return len(self.tokens) - self.n_begun - self._hop - LOOKAHEAD_TOKENS

    @property
    def n_unheard(self) -> int:
        """Tokens of blocks that are begun and not yet voiced."""
        return self.n_begun - self._n_voiced

    def has_block(self) -> bool:
        """Whether the flow has something to begin. Raises EngineError where nothing more can come of this piece."""
        if self.all_begun:
            return False
        if len(self.tokens) >= self.n_begun + self._hop + LOOKAHEAD_TOKENS:
            return True
        if self._error is not None and not self.n_unheard:
            raise self._error
        return self.decoding.done

    def begin_block(self) -> Block:
        """The next one, which `has_block` said there is."""
        tokens, begin = self.tokens, self.n_begun
        end = begin + self._hop
        if len(tokens) >= end + LOOKAHEAD_TOKENS:
            block = Block(tuple(tokens[begin:end]), tuple(tokens[end : end + LOOKAHEAD_TOKENS]))
            self.n_begun = end
            self._block_ends.append(end)
            self._n_blocks += 1
            self._hop = self._stream.profile.hop(self._n_blocks, self._stream.spoken.n_flow_tokens)
            return block
        self.all_begun = True
        self.n_begun = len(tokens)
        self._block_ends.append(len(tokens))
        if self._stream.profile.causal_finish or not tokens:
            return Block(tuple(tokens[begin:]), None)
        return Block(tuple(tokens[begin:]), None, tuple(tokens), begin)

    def voiced(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """Audio of one block, after which the piece has `n_frames` of mel or more: in chunks of at most 200 ms, with
        estimated timings, none where the text was still being written."""
        self.n_mels -= 1
        self._n_voiced = self._block_ends.popleft()
        self.is_over = is_last
        chunks = []
        if self._clock is not None:
            self._clock.heard(len(pcm), n_frames * SAMPLES_PER_FRAME, last=is_last)
        for begin in range(0, len(pcm), CHUNK_SAMPLES):
            part = pcm[begin : begin + CHUNK_SAMPLES]
            timings = self._clock.take(len(part)) if self._clock is not None else ()
            chunks.append(Chunk(part, SAMPLE_RATE_HZ, timings))
        return chunks


class Stream:
    """See the module. `spoken` is set when the voice is ready, which may be after the text has begun to come."""

    def __init__(
        self, request: Request, profile: Profile, tokenizer: TextTokenizer, lm: LmConfig, n_positions: int
    ) -> None:
        """`lm` gives the mix of text and speech of the checkpoint; `n_positions`: of a slot."""
        self.request = request
        self.profile = profile
        self.spoken: Spoken
        self.slot: int | None = None
        self.piece: Piece | None = None
        self._tokenizer = tokenizer
        self._lm = lm
        self._n_positions = n_positions
        self._text = request.text
        self._grows = request.grows
        self._growing: GrowingText | None = None
        self._cuts: Iterator[tuple[int, int, str]] | None = None
        self._next: tuple[int, int, str] | None = None
        self._was_refused = False
        self._n_pieces = 0
        self._n_samples = 0
        """Of the pieces before, and of this one so far."""

    # --------------------------------------------------------------------------- text

    def push(self, text: str, last: bool) -> None:
        """More of the text; after the end it is dropped."""
        if not self._grows:
            return
        if self._growing is not None:
            self._growing.push(text, last)
        else:
            self._text += text
        self._grows = not last

    @property
    def grows(self) -> bool:
        """Whether more text may come, so that its slot is one of the few for such."""
        return self._grows

    @property
    def wants_slot(self) -> bool:
        """Whether it could begin, or go on, if it had one. An instruction waits for the whole text: the model was not
        taught to begin in the middle of one."""
        if self.slot is not None or (self._grows and self.request.instruct):
            return False
        return self._begins_growing or self._peek() is not None

    def refused(self) -> None:
        """There is no slot for it. Text that is whole when there is one is cut as any other."""
        self._was_refused = True

    @property
    def _begins_growing(self) -> bool:
        """How the text is spoken must not depend on when the rest of it came, as long as there are slots."""
        if not self.request.grows or self.request.instruct or self._growing is not None:
            return False
        return self._grows or not self._was_refused

    @property
    def is_done(self) -> bool:
        """All is said, or there is nothing to say."""
        return self.slot is None and not self._grows and not self._begins_growing and self._peek() is None

    def _peek(self) -> tuple[int, int, str] | None:
        """The next piece of text that is whole."""
        if self._growing is not None:
            return None
        if self._cuts is None:
            self._text = without_endless_words(self._text)
            self._cuts = cut(self._text, self.profile, self._tokenizer)
            self._next = next(self._cuts, None)
        return self._next

    def begin(self, slot: int) -> Piece:
        """Begin the next piece in a slot; ask `wants_slot` before."""
        self.slot = slot
        seed = self.request.seed + self._n_pieces
        self._n_pieces += 1
        if self._begins_growing:
            self.profile = self.profile.growing()
            decoding = BiStreamDecoding(
                self.spoken.transcript_ids,
                self.spoken.speech_tokens,
                n_mix_text=self._lm.n_mix_text,
                n_mix_speech=self._lm.n_mix_speech,
            )
            self._growing = GrowingText(decoding, self._tokenizer, self.request.control, self._text)
            if not self._grows:
                self._growing.push("", True)
            self.piece = Piece(self, decoding, seed, self._n_positions, None)
            return self.piece
        assert self._next is not None and self._cuts is not None
        start, end, text = self._next
        self._next = next(self._cuts, None)
        sentence = decoding_of(self._tokenizer, self.spoken, self.request, text)
        clock = WordClock(self._text, start, end, self._n_samples, self.request.speed)
        self.piece = Piece(self, sentence, seed, self._n_positions, clock)
        return self.piece

    def voiced(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """See `Piece.voiced`."""
        assert self.piece is not None
        self._n_samples += len(pcm)
        return self.piece.voiced(pcm, n_frames, is_last)

    def end_piece(self) -> int:
        """The piece is over, its slot is no longer had: returns it."""
        assert self.slot is not None
        slot, self.slot, self.piece = self.slot, None, None
        return slot
