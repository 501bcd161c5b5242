"""Splits the deltas of a bot's text into sentences; each is emitted as soon as it is certainly complete.

The text is read once, from left to right, and only at terminators, line ends, quotes and brackets. At a terminator the
rules of `boundaries` answer from the fed text or wait for more (`lookahead`). So the same text gives the same
sentences, however it is cut into deltas. The pending text is bounded by `max_chars` and a short look-ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from telephony_tts.text.atoms import forced_cut, held_tail, last_clause_end
from telephony_tts.text.boundaries import ends_sentence, is_list_marker, list_number
from telephony_tts.text.characters import (
    CLAUSE,
    CLOSING,
    CONTENT,
    DASHES,
    NEWLINES,
    NON_SPACE,
    PAIRS,
    TERMINATORS,
    is_cjk,
    width,
)
from telephony_tts.text.languages.korean.endings import ends_without_stop
from telephony_tts.text.lookahead import Starved, View, read_run
from telephony_tts.text.nesting import Nesting

_MIN_MAX_CHARS = 16
_CLAUSE_RUN_MAX = 8


def _any_of(*classes: frozenset[str]) -> re.Pattern[str]:
    """Characters of `classes`, and blanks where a Korean sentence may end."""
    chars = re.escape("".join(sorted(frozenset().union(*classes))))
    return re.compile(f"[{chars}]|(?<=[다요까죠오님~～^ㅎㅋㅠㅜ)]) ")


_EVENT = _any_of(TERMINATORS, NEWLINES, frozenset(PAIRS), CLOSING, frozenset('"'))
_EVENT_OR_CLAUSE = _any_of(TERMINATORS, NEWLINES, frozenset(PAIRS), CLOSING, frozenset('"'), CLAUSE, DASHES)


@dataclass(frozen=True, slots=True)
class Sentence:
    """`text` is exactly `source[start:end]`; the source is all text fed since the last reset()."""

    text: str
    start: int
    end: int


class Segmenter:
    """Incremental sentence segmentation of one turn at a time.

    `lang` is only stored: the characters show the script. With `first_clause_chars` > 0 the first sentence of a turn
    may end early at a clause mark after that many characters (a wide one counts as 2). `max_chars` bounds a sentence
    that does not end. Raises ValueError for a `max_chars` below 16 or a negative `first_clause_chars`.
    """

    def __init__(self, lang: str | None = None, *, first_clause_chars: int = 0, max_chars: int = 240) -> None:
        if max_chars < _MIN_MAX_CHARS:
            raise ValueError(f"max_chars is {max_chars}, must be at least {_MIN_MAX_CHARS}")
        if first_clause_chars < 0:
            raise ValueError(f"first_clause_chars is {first_clause_chars}, must not be negative")
        self._first_clause_chars = first_clause_chars
        self._max_chars = max_chars
        self.reset(lang)

    def reset(self, lang: str | None = None) -> None:
        """Start a new turn: the next character has offset 0."""
        self.lang = lang
        self._view = View()
        self._nesting = Nesting()
        self._place = 0
        self._paused = False
        self._event = _EVENT_OR_CLAUSE if self._first_clause_chars else _EVENT

    @property
    def pending(self) -> str:
        """The text that was fed and not yet emitted."""
        return self._view.text[self._view.start :]

    def feed(self, text: str) -> list[Sentence]:
        """Add text of any length. Returns the sentences that are now certainly complete."""
        sentences: list[Sentence] = []
        if text:
            self._paused = False
            self._view.text += text
            self._scan(sentences, None)
            self._trim()
        return sentences

    def flush(self) -> list[Sentence]:
        """End the turn's text. Returns all pending text as sentences, without parts that have nothing to say."""
        sentences: list[Sentence] = []
        view = self._view
        view.ended = True
        self._scan(sentences, None)
        self._cut(sentences, len(view.text), whole=True)
        self._view = View(base=view.base + len(view.text))
        self._nesting.clear()
        self._place = 0
        self._paused = False
        return sentences

    def timeout(self) -> list[Sentence]:
        """The bot has paused: return the pending text, except for what further text could still change.

        A number, amount, id or address at the end stays pending until more text or flush(). An ordinary word at the end
        may be the beginning of one ("exam" of "example.com"), so its whole clause stays pending too, and so does a list
        marker without its item. A second timeout() without new text emits these.
        """
        sentences: list[Sentence] = []
        view = self._view
        held, is_atom = held_tail(self.pending)
        is_second, self._paused = self._paused, True
        if is_second and not is_atom:
            held = len(self.pending)
        stop = view.start + held
        # The state of reading as if the text ended here is restored: the rest is read again when more text comes.
        place, nesting, list_number = self._place, self._nesting.copy(), view.list_number
        view.ended = True
        self._scan(sentences, stop)
        view.ended = False
        rest = view.text[view.start : stop]
        n_spoken = len(rest) if is_atom or stop == len(view.text) else last_clause_end(rest)
        if n_spoken > 0 and (is_second or not is_list_marker(rest[:n_spoken])):
            self._cut(sentences, view.start + n_spoken, whole=rest[:n_spoken].rstrip()[-1:] in TERMINATORS)
        self._place, self._nesting, view.list_number = max(place, view.start), nesting, list_number
        self._trim()
        return sentences

    def _scan(self, out: list[Sentence], stop: int | None) -> None:
        """Read from the last place to the end of the text, or until a sentence would end after `stop`."""
        view = self._view
        text = view.text
        while True:
            if self._place <= view.start:
                self._skip_blanks()
            limit = view.start + self._max_chars
            event = self._event.search(text, self._place, limit)
            if event is None:
                if len(text) <= limit or (stop is not None and limit > stop):
                    self._place = len(text)
                    return
                self._place = max(self._place, limit)
                self._cut(out, forced_cut(text, view.start, limit), whole=False)
                continue
            self._place = event.start()
            char = event.group()
            try:
                end, resume = self._judge(char)
            except Starved:
                return
            if end is not None:
                if stop is not None and end > stop:
                    return
                self._cut(out, end, whole=char in TERMINATORS or char in NEWLINES or char == " ")
            self._place = resume

    def _skip_blanks(self) -> None:
        """Move the start of the next sentence to its first character."""
        view = self._view
        found = NON_SPACE.search(view.text, view.start)
        first = found.start() if found else len(view.text)
        if any(char in NEWLINES for char in view.text[view.start : first]):
            view.line_start, view.bold = True, False
            self._nesting.clear()
        view.start = self._place = first

    def _judge(self, char: str) -> tuple[int | None, int]:
        """Judge `char` at the reading place: (the end of the sentence or None, where to continue reading)."""
        view, place = self._view, self._place
        if char in TERMINATORS:
            return self._judge_terminator()
        if char in NEWLINES:
            line = view.text[view.start : place]
            if not CONTENT.search(line) or is_list_marker(line):
                return None, place + 1
            return place, place
        if char == " ":
            ends = not self._nesting.holds(view.base + place) and ends_without_stop(view, place)
            return (place, place) if ends else (None, place + 1)
        if char in PAIRS:
            self._nesting.open(char, view.base + place, view.text[view.start : place])
        elif char == '"':
            self._nesting.straight_quote(view.base + place, view.text[view.start : place])
        elif char in CLOSING:
            self._nesting.close(char)
        elif (end := self._clause_end()) is not None:
            return end, end
        return None, place + 1

    def _judge_terminator(self) -> tuple[int | None, int]:
        view = self._view
        nesting = self._nesting.copy()
        run = read_run(view, self._place, nesting)
        number = list_number(view, run)
        ends = number is None and not nesting.holds(view.base + self._place) and ends_sentence(view, run)
        self._nesting = nesting
        if number is not None:
            view.list_number = number
        return (run.end if ends else None), run.end

    def _clause_end(self) -> int | None:
        """The end of an early cut of the first sentence at the clause mark at the reading place; None for no cut."""
        view, place = self._view, self._place
        head = view.text[view.start : place]
        if self._nesting.holds(view.base + place) or width(head) < self._first_clause_chars or not CONTENT.search(head):
            return None
        end = place + 1
        while end - place < _CLAUSE_RUN_MAX and (view.at(end) in CLAUSE or view.at(end) in DASHES) and view.at(end):
            end += 1
        after = end
        while after - end < _CLAUSE_RUN_MAX and view.at(after).isspace():
            after += 1
        mark, left, right = view.text[place], head.rstrip()[-1:], view.at(after)
        if not right or (left.isdigit() and right.isdigit()):
            return None
        if mark in ",;:" and after == end and not is_cjk(right):
            return None
        if mark == "-" and end == place + 1 and not (head[-1:].isspace() and after > end):
            return None
        return end

    def _cut(self, out: list[Sentence], end: int, *, whole: bool) -> None:
        """Emit the pending text up to `end`. The next text is a new sentence if `whole`, else the rest of this one."""
        view = self._view
        text = view.text[view.start : end].rstrip()
        view.bold = view.emphasised("*", end)
        if CONTENT.search(text):
            start = view.base + view.start
            out.append(Sentence(text, start, start + len(text)))
            self._event = _EVENT
        view.start = end
        view.whole, view.line_start = whole, False
        while view.start < self._place and view.text[view.start].isspace():
            view.start += 1

    def _trim(self) -> None:
        """Drop the emitted text."""
        view = self._view
        view.text = view.text[view.start :]
        view.base += view.start
        self._place -= view.start
        view.start = 0
