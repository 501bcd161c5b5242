"""One utterance: its text, ids, blocks and audio. It decides what comes next and counts; it computes nothing.

    text ─ pieces ─ decoding ─ feed ⇢ ids ─ blocks ⇢ mel ⇢ PCM ─ chunks          ⇢ computed by the runner

The audio of an utterance is a function of its text, voice and seed. The sizes of its blocks come from its profile, and
its randomness from its own seed. So other streams and timing change nothing.

A piece of text is one run of the language model. It has a slot from its first feed to its last sample. Then the next
piece begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
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
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding, Decoding, LmFeed, SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import GrowingText, Request, VoicePrompt, cut, decoding_of
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.text.word_clock import WordClock
from telephony_tts.engines.words import without_endless_words
from telephony_tts.errors import EngineError

MAX_SPEECH_TOKENS = 2250
"""Of a piece: 90 s. The longest piece needs 70 s. It stops a model that never draws a stop id."""
CHUNK_SAMPLES = SAMPLE_RATE_HZ // 5

ENDLESS = "the speech model did not come to an end; what it said after {:.0f} s is left out, say it again"
NON_FINITE = "the speech model's output is not finite; this text was given up (see models check)"


class SolverBlock(Protocol):
    """The flow's computation of a block, as far as the core must know it (`model.flow.stream.FlowBlock`)."""

    @property
    def k(self) -> int:
        """Euler steps made."""

    @property
    def done(self) -> bool: ...

    @property
    def may_step(self) -> bool:
        """Whether the block before it is far enough for its next step."""


@dataclass(slots=True, eq=False)
class OpenBlock:
    """A block in the flow."""

    block: TokenBlock
    flow_block: SolverBlock | None = None
    """None before the first step."""
    is_busy: bool = False
    """A lane makes a step of it now."""


