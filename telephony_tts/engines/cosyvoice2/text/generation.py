"""Decides what the language model is fed next and when speech ends. It touches no tensor.

`next_feed()` gives the next run of the model. `consume(id)` takes the id that was drawn from it. `SentenceDecoding` has
its whole text from the start; `BiStreamDecoding` gets text while it speaks. Both end: the first stops at its longest
length, and the second raises EngineError there. The rules are from the specification, 4.1, 4.2 and 4.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.cosyvoice2.model.config import (
    COSYVOICE2,
    EOS,
    FILL,
    N_SPEECH_TOKENS,
    UNUSED_STOP,
    ModelFamily,
)
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.runtime.errors import EngineError

MIN_TOKENS_PER_TEXT, MAX_TOKENS_PER_TEXT = 2, 20
"""Speech ids for each text token, at least and at most (specification 4.2)."""


SOS = TokenSegment(EmbeddingTable.CONTROL, (0,))
TASK = TokenSegment(EmbeddingTable.CONTROL, (1,))
SPEAKER = TokenSegment(EmbeddingTable.SPEAKER, (0,))


@dataclass(frozen=True, slots=True)
class LmFeed:
    """One run of the model: the embeddings of `segments`, none empty, and one id drawn from the last position."""

    segments: tuple[TokenSegment, ...]
    banned: tuple[int, ...] = ()
    """Ids that must not be drawn."""
    forced: int | None = None
    """The id to take instead of a draw. The run still happens, because later runs read its keys and values."""
    n_banned: int = 1
    """So many draws, this one included, have this ban, and those after them none. Only for a whole sentence."""

    @property
    def n_positions(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def speech_id(self) -> int | None:
        """The speech id of a feed of a single one, which is a decode step; else None."""
        if len(self.segments) != 1:
            return None
        (segment,) = self.segments
        return segment.ids[0] if segment.table is EmbeddingTable.SPEECH and len(segment.ids) == 1 else None


class Decoding(Protocol):
    """The decoding of one piece of text."""

    @property
    def done(self) -> bool:
        """No further id comes."""

    def next_feed(self) -> LmFeed | None:
        """The next run; None if it is done or waits for text. It stays the same until `consume` is called."""

    def consume(self, drawn: int) -> int | None:
        """Take the id drawn after the last feed. Returns it if it is speech. Raises EngineError if it is invalid."""


def whole_prompt(
    prompt_text: Sequence[int], text: Sequence[int], prompt_speech: Sequence[int], *, has_speaker: bool = False
) -> tuple[TokenSegment, ...]:
    """start | prompt text, text | task | prompt speech (specification 4.1). CosyVoice-300M has a row for the speaker
    after the start (specification 300M, 4)."""
    words = TokenSegment(EmbeddingTable.TEXT, (*prompt_text, *text))
    speech = TokenSegment(EmbeddingTable.SPEECH, tuple(prompt_speech))
    opening = (SOS, SPEAKER) if has_speaker else (SOS,)
    return tuple(segment for segment in (*opening, words, TASK, speech) if segment.ids)


class SentenceDecoding:
    """All text is known: the prompt, then one speech id after the other up to a stop id or the longest length.

    The end-of-speech id is banned below the shortest length; CosyVoice2's other two stop ids always stop (specification
    4.2). Text without tokens is done at once.
    """

    def __init__(
        self,
        prompt_text: Sequence[int],
        text: Sequence[int],
        prompt_speech: Sequence[int],
        family: ModelFamily = COSYVOICE2,
        *,
        has_speaker: bool = False,
    ) -> None:
        self.min_len = MIN_TOKENS_PER_TEXT * len(text)
        self.max_len = MAX_TOKENS_PER_TEXT * len(text)
        self.n_out = 0
        self._done = self.max_len == 0
        self._end = family.end_of_speech
        self._pending = whole_prompt(prompt_text, text, prompt_speech, has_speaker=has_speaker)

    @property
    def done(self) -> bool:
        return self._done

    def banned_at(self, n_out: int) -> tuple[int, ...]:
        """Ids that must not be drawn after `n_out` ids. Known ahead, so a device can draw several ids in a row."""
        return (self._end,) if n_out < self.min_len else ()

    def banned_from(self, n_out: int, n: int) -> tuple[tuple[int, ...], ...]:
        """`banned_at` for `n_out` ids, one more, and so on: `n` times."""
        n_banned = min(n, max(0, self.min_len - n_out))
        return ((self._end,),) * n_banned + ((),) * (n - n_banned)

    def next_feed(self) -> LmFeed | None:
        if self._done:
            return None
        banned = self.banned_at(self.n_out)
        return LmFeed(self._pending, banned, n_banned=max(1, self.min_len - self.n_out))

    def consume(self, drawn: int) -> int | None:
        """Ids past the end, from a device that drew ahead, are dropped."""
        if self._done or drawn >= self._end:
            self._done = True
            return None
        self.n_out += 1
        self._done = self.n_out >= self.max_len
        self._pending = (TokenSegment(EmbeddingTable.SPEECH, (drawn,)),)
        return drawn

    def consume_all(self, drawn: Sequence[int]) -> list[int]:
        """`consume` for each of several ids, in order. Returns those that are speech."""
        if self._done:
            return []
        n_left = self.max_len - self.n_out
        n = next((i for i, each in enumerate(drawn[:n_left]) if each >= self._end), min(len(drawn), n_left))
        self.n_out += n
        self._done = n == n_left or n < len(drawn)
        if n:
            self._pending = (TokenSegment(EmbeddingTable.SPEECH, (drawn[n - 1],)),)
        return list(drawn[:n])


class BiStreamDecoding:
    """Text arrives while speech is made: some text tokens, some speech ids, a fill id that asks for text, and so on.
    `n_mix_text` and `n_mix_speech` are the checkpoint's numbers of both, officially 5 and 15.

    The feeds depend only on the text, not on when it arrives: a text token is taken when the model needs it to go on
    (specification 4.4).

    `keep_prompt`: the prompt's speech is interleaved with the first text tokens. If the text ends before that is
    finished, the reference drops the rest of the prompt's speech (False). Nothing is fed by then. So by default the
    whole prompt is laid out as in `SentenceDecoding`, as the model was trained for text that is known from the start.
    The golden vectors of the reference need False.
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
        """Ids drawn, fill ids included: they count for the next fill id and in the window of the sampling."""
        self.n_speech = 0
        self.n_text_taken = 0
        self._n_mix_text, self._n_mix_speech = n_mix_text, n_mix_speech
        self._prompt_text, self._prompt_speech = tuple(prompt_text), tuple(prompt_speech)
        self._keep_prompt = keep_prompt
        self._arrived: deque[int] = deque()
        self._text: list[int] = []
        """All text tokens taken."""
        self._cached = list(prompt_text)
        """Text tokens taken that are in no feed yet."""
        self._prompt_left = list(prompt_speech)
        self._pending: tuple[TokenSegment, ...] = (SOS,)
        self._next_fill = (len(prompt_speech) // n_mix_speech + 1) * n_mix_speech - len(prompt_speech)
        self._text_ended = False
        self._speaking = False
        """Text is fed, and no fill id has asked for more."""
        self._final = False
        """All text is fed; speech goes on to its end."""
        self._whole: SentenceDecoding | None = None
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def max_len(self) -> int:
        """Speech ids at most: as for a sentence, and one run more, which may need only the prompt's text."""
        return MAX_TOKENS_PER_TEXT * self.n_text_taken + self._n_mix_speech

    def push_text(self, ids: Iterable[int]) -> None:
        if self._text_ended:
            raise ValueError("push_text() was called after end_text()")
        self._arrived.extend(ids)

    def end_text(self) -> None:
        self._text_ended = True

    def next_feed(self) -> LmFeed | None:
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
            return LmFeed(self._pending, banned=(EOS, UNUSED_STOP), forced=FILL)
        if self.n_speech >= self.max_len:
            raise EngineError(
                f"speech did not end after {self.n_speech} tokens for {self.n_text_taken} of text, the most allowed;"
                " say it again with another seed, or as whole sentences"
            )
        return LmFeed(self._pending, banned=(UNUSED_STOP, FILL) if self._final else (EOS, UNUSED_STOP))

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
            # The fill id is never fed. The last feed stays pending, as in the reference. That matters only if the text
            # ends here: see _finish_text.
            self._next_fill = self.n_out + self._n_mix_speech + 1
            self.n_out += 1
            self._speaking = False
            return None
        if drawn >= N_SPEECH_TOKENS:
            raise EngineError(f"the speech model drew the id {drawn} out of place; say it again")
        self.n_out += 1
        self.n_speech += 1
        self._pending = (TokenSegment(EmbeddingTable.SPEECH, (drawn,)),)
        return drawn

    def _take_text(self, token: int) -> None:
        """Take a text token. It goes with the prompt's speech while some is left, and then opens a run of speech."""
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
        """The text has ended and the model waits: feed the rest of the text and the task id.

        After a fill id the last feed is still pending and is fed a second time, as in the reference and its vectors.
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
