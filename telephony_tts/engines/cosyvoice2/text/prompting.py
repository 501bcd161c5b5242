"""Prepares text for the language model: cuts it into pieces, spells it, and lays it out with a voice's prompt."""

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
"""Longer text is cut, between sentences if possible: the model loses words of longer text."""
MOST_TOKENS = 300
"""Tokens of a piece that upstream's rules cut; their usual pieces have 60 to 140."""


class VoicePrompt(Protocol):
    """The parts of a voice that decide what is fed and where blocks end."""

    @property
    def transcript_ids(self) -> tuple[int, ...]: ...

    @property
    def speech_tokens(self) -> tuple[int, ...]: ...

    @property
    def n_flow_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What to say and how. `speed` stretches the mel by linear interpolation, so the pitch stays.

    `grows`: `text` is the beginning, and the rest comes while it is spoken (specification 4.4). `control`: the control
    tokens that act as such in `text`; others are read out like words.
    """

    text: str
    seed: int = 0
    speed: float = 1.0
    instruct: str | None = None
    grows: bool = False
    control: frozenset[str] = frozenset()


def cut(text: str, profile: Profile, tokenizer: TextTokenizer) -> Iterator[tuple[int, int, str]]:
    """The pieces of a text: begin and end in the text, and the spelling for the model."""
    if profile.upstream_text:

        def n_tokens(part: str) -> int:
            return len(tokenizer.encode(part))

        spelt: list[str] = []
        for part in text_rules.normalize(text, n_tokens):
            # Upstream's rules never cut a sentence without an end, and the model would not reach its end.
            cuts = pieces(part, SOFT_CHARS, HARD_CHARS) if n_tokens(part) > MOST_TOKENS else [(0, len(part))]
            spelt += [part[start:end] for start, end in cuts]
        n_spelt, n_done = sum(map(len, spelt)), 0
        for piece in spelt:
            # Signs and numbers are rewritten, so the position of a piece is estimated from its share of the text.
            start, n_done = n_done * len(text) // n_spelt, n_done + len(piece)
            yield start, n_done * len(text) // n_spelt, piece
        return
    for start, end in pieces(text, SOFT_CHARS, HARD_CHARS):
        if is_speakable(text[start:end]):
            yield start, end, with_end(text[start:end].strip())


def with_end(piece: str) -> str:
    """Add an end mark if there is none: without one the model may go on after the text."""
    if not piece[-1:].isalnum():
        return piece
    return piece + ("。" if piece[-1] >= "\u2e80" else ".")


def decoding_of(tokenizer: TextTokenizer, spoken: VoicePrompt, request: Request, text: str) -> SentenceDecoding:
    """The decoding of a piece of text with the voice's prompt (specification 3.4). An instruction replaces the voice's
    transcript. The prompt's speech is then left out, because it does not follow the instruction."""
    ids = tokenizer.encode(text, request.control)
    instruct = (request.instruct or "").strip().removesuffix(END_OF_PROMPT)
    if instruct:
        return SentenceDecoding([*tokenizer.encode(instruct), tokenizer.special_ids[END_OF_PROMPT]], ids, ())
    return SentenceDecoding(spoken.transcript_ids, ids, spoken.speech_tokens)


class GrowingText:
    """Passes text that is still being written into a decoding."""

    def __init__(
        self, decoding: BiStreamDecoding, tokenizer: TextTokenizer, control: frozenset[str], first: str
    ) -> None:
        self._decoding, self._tokenizer, self._control = decoding, tokenizer, control
        self._last = ""
        self._tail = ""
        """The last characters, which tell whether an endless word goes on."""
        self._push(first.lstrip())

    def push(self, text: str, last: bool) -> None:
        """Pass text on. After the last text add an end mark if there is none."""
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
