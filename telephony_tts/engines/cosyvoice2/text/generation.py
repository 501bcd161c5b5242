"""What the language model is fed next, and when it has said enough. Decides only: no tensor is touched here.

A decoding is asked `next_feed()` for what to run through the model, and told with `consume(id)` what was drawn from the
result. Two kinds, of one shape: `SentenceDecoding` knows its whole text before it starts, `BiStreamDecoding` gets text
while it speaks. Both always end: the first stops at its longest length, the second raises EngineError there.
Source of the rules: specification 4.1, 4.2 and 4.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.cosyvoice2.model.config import EOS, FILL, N_SPEECH_TOKENS, UNUSED_STOP
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.errors import EngineError

MIN_TOKENS_PER_TEXT, MAX_TOKENS_PER_TEXT = 2, 20
"""Speech tokens per text token, at least and at most (specification 4.2)."""


SOS = TokenSegment(EmbeddingTable.CONTROL, (0,))
TASK = TokenSegment(EmbeddingTable.CONTROL, (1,))


@dataclass(frozen=True, slots=True)
class Feed:
    """One run of the model: these embeddings in, one id out of the last position."""

    segments: tuple[TokenSegment, ...]
    banned: tuple[int, ...] = ()
    """Ids that must not be drawn."""
    forced: int | None = None
    """The id to take whatever the model says; the run still has to happen, later ones read what it leaves."""

    @property
    def n_positions(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def speech_id(self) -> int | None:
        """The one speech id this feed consists of: a decode step, which rows of many utterances can share."""
        if self.n_positions != 1 or self.segments[0].table is not EmbeddingTable.SPEECH:
            return None
        return self.segments[0].ids[0]


class Decoding(Protocol):
    """An utterance on its way through the language model."""

    @property
    def done(self) -> bool:
        """No further id will come."""

    def next_feed(self) -> Feed | None:
        """What to run now; None when done or when text is awaited. The same until `consume` is called."""

    def consume(self, drawn: int) -> int | None:
        """Take the id drawn after the last feed; returns it if it is speech to be heard. Raises EngineError."""


def whole_prompt(
    prompt_text: Sequence[int], text: Sequence[int], prompt_speech: Sequence[int]
) -> tuple[TokenSegment, ...]:
    """start | prompt text, text | task | prompt speech (specification 4.1)."""
    words = TokenSegment(EmbeddingTable.TEXT, (*prompt_text, *text))
    speech = TokenSegment(EmbeddingTable.SPEECH, tuple(prompt_speech))
    return tuple(segment for segment in (SOS, words, TASK, speech) if segment.ids)


class SentenceDecoding:
    """All text known: prompt, then one speech id after the other until a stop id or the longest length.

    Only the end-of-speech id waits for the shortest length; the other two stop ids always stop (specification 4.2).
    Text of no tokens says nothing.
    """

    def __init__(self, prompt_text: Sequence[int], text: Sequence[int], prompt_speech: Sequence[int]) -> None:
        self.min_len = MIN_TOKENS_PER_TEXT * len(text)
        self.max_len = MAX_TOKENS_PER_TEXT * len(text)
        self.n_out = 0
        self._done = self.max_len == 0
        self._pending = whole_prompt(prompt_text, text, prompt_speech)

    @property
    def done(self) -> bool:
        return self._done

    def banned_at(self, n_out: int) -> tuple[int, ...]:
        """What must not be drawn after `n_out` ids: known ahead of the draws, so that steps can be queued unseen."""
        return (EOS,) if n_out < self.min_len else ()

    def next_feed(self) -> Feed | None:
        return None if self._done else Feed(self._pending, self.banned_at(self.n_out))

    def consume(self, drawn: int) -> int | None:
        """Ids drawn past the end, by a device that ran ahead, are nothing."""
        if self._done or drawn >= N_SPEECH_TOKENS:
            self._done = True
            return None
        self.n_out += 1
        self._done = self.n_out >= self.max_len
        self._pending = (TokenSegment(EmbeddingTable.SPEECH, (drawn,)),)
        return drawn


class BiStreamDecoding:
    """Text arrives while speech is made: 5 text tokens, up to 15 of speech, a fill id that asks for text, and so on.

    The feed depends on the text alone and not on when it came: arrived tokens are taken one by one, each only when the
    model has nothing left to say without it (specification 4.4).

    `keep_prompt`: prompt speech is interleaved at 15 per 5 text tokens, and where the text ends before that is finished
    the reference drops the rest of the voice's prompt. Nothing has been fed by then, so by default all of it is laid
    out as in `SentenceDecoding` instead, which is what the model was taught for a text it knows from the start. False
    does as the reference does.
    """

    def __init__(
        self,
        prompt_text: Sequence[int],
        prompt_speech: Sequence[int],
        *,
        n_mix_text: int,
        n_mix_speech: int,
        keep_prompt: bool = True,
    ) -> None:
        self.n_out = 0
        """Ids drawn, fill ids included: they count in the fill arithmetic and in the window of the sampling."""
        self.n_speech = 0
        self.n_text_taken = 0
        self._n_mix_text, self._n_mix_speech = n_mix_text, n_mix_speech
        self._prompt_text, self._prompt_speech = tuple(prompt_text), tuple(prompt_speech)
        self._keep_prompt = keep_prompt
        self._arrived: deque[int] = deque()
        self._text: list[int] = []
        """All text taken."""
        self._cached = list(prompt_text)
        """Text taken and not yet part of a feed."""
        self._prompt_left = list(prompt_speech)
        self._pending: tuple[TokenSegment, ...] = (SOS,)
        self._next_fill = (len(prompt_speech) // n_mix_speech + 1) * n_mix_speech - len(prompt_speech)
        self._text_ended = False
        self._speaking = False
        """Between feeding text and the fill id that asks for more."""
        self._final = False
        """All text is fed; only the end of speech is to come."""
        self._whole: SentenceDecoding | None = None
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def max_len(self) -> int:
        """As for a sentence, and one run more, which may be spoken over text of the prompt alone."""
        return MAX_TOKENS_PER_TEXT * self.n_text_taken + self._n_mix_speech

    def push_text(self, ids: Iterable[int]) -> None:
        if self._text_ended:
            raise ValueError("text after end_text()")
        self._arrived.extend(ids)

    def end_text(self) -> None:
        self._text_ended = True

    def next_feed(self) -> Feed | None:
        while not (self._speaking or self._final or self._done or self._whole):
            if self._arrived:
                self._take_text(self._arrived.popleft())
            elif self._text_ended:
                self._finish_text()
            else:
                return None
        if self._done:
            return None
        if self._whole is not None:
            return self._whole.next_feed()
        if not self._final and self.n_out == self._next_fill:
            return Feed(self._pending, banned=(EOS, UNUSED_STOP), forced=FILL)
        if self.n_speech >= self.max_len:
            raise EngineError(
                f"speech did not end after {self.n_speech} tokens for {self.n_text_taken} of text, the most allowed;"
                " say it again with another seed, or as whole sentences"
            )
        return Feed(self._pending, banned=(UNUSED_STOP, FILL) if self._final else (EOS, UNUSED_STOP))

    def consume(self, drawn: int) -> int | None:
        if self._whole is not None:
            speech = self._whole.consume(drawn)
            self.n_out = self.n_speech = self._whole.n_out
            self._done = self._whole.done
            return speech
        if self._done:
            return None
        if self._final and drawn == EOS:
            self._done = True
            return None
        if not self._final and drawn == FILL:
            # The fill id itself is never fed. What was fed last stays pending, as in the reference: it matters only
            # when the text ends here, see _finish_text.
            self._next_fill = self.n_out + self._n_mix_speech + 1
            self.n_out += 1
            self._speaking = False
            return None
        if drawn >= N_SPEECH_TOKENS:
            raise EngineError(f"the speech model drew the id {drawn}, which has no place there; say it again")
        self.n_out += 1
        self.n_speech += 1
        self._pending = (TokenSegment(EmbeddingTable.SPEECH, (drawn,)),)
        return drawn

    def _take_text(self, token: int) -> None:
        """One text token: goes with the prompt's speech while that lasts, then opens the next run of speech."""
        self.n_text_taken += 1
        self._text.append(token)
        self._cached.append(token)
        while self._prompt_left and len(self._cached) >= self._n_mix_text:
            speech = tuple(self._prompt_left[: self._n_mix_speech])
            del self._prompt_left[: self._n_mix_speech]
            self._pending += (self._cut_text(), TokenSegment(EmbeddingTable.SPEECH, speech))
        if self._prompt_left:
            return
        if self.n_out == 0 and self._pending != (SOS,):
            self._speaking = True
        elif len(self._cached) >= self._n_mix_text:
            opening = (SOS,) if self.n_out == 0 else ()
            self._pending = (*opening, self._cut_text())
            self._speaking = True

    def _cut_text(self) -> TokenSegment:
        segment = TokenSegment(EmbeddingTable.TEXT, tuple(self._cached[: self._n_mix_text]))
        del self._cached[: self._n_mix_text]
        return segment

    def _finish_text(self) -> None:
        """The text has ended and the model waits: feed what is left of it and the task id.

        After a fill id the last feed is still pending and goes in a second time: so does the reference, and the
        vectors show it.
        """
        if self.n_text_taken == 0:
            self._done = True
        elif self.n_out == 0 and self._keep_prompt:
            self._whole = SentenceDecoding(self._prompt_text, self._text, self._prompt_speech)
        else:
            rest = (TokenSegment(EmbeddingTable.TEXT, tuple(self._cached)),) if self._cached else ()
            self._pending = (*self._pending, *rest, TASK)
            self._cached.clear()
            self._final = True
