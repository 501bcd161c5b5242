"""Text on its way to the language model: cut into what is said in one go, spelt, and laid out with a voice's prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.text import text_rules
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding, SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.tokenizer import END_OF_PROMPT, TextTokenizer
from telephony_tts.engines.words import MAX_WORD_CHARS, is_speakable, pieces, without_endless_words

SOFT_CHARS, HARD_CHARS = 200, 300
"""Longer text is cut, at sentences where it can be: a model that is given more loses words."""
MOST_TOKENS = 300
"""Of a piece as upstream cuts it, which is 60 to 140 where sentences end."""


class Spoken(Protocol):
    """What of a voice decides what is fed, and where blocks end."""

    @property
    def transcript_ids(self) -> tuple[int, ...]: ...

    @property
    def speech_tokens(self) -> tuple[int, ...]: ...

    @property
    def n_flow_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What to say and how. `speed` stretches the mel, by linear interpolation, so the pitch stays.

    `grows`: `text` is a beginning, and the rest comes while it is spoken (specification 4.4). `control` are the control
    tokens that mean what they say in `text`; all others are read like any word.
    """

    text: str
    seed: int = 0
    speed: float = 1.0
    instruct: str | None = None
    grows: bool = False
    control: frozenset[str] = frozenset()


def cut(text: str, profile: Profile, tokenizer: TextTokenizer) -> Iterator[tuple[int, int, str]]:
    """What is to be spoken in one go: where it stands in the text, and how it is spelt for the model."""
    if profile.upstream_text:

        def n_tokens(part: str) -> int:
            return len(tokenizer.encode(part))

        spelt: list[str] = []
        for part in text_rules.normalize(text, n_tokens):
            # A sentence without an end is never cut there, and the model would not come to its end either.
            cuts = pieces(part, SOFT_CHARS, HARD_CHARS) if n_tokens(part) > MOST_TOKENS else [(0, len(part))]
            spelt += [part[start:end] for start, end in cuts]
        n_spelt, n_done = sum(map(len, spelt)), 0
        for piece in spelt:
            # Signs and numbers are rewritten, so a piece's place in the text is told by its share of it.
            start, n_done = n_done * len(text) // n_spelt, n_done + len(piece)
            yield start, n_done * len(text) // n_spelt, piece
        return
    for start, end in pieces(text, SOFT_CHARS, HARD_CHARS):
        if is_speakable(text[start:end]):
            yield start, end, with_end(text[start:end].strip())


def with_end(piece: str) -> str:
    """The model takes the end of a sentence from its sign, and without one it may go on."""
    if not piece[-1:].isalnum():
        return piece
    return piece + ("。" if piece[-1] >= "\u2e80" else ".")


def decoding_of(tokenizer: TextTokenizer, spoken: Spoken, request: Request, text: str) -> SentenceDecoding:
    """The language model's prompt (specification 3.4). An instruction takes the place of the voice's transcript, and
    the prompt's speech, which does not follow it, is left out."""
    ids = tokenizer.encode(text, request.control)
    instruct = (request.instruct or "").strip().removesuffix(END_OF_PROMPT)
    if instruct:
        return SentenceDecoding([*tokenizer.encode(instruct), tokenizer.special_ids[END_OF_PROMPT]], ids, ())
    return SentenceDecoding(spoken.transcript_ids, ids, spoken.speech_tokens)


class GrowingText:
    """The bot's text on its way into a decoding."""

    def __init__(
        self, decoding: BiStreamDecoding, tokenizer: TextTokenizer, control: frozenset[str], first: str
    ) -> None:
        self._decoding, self._tokenizer, self._control = decoding, tokenizer, control
        self._last = ""
        self._tail = ""
        """As much of what came as tells whether an endless word goes on."""
        self._push(first.lstrip())

    def push(self, text: str, last: bool) -> None:
        """Hand on what has come, and at the end the sign of it where the text has none."""
        self._push(text)
        if last:
            if self._last.isalnum():
                self._push(with_end(self._last)[1:])
            self._decoding.end_text()

    def _push(self, text: str) -> None:
        spoken = without_endless_words(self._tail + text)[len(self._tail) :]
        self._tail = (self._tail + text)[-MAX_WORD_CHARS:]
        ids = self._tokenizer.encode(spoken, self._control)
        self._decoding.push_text(ids)
        self._last = spoken.rstrip()[-1:] or self._last
