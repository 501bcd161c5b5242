"""One utterance: its text, ids, blocks and audio. It decides what comes next and counts; it computes nothing.

    text ─ pieces ─ decoding ─ feed ⇢ ids ─ blocks ⇢ mel ⇢ PCM ─ chunks          ⇢ computed by the runner

The audio of an utterance is a function of its text, voice and seed. The sizes of its blocks come from its profile, and
its randomness from its own seed. So other streams and timing change nothing.

A piece of text is one run of the language model. It has a slot from its first feed to its last sample. Then the next
piece begins.

With `Profile.whole_pieces` a piece gives its slot back when all of its ids are drawn. Its audio is made then, and the
next piece draws its ids meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    COSYVOICE2,
    FRAMES_PER_TOKEN,
    N_NOISE_FRAMES,
    TOKENS_PER_S,
    LmConfig,
    ModelFamily,
    RelativeLmConfig,
)
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding, Decoding, LmFeed, SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import GrowingText, Request, VoicePrompt, cut, decoding_of
from telephony_tts.engines.cosyvoice2.text.tokenizer import ControlledBpe
from telephony_tts.engines.cosyvoice2.text.word_clock import WordClock
from telephony_tts.engines.words import without_endless_words
from telephony_tts.runtime.errors import EngineError

MAX_SPEECH_TOKENS = 2250
"""Of a piece: 90 s. The longest piece needs 70 s. It stops a model that never draws a stop id."""
CHUNKS_PER_S = 5
UNSIZED_SHARE = 0.2
"""The share of the vocoder's time for `BLOCK_TOKENS` that is assumed not to depend on the number of frames: it computes
frames around them too."""

ENDLESS = "the speech model did not come to an end; what it said after {:.0f} s is left out, say it again"
ENDLESS_PIECE = "the speech model did not come to an end after {:.0f} s; say it again, or in shorter sentences"
NON_FINITE = "the speech model's output is not finite; this text was given up (see models check)"


class SolverBlock(Protocol):
    """The flow's computation of a block, as far as the core must know it (`model.flow.stream.FlowBlock`)."""

    @property
    def k(self) -> int:
        """Euler steps made."""

    @property
    def n_steps(self) -> int:
        """Euler steps of the block."""

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
        n_prompt, family = stream.voice.n_flow_tokens, stream.family
        self._family = family
        self._n_most = MAX_SPEECH_TOKENS * family.tokens_per_s // TOKENS_PER_S
        if family.flow_streams:
            self._n_most = min(self._n_most, N_NOISE_FRAMES // FRAMES_PER_TOKEN - n_prompt)
        self._n_positions = n_positions
        self._feed: LmFeed | None = None
        self._error: EngineError | None = None
        """Why the piece ends before its end of speech. It is raised when all whole blocks are voiced."""
        self._block_tokens = stream.profile.block_tokens(0, n_prompt)
        self.n_blocks = 0
        """Blocks begun, without a last one that is shorter."""
        self.n_begun = 0
        """Tokens in the flow or past it."""
        self._n_voiced = 0
        self._unvoiced: deque[tuple[int, bool]] = deque()
        """For each part of a block that is not voiced yet: `n_begun` at its end, and whether the block ends with it."""
        self.n_mel_parts = 0
        """Parts of mel that wait for the vocoder."""
        self.all_begun = False
        self.is_over = False

    def feed(self) -> LmFeed | None:
        """What the language model is fed next; None if it waits for text or has drawn all ids. Raises EngineError if
        the text and its voice do not fit a slot."""
        if self._feed is None and not self.is_drawn:
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
    def is_drawn(self) -> bool:
        """Whether no further id is drawn."""
        return self.decoding.done or self._error is not None

    @property
    def n_drawable_unread(self) -> int:
        """Ids that may be drawn before the host reads any of them."""
        if not isinstance(self.decoding, SentenceDecoding):
            return 1
        return max(1, min(self._n_most - self.n_drawn, self.decoding.max_len - self.decoding.n_out))

    def banned_later(self, n: int) -> tuple[tuple[int, ...], ...]:
        """Stop ids that must not be drawn in each of the `n` draws after the next one."""
        if isinstance(self.decoding, SentenceDecoding):
            return self.decoding.banned_from(self.decoding.n_out + 1, n)
        return (self._feed.banned if self._feed is not None else (),) * n

    def take_ids(self, ids: Sequence[int]) -> None:
        """Take in ids drawn after the last feed, in order. Raises EngineError for -1: the logits were not finite."""
        self._feed = None
        if isinstance(self.decoding, SentenceDecoding) and min(ids, default=0) >= 0:
            self.n_drawn += len(ids)
            self.tokens += self.decoding.consume_all(ids)
        else:
            for drawn in ids:
                if drawn < 0:
                    raise EngineError(NON_FINITE)
                self.n_drawn += 1
                speech = self.decoding.consume(drawn)
                if speech is not None:
                    self.tokens.append(speech)
        if self.n_drawn >= self._n_most and not self.decoding.done:
            message = ENDLESS_PIECE if self._stream.profile.whole_pieces else ENDLESS
            self._error = EngineError(message.format(self.n_drawn / self._family.tokens_per_s))

    @property
    def n_spare(self) -> int:
        """Tokens beyond those that the next block takes; negative if it lacks some."""
        return len(self.tokens) - self.n_begun - self._block_tokens - self._family.lookahead_tokens

    @property
    def n_missing(self) -> int:
        """Ids to draw until the next block can begin. An estimate, if that is the end of the piece."""
        if self.decoding.done:
            return 0
        if self._stream.profile.whole_pieces and isinstance(self.decoding, SentenceDecoding):
            return max(1, self.decoding.max_len // 2 - self.decoding.n_out)
        return max(0, -self.n_spare)

    @property
    def n_unvoiced_tokens(self) -> int:
        """Tokens of blocks that are begun and not voiced."""
        return self.n_begun - self._n_voiced

    @property
    def n_unvoiced_blocks(self) -> int:
        """Blocks in the flow, or that wait for the vocoder."""
        return sum(ends_block for _, ends_block in self._unvoiced)

    @property
    def n_voiced_blocks(self) -> int:
        """Blocks that have become audio, without a last one that is shorter. Wrong when that one has begun."""
        return self.n_blocks - self.n_unvoiced_blocks

    @property
    def next_size(self) -> float:
        """How much the vocoder has to do for the next audio, compared with that of `BLOCK_TOKENS`."""
        profile = self._stream.profile
        if profile.whole_pieces:
            return 1.0
        end = self._unvoiced[0][0] if self._unvoiced else self._n_voiced + self._block_tokens
        n_frames = FRAMES_PER_TOKEN * (end - self._n_voiced)
        is_divided = self.n_voiced_blocks == 1 and not self.n_mel_parts and not self.all_begun
        if is_divided and profile.second_frames is not None:
            n_frames = profile.second_frames
        return UNSIZED_SHARE + (1 - UNSIZED_SHARE) * n_frames / (FRAMES_PER_TOKEN * BLOCK_TOKENS)

    @property
    def n_unheard_tokens(self) -> int:
        """Tokens drawn and not voiced."""
        return len(self.tokens) - self._n_voiced

    def has_block(self) -> bool:
        """Whether the next block can begin. Raises EngineError if the piece has failed and all its audio is out."""
        if self.all_begun:
            return False
        if self.n_spare >= 0:
            return True
        if self._error is not None and not self.n_unvoiced_tokens:
            raise self._error
        return self.decoding.done

    def begin_block(self) -> TokenBlock:
        """The next block. Call it only if `has_block()` is true."""
        tokens, begin = self.tokens, self.n_begun
        end, n_ahead = begin + self._block_tokens, self._family.lookahead_tokens
        if len(tokens) >= end + n_ahead:
            block = TokenBlock(tuple(tokens[begin:end]), tuple(tokens[end : end + n_ahead]))
            self.n_begun = end
            self._unvoiced.append((end, True))
            self.n_blocks += 1
            self._block_tokens = self._stream.profile.block_tokens(self.n_blocks, self._stream.voice.n_flow_tokens)
            return block
        self.all_begun = True
        self.n_begun = len(tokens)
        self._unvoiced.append((len(tokens), True))
        if self._stream.profile.causal_finish or not tokens:
            return TokenBlock(tuple(tokens[begin:]), None)
        return TokenBlock(tuple(tokens[begin:]), None, tuple(tokens), begin)

    def take_mel(self, part_frames: Sequence[int]) -> None:
        """The mel of the oldest block without one is made, in parts of so many frames. They become audio one after the
        other."""
        end, _ = self._unvoiced[self.n_mel_parts]
        begin = self._unvoiced[self.n_mel_parts - 1][0] if self.n_mel_parts else self._n_voiced
        n_all = max(1, sum(part_frames))
        ends = [begin + (end - begin) * n // n_all for n in accumulate(part_frames[:-1])]
        del self._unvoiced[self.n_mel_parts]
        for i, part_end in enumerate((*ends, end)):
            self._unvoiced.insert(self.n_mel_parts + i, (part_end, i == len(ends)))
        self.n_mel_parts += len(part_frames)

    def take_audio(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """The audio of the oldest mel in chunks of at most 200 ms. `n_frames`: mel frames of the piece so far.

        Chunks have estimated word timings, unless the text was still being written."""
        self.n_mel_parts -= 1
        self._n_voiced, _ = self._unvoiced.popleft()
        self.is_over = is_last
        chunks = []
        if self._clock is not None:
            self._clock.add_audio(len(pcm), n_frames * self._family.samples_per_frame, last=is_last)
        rate_hz = self._family.sample_rate_hz
        n_chunk = rate_hz // CHUNKS_PER_S
        for begin in range(0, len(pcm), n_chunk):
            part = pcm[begin : begin + n_chunk]
            timings = self._clock.take(len(part)) if self._clock is not None else ()
            chunks.append(Chunk(part, rate_hz, timings, estimates=True))
        return chunks

    def set_clock(self, clock: WordClock) -> None:
        """Times the words. Call it before the first audio."""
        self._clock = clock


class Stream:
    """See the module. Set `voice` before `begin`. It may become ready after the first text has come."""

    def __init__(
        self,
        request: Request,
        profile: Profile,
        tokenizer: ControlledBpe,
        lm: LmConfig | RelativeLmConfig,
        n_positions: int,
        family: ModelFamily = COSYVOICE2,
    ) -> None:
        """`lm` has the checkpoint's mix of text and speech; `n_positions`: of a slot."""
        self.request = request
        self.profile = profile
        self.family = family
        self.voice: VoicePrompt
        self.slot: int | None = None
        self.piece: Piece | None = None
        """The piece that has the slot."""
        self.earlier: Piece | None = None
        """With `Profile.whole_pieces`: the piece before, whose ids are drawn and whose audio is made."""
        self._span = 0, 0
        """Of the piece that has the slot, in the text."""
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
        if self.slot is not None or (self._grows and (self.request.instruct or self.profile.whole_pieces)):
            return False
        return self._begins_growing or self._peek() is not None

    def note_refusal(self) -> None:
        """Record that no slot was free. If the text is complete when one becomes free, it is cut like any other."""
        self._was_refused = True

    @property
    def _begins_growing(self) -> bool:
        """Whether the next piece interleaves text and speech. It must not depend on when the rest of the text came, as
        long as there are slots."""
        if not self.request.grows or self.request.instruct or self._growing is not None or self.profile.whole_pieces:
            return False
        return self._grows or not self._was_refused

    @property
    def is_done(self) -> bool:
        """Whether no text is left to be spoken."""
        if self.slot is not None or self.earlier is not None or self._grows or self._begins_growing:
            return False
        return self._peek() is None

    def _peek(self) -> tuple[int, int, str] | None:
        """The next piece of complete text: begin, end and spelling. None if no piece is complete."""
        if self._growing is not None:
            return None
        if self._cuts is None:
            self._text = without_endless_words(self._text)
            self._cuts = cut(self._text, self.profile, self._tokenizer, self.request.control)
            self._next = next(self._cuts, None)
        return self._next

    # -------------------------------------------------------------------------- pieces

    def begin(self, slot: int) -> Piece:
        """Begin the next piece in a slot. Call it only if `wants_slot` is true."""
        self.slot = slot
        seed = self.request.seed + self._n_pieces
        self._n_pieces += 1
        if self._begins_growing:
            assert isinstance(self._lm, LmConfig)
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
        sentence = decoding_of(self._tokenizer, self.voice, self.request, text, self.family)
        self._span = start, end
        clock = None if self.profile.whole_pieces else self._clock()
        self.piece = Piece(self, sentence, seed, self._n_positions, clock)
        return self.piece

    def _clock(self) -> WordClock:
        """Of the piece whose audio begins after all audio so far."""
        return WordClock(
            self._text, *self._span, self._n_samples, self.request.speed, self.family.sample_rate_hz
        )

    @property
    def voicing(self) -> Piece | None:
        """The piece whose audio is made."""
        return self.earlier if self.profile.whole_pieces else self.piece

    def take_audio(self, pcm: Pcm, n_frames: int, is_last: bool) -> list[Chunk]:
        """See `Piece.take_audio`."""
        piece = self.voicing
        assert piece is not None
        self._n_samples += len(pcm)
        if is_last:
            self.earlier = None
        return piece.take_audio(pcm, n_frames, is_last)

    @property
    def can_hand_over(self) -> bool:
        """Whether the piece can give its slot back before its audio is made."""
        if not self.profile.whole_pieces or self.piece is None or self.earlier is not None:
            return False
        return self.piece.is_drawn and not self.piece.is_over

    def hand_over(self) -> int:
        """The piece's audio is made from now on, without its slot, which is returned. Call it only if `can_hand_over`
        is true."""
        assert self.piece is not None
        self.piece.set_clock(self._clock())
        self.earlier = self.piece
        return self.end_piece()

    def end_piece(self) -> int:
        """End the piece and return the slot that it had."""
        assert self.slot is not None
        slot, self.slot, self.piece = self.slot, None, None
        return slot
