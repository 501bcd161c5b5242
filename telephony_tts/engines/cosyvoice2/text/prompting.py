"""Prepares text for the language model: cuts it into pieces, spells it, and lays it out with a voice's prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2, ModelFamily
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.text import text_rules
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding, SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.tokenizer import END_OF_PROMPT, ControlledBpe
from telephony_tts.engines.cosyvoice2.text.word_clock import spoken_s
from telephony_tts.engines.words import MAX_WORD_CHARS, clause_ends, is_speakable, pieces, without_endless_words

SOFT_CHARS, HARD_CHARS = 200, 300
"""Longer text is cut, between sentences if possible: the model loses words of longer text."""
MOST_TOKENS = 300
"""Tokens of a piece that upstream's rules cut; their usual pieces have 60 to 140."""
FIRST_CLAUSES_S = 1.2
"""Least length of the first piece, where a flow that cannot stream makes a piece at once. It is heard when all of it is
computed."""
CLAUSES_S = 5.0
"""Longest piece after the first that is made of several clauses. A sentence's end after half of it ends the piece."""
GROWTH = 1.5
"""A piece of several clauses is at most this many times as long as the one before. It is computed while that one is
heard, and a longer one would leave a gap if the engine is little faster than speech."""
LONE_CLAUSE_S = 8.0
"""A longer clause is cut between words."""
LAST_CLAUSES_S = 1.0
"""A shorter last piece joins the one before."""
END_OF_INSTRUCTION = ("<endofprompt>", END_OF_PROMPT)
"""Ends an instruction to CosyVoice-300M, as plain text. The first was probably trained (specification 300M, 3)."""


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
    tokens that act as such in `text`; others are read out like words. `end_of_instruction`: one of
    `END_OF_INSTRUCTION`, for CosyVoice-300M, unless the instruction has one.
    """

    text: str
    seed: int = 0
    speed: float = 1.0
    instruct: str | None = None
    grows: bool = False
    control: frozenset[str] = frozenset()
    end_of_instruction: str = END_OF_INSTRUCTION[0]


def cut(
    text: str, profile: Profile, tokenizer: ControlledBpe, control: frozenset[str] = frozenset()
) -> Iterator[tuple[int, int, str]]:
    """The pieces of a text: begin and end in the text, and the spelling for the model."""
    if profile.whole_pieces:
        # A language tag, which stands at the beginning, holds for all pieces.
        body = text.lstrip()
        tag = next((token for token in control if body.startswith(token)), "")
        first = len(text) - len(body) + len(tag)
        for start, end in clause_pieces(text[first:]):
            yield first + start, first + end, tag + with_end(text[first + start : first + end].strip())
        return
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


def clause_pieces(text: str) -> list[tuple[int, int]]:
    """`[start, end)` of pieces that are heard one after the other, for a flow that computes a piece at once. Spans
    without a word are left out.

    The first piece is short, so that speech starts soon. Later ones are longer, because each end of a piece is an end
    of a phrase for the model.
    """
    found: list[tuple[int, int]] = []
    begin, length_s, ended = 0, 0.0, False
    most_s = CLAUSES_S
    clauses = _short_clauses(text)
    for start, end, is_sentence in clauses:
        clause_s = spoken_s(text[start:end])
        is_full = length_s + clause_s > most_s or (ended and length_s >= CLAUSES_S / 2)
        if length_s and (is_full or (not found and length_s >= FIRST_CLAUSES_S)):
            found.append((begin, start))
            most_s = min(CLAUSES_S, GROWTH * max(length_s, FIRST_CLAUSES_S))
            begin, length_s = start, 0.0
        length_s, ended = length_s + clause_s, is_sentence
    if not is_speakable(text[begin:]):
        return found
    if found and length_s < LAST_CLAUSES_S and spoken_s(text[slice(*found[-1])]) + length_s <= CLAUSES_S:
        begin, _ = found.pop()
    return [*found, (begin, len(text))]


def _short_clauses(text: str) -> Iterator[tuple[int, int, bool]]:
    """Spans that cover the text: clauses, long ones in parts, and whether each ends a sentence."""
    start = 0
    for end, is_sentence in [*clause_ends(text), (len(text), True)]:
        clause = text[start:end]
        clause_s = spoken_s(clause)
        n_most = len(clause) if clause_s <= LONE_CLAUSE_S else max(1, int(len(clause) * LONE_CLAUSE_S / clause_s))
        cuts = pieces(clause, n_most, n_most, 0)
        for i, (first, last) in enumerate(cuts):
            yield start + first, start + last, is_sentence and i == len(cuts) - 1
        start = end


def with_end(piece: str) -> str:
    """Add an end mark if it is missing: without one the model may go on after the text."""
    if not piece[-1:].isalnum():
        return piece
    return piece + ("。" if piece[-1] >= "\u2e80" else ".")


def decoding_of(
    tokenizer: ControlledBpe, spoken: VoicePrompt, request: Request, text: str, family: ModelFamily = COSYVOICE2
) -> SentenceDecoding:
    """The decoding of a piece of text with the voice's prompt (specification 3.4). An instruction replaces the voice's
    transcript. The prompt's speech is then left out, because it does not follow the instruction. CosyVoice-300M also
    leaves out the speaker's row then, and its instruction ends with plain text (specification 300M, 3 and 8)."""
    ids = tokenizer.encode(text, request.control)
    instruct = (request.instruct or "").strip()
    if family.feeds_speaker:
        if not instruct:
            return SentenceDecoding(spoken.transcript_ids, ids, spoken.speech_tokens, family, has_speaker=True)
        if not instruct.endswith(END_OF_INSTRUCTION):
            instruct += request.end_of_instruction
        return SentenceDecoding(tokenizer.encode(instruct), ids, (), family)
    instruct = instruct.removesuffix(END_OF_PROMPT)
    if instruct:
        return SentenceDecoding([*tokenizer.encode(instruct), tokenizer.special_ids[END_OF_PROMPT]], ids, ())
    return SentenceDecoding(spoken.transcript_ids, ids, spoken.speech_tokens)


class GrowingText:
    """Passes text that is still being written into a decoding."""

    def __init__(
        self, decoding: BiStreamDecoding, tokenizer: ControlledBpe, control: frozenset[str], first: str
    ) -> None:
        self._decoding, self._tokenizer, self._control = decoding, tokenizer, control
        self._last = ""
        self._tail = ""
        """The last characters, which tell whether an endless word goes on."""
        self._push(first.lstrip())

    def push(self, text: str, last: bool) -> None:
        """Pass text on. After the last text add an end mark if it is missing."""
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
