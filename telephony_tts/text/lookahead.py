"""The text around the reading place, and the only way to ask for more of it.

This makes the result independent of how the text is cut into deltas. Every decision reads characters through `View.at`,
and reading past the fed text raises `Starved`. The decision starts again from scratch when more text has come. So a
decision depends only on characters that it has seen, and it would be the same for the whole text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from telephony_tts.text.characters import (
    APOSTROPHES,
    CLOSING,
    ELLIPSIS,
    EXCLAIM,
    MARKUP,
    NEWLINES,
    STRONG,
    TERMINATORS,
    is_pictograph,
)
from telephony_tts.text.nesting import Nesting, Opening

_STARS = re.compile(r"(?<=\S)\*+|\*+(?=\S)")
_RUN_MAX = 32
_GAP_MAX = 16
_WORD_MAX = 24


class Starved(Exception):
    """A decision needs a character that has not been fed yet."""


@dataclass(slots=True)
class View:
    """The pending text, and the state of the sentence that begins at `start`.

    `base` is the offset of `text[0]` in the turn's source. `whole` is false if the beginning of the sentence was
    already emitted (a clause or forced cut). `line_start` is false if the sentence does not start its line.
    `list_number` is the rank of the last list marker. With `bold` the sentence begins inside **emphasis**.
    """

    text: str = ""
    base: int = 0
    start: int = 0
    ended: bool = False
    whole: bool = True
    line_start: bool = True
    list_number: int = 0
    bold: bool = False

    def at(self, index: int) -> str:
        """The character at `index`, or "" after the end of the turn. Raises Starved if it was not fed yet."""
        if index < len(self.text):
            return self.text[index]
        if self.ended:
            return ""
        raise Starved

    def before(self, index: int) -> str:
        """The character left of `index` in the sentence, or ""."""
        return self.text[index - 1] if index > self.start else ""

    def emphasised(self, mark: str, end: int) -> bool:
        """Whether the emphasis that `mark` ends is open at `end`. A wave (~) is not emphasis and always ends."""
        if mark == "*":
            return self.bold != bool(len(_STARS.findall(self.text, self.start, end)) % 2)
        return mark in "~～" or self.text.count(mark, self.start, end) % 2 == 1

    def word(self, index: int) -> str:
        """The letters and digits from `index` on, at most 24 of them."""
        end = index
        while end - index < _WORD_MAX and self.at(end).isalnum():
            end += 1
        return self.text[index:end]


@dataclass(slots=True)
class Run:
    """Terminators with their closers, `text[start:end]`; the text continues at `next`, after an optional gap.

    `strong` and `exclaim`: the run has such a terminator. `calls`: the last one is an exclamation or question mark.
    `closed_after`: closers follow the last terminator. `quote_closed`: one of them closes the quote of `opening`.
    """

    start: int
    end: int
    next: int = 0
    gap: bool = False
    newline: bool = False
    strong: bool = False
    exclaim: bool = False
    calls: bool = False
    n_dots: int = 0
    wide_dot: bool = False
    closed_after: bool = False
    quote_closed: bool = False
    emphasis: bool = False
    opening: Opening | None = None

    @property
    def ellipsis(self) -> bool:
        return self.n_dots > 1


def read_run(view: View, start: int, nesting: Nesting) -> Run:
    """Read the run that begins with the terminator at `start`, and close in `nesting` what the run closes."""
    run = Run(start, start)
    place = start
    while place - start < _RUN_MAX:
        char = view.at(place)
        if char in TERMINATORS:
            _count(run, char)
        elif char in CLOSING or char in APOSTROPHES:
            run.opening = nesting.close(char) or run.opening
            run.closed_after = True
            run.quote_closed = run.quote_closed or char in "”」』｣»\"'’"
        elif char == '"' and (nesting.awaits('"') or _is_space_or_end(view.at(place + 1))):
            run.opening = nesting.close('"') or run.opening
            run.closed_after = run.quote_closed = True
        elif char in MARKUP:
            if not run.emphasis and not view.emphasised(char, place):
                break
            run.emphasis = True
        elif char.isspace() and char not in NEWLINES:
            after = _skip_gap(view, place)
            if not _extends(view, after):
                run.gap, run.next = True, after
                run.newline = view.at(after) in NEWLINES
                return run
            place = run.end = after
            continue
        elif not is_pictograph(char):
            break
        place = run.end = place + 1
    run.next = place
    run.newline = view.at(place) in NEWLINES
    return run


def _count(run: Run, char: str) -> None:
    behind_closers = run.closed_after
    run.closed_after = run.quote_closed = False
    run.opening = None
    run.calls = char in "!?！？‼⁉"
    if char in STRONG:
        run.strong = True
    elif char in EXCLAIM:
        run.exclaim = True
    elif char in ELLIPSIS:
        run.n_dots += 3
    elif not (behind_closers and run.n_dots == 1):  # "etc.)." is not an ellipsis
        run.n_dots += 1
        run.wide_dot = run.wide_dot or char == "．"


def _is_space_or_end(char: str) -> bool:
    return not char or char.isspace()


def _skip_gap(view: View, place: int) -> int:
    end = place
    while end - place < _GAP_MAX and view.at(end).isspace() and view.at(end) not in NEWLINES:
        end += 1
    return end


def _extends(view: View, place: int) -> bool:
    """Whether the text after a gap belongs to the run: ". . .", "! !", a stray closer, an emoji."""
    char = view.at(place)
    if char == ".":
        following = view.at(place + 1)
        return not following.isalnum()
    return bool(char) and (char in TERMINATORS or char in CLOSING or is_pictograph(char))