class Piece:
    """One run of the language model, and its audio."""

    def __init__(
        self, stream: Stream, decoding: Decoding, seed: int, n_positions: int, clock: WordClock | None
    ) -> None:
        self._stream = stream
        self.decoding = decoding
        self.seed = seed
        self._clock = clock
        self.tokens: list[int] = []
        """Speech ids drawn so far."""
        self.n_drawn = 0
        """Ids drawn so far, fill ids included."""
        n_prompt = stream.voice.n_flow_tokens
        self._n_most = min(MAX_SPEECH_TOKENS, N_NOISE_FRAMES // FRAMES_PER_TOKEN - n_prompt)
        self._n_positions = n_positions
        self._feed: LmFeed | None = None
        self._error: EngineError | None = None
        """Why the piece ends before its end of speech. It is raised when all whole blocks are voiced."""
        self._block_tokens = stream.profile.block_tokens(0, n_prompt)
        self._n_blocks = 0
        self.n_begun = 0
        """Tokens in the flow or past it."""
        self._n_voiced = 0
        self._block_ends: deque[int] = deque()
        """`n_begun` at the end of each block that is not voiced yet."""
        self.n_mel_blocks = 0
        """Blocks of mel that wait for the vocoder."""
        self.all_begun = False
        self.is_over = False

    def feed(self) -> LmFeed | None:
        """What the language model is fed next; None if it waits for text or has drawn all ids. Raises EngineError if
        the text and its voice do not fit a slot."""
        if self._feed is None and not self._tokens_over:
            try:
                self._feed = self.decoding.next_feed()
            except EngineError as error:
                # Ids drawn before are voiced up to the last whole block, however far the audio is behind.
                self._error = error
            if self._feed is not None and self.n_drawn == 0:
                n = self._feed.n_positions
                if n > self._n_positions:
                    raise EngineError(
                        f"prompt, text and speech exceed {self._n_positions} tokens; speak it in shorter pieces"
                    )
                self._n_most = min(self._n_most, self._n_positions - n)
        if self.decoding.done and self.n_drawn == 0:
            self.is_over = True  # text without tokens has no audio
        return self._feed

    @property
    def _tokens_over(self) -> bool:
        return self.decoding.done or self._error is not None

    @property
    def n_drawable_unread(self) -> int:
        """Ids that may be drawn before the host reads any of them."""
        if not isinstance(self.decoding, SentenceDecoding):
            return 1
        return max(1, min(self._n_most - self.n_drawn, self.decoding.max_len - self.decoding.n_out))

    def banned_after(self, n: int) -> tuple[int, ...]:
        """Stop ids that must not be drawn after `n` further ids; 0 is the next draw."""
        if isinstance(self.decoding, SentenceDecoding):
            return self.decoding.banned_at(self.decoding.n_out + n)
        return self._feed.banned if self._feed is not None else ()

    def take_ids(self, ids: Sequence[int]) -> None:
        """Take in ids drawn after the last feed, in order. Raises EngineError for -1: the logits were not finite."""
        self._feed = None
        for drawn in ids:
            if drawn < 0:
                raise EngineError(NON_FINITE)
            self.n_drawn += 1
            speech = self.decoding.consume(drawn)
            if speech is not None:
                self.tokens.append(speech)
        if self.n_drawn >= self._n_most and not self.decoding.done:
            self._error = EngineError(ENDLESS.format(self.n_drawn / TOKENS_PER_S))

    @property
    def n_spare(self) -> int:
        """Tokens beyond those that the next block takes; negative if it lacks some."""
        return len(self.tokens) - self.n_begun - self._block_tokens - LOOKAHEAD_TOKENS

    @property
    def n_unvoiced_tokens(self) -> int:
        """Tokens of blocks that are begun and not voiced."""
        return self.n_begun - self._n_voiced

    def has_block(self) -> bool:
        """Whether the next block can begin. Raises EngineError if the piece has failed and all its audio is out."""
        if self.all_begun:
            return False
        if len(self.tokens) >= self.n_begun + self._block_tokens + LOOKAHEAD_TOKENS:
            return True
        if self._error is not None and not self.n_unvoiced_tokens:
            raise self._error
        return self.decoding.done

    def begin_block(self) -> TokenBlock:
        """The next block. Call it only if `has_block()` is true."""
        tokens, begin = self.tokens, self.n_begun
        end = begin + self._block_tokens
        if len(tokens) >= end + LOOKAHEAD_TOKENS:
            block = TokenBlock(tuple(tokens[begin:end]), tuple(tokens[end : end + LOOKAHEAD_TOKENS]))
            self.n_begun = end
            self._block_ends.append(end)
            self._n_blocks += 1
            self._block_tokens = self._stream.profile.block_tokens(self._n_blocks, self._stream.voice.n_flow_tokens)
            return block
        self.all_begun = True
        self.n_begun = len(tokens)
        self._block_ends.append(len(tokens))
        if self._stream.profile.causal_finish or not tokens:
            return TokenBlock(tuple(tokens[begin:]), None)
        return TokenBlock(tuple(tokens[begin:]), None, tuple(tokens), begin)

    def take_audio(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """The audio of the oldest block in chunks of at most 200 ms. `n_frames`: mel frames of the piece so far.

        Chunks have estimated word timings, unless the text was still being written."""
        self.n_mel_blocks -= 1
        self._n_voiced = self._block_ends.popleft()
        self.is_over = is_last
        chunks = []
        if self._clock is not None:
            self._clock.add_audio(len(pcm), n_frames * SAMPLES_PER_FRAME, last=is_last)
        for begin in range(0, len(pcm), CHUNK_SAMPLES):
            part = pcm[begin : begin + CHUNK_SAMPLES]
            timings = self._clock.take(len(part)) if self._clock is not None else ()
            chunks.append(Chunk(part, SAMPLE_RATE_HZ, timings))
        return chunks


class Stream:
    """See the module. Set `voice` before `begin`. It may become ready after the first text has come."""

    def __init__(
        self, request: Request, profile: Profile, tokenizer: TextTokenizer, lm: LmConfig, n_positions: int
    ) -> None:
        """`lm` has the checkpoint's mix of text and speech; `n_positions`: of a slot."""
        self.request = request
        self.profile = profile
        self.voice: VoicePrompt
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
        """Of all pieces so far."""

    # --------------------------------------------------------------------------- text

    def push(self, text: str, last: bool) -> None:
        """Add text. After the last text it is dropped."""
        if not self._grows:
            return
        if self._growing is not None:
            self._growing.push(text, last)
        else:
            self._text += text
        self._grows = not last

    @property
    def grows(self) -> bool:
        """Whether more text may come. Such a stream takes one of the few slots for growing text."""
        return self._grows

    @property
    def wants_slot(self) -> bool:
        """Whether the next piece could begin if there were a slot. An instruction needs the whole text: the model was
        not trained to interleave text with an instruction."""
        if self.slot is not None or (self._grows and self.request.instruct):
            return False
        return self._begins_growing or self._peek() is not None

    def note_refusal(self) -> None:
        """Record that no slot was free. If the text is complete when one becomes free, it is cut like any other."""
        self._was_refused = True

    @property
    def _begins_growing(self) -> bool:
        """Whether the next piece interleaves text and speech. It must not depend on when the rest of the text came, as
        long as there are slots."""
        if not self.request.grows or self.request.instruct or self._growing is not None:
            return False
        return self._grows or not self._was_refused

    @property
    def is_done(self) -> bool:
        """Whether all text has been spoken, or there is none."""
        return self.slot is None and not self._grows and not self._begins_growing and self._peek() is None

    def _peek(self) -> tuple[int, int, str] | None:
        """The next piece of complete text: begin, end and spelling. None if there is none."""
        if self._growing is not None:
            return None
        if self._cuts is None:
            self._text = without_endless_words(self._text)
            self._cuts = cut(self._text, self.profile, self._tokenizer)
            self._next = next(self._cuts, None)
        return self._next

    # -------------------------------------------------------------------------- pieces

    def begin(self, slot: int) -> Piece:
        """Begin the next piece in a slot. Call it only if `wants_slot` is true."""
        self.slot = slot
        seed = self.request.seed + self._n_pieces
        self._n_pieces += 1
        if self._begins_growing:
            self.profile = self.profile.growing()
            decoding = BiStreamDecoding(
                self.voice.transcript_ids,
                self.voice.speech_tokens,
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
        sentence = decoding_of(self._tokenizer, self.voice, self.request, text)
        clock = WordClock(self._text, start, end, self._n_samples, self.request.speed)
        self.piece = Piece(self, sentence, seed, self._n_positions, clock)
        return self.piece

    def take_audio(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """See `Piece.take_audio`."""
        assert self.piece is not None
        self._n_samples += len(pcm)
        return self.piece.take_audio(pcm, n_frames, is_last)

    def end_piece(self) -> int:
        """End the piece and return the slot that it had."""
        assert self.slot is not None
        slot, self.slot, self.piece = self.slot, None, None
        return slot
