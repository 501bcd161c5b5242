"""The quotes and brackets that are open at a place in the text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from telephony_tts.text.characters import PAIRS, is_cjk

REACH = 100
"""Characters after which an opening without its closer no longer keeps a sentence together."""
_DEPTH = 12
_INTRODUCERS = frozenset(":：,，")


class Role(Enum):
    """The position of a quote or bracket in its sentence, which decides whether the sentence may end with it."""

    HEAD = auto()  # the sentence begins with it
    INTRODUCED = auto()  # after a colon or a comma
    EMBEDDED = auto()  # in the middle of a phrase


@dataclass(frozen=True, slots=True)
class Opening:
    """An opening at `offset` in the turn's source text that waits for `closer`."""

    closer: str
    offset: int
    role: Role


class Nesting:
    """A bounded stack of openings. Unbalanced text never makes it raise or grow."""

    __slots__ = ("_open",)

    def __init__(self, openings: tuple[Opening, ...] = ()) -> None:
        self._open = list(openings)

    def copy(self) -> Nesting:
        return Nesting(tuple(self._open))

    def clear(self) -> None:
        self._open.clear()

    def awaits(self, closer: str) -> bool:
        return any(opening.closer == closer for opening in self._open)

    def close(self, closer: str) -> Opening | None:
        """Remove the innermost opening that `closer` ends, with all openings inside it; None without one."""
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth].closer == closer:
                opening = self._open[depth]
                del self._open[depth:]
                return opening
        return None

    def open(self, char: str, offset: int, before: str) -> None:
        """Add an opening. `before` is the sentence so far, whose last characters decide its role."""
        stripped = before.rstrip()
        last = stripped[-1:]
        if char == "(" and before[-1:] in (":", ";", "-"):
            return  # a smiley
        if not any(c.isalnum() for c in stripped[-REACH:]):
            role = Role.HEAD
        elif last in _INTRODUCERS:
            role = Role.INTRODUCED
        else:
            role = Role.EMBEDDED
        if len(self._open) == _DEPTH:
            del self._open[0]
        self._open.append(Opening(PAIRS.get(char, char), offset, role))

    def straight_quote(self, offset: int, before: str) -> None:
        """A `"` closes an open one, else it opens one. After a digit or letter it means inches and does neither."""
        if self.awaits('"'):
            self.close('"')
        elif not before[-1:].isalnum() or is_cjk(before[-1:]):
            self.open('"', offset, before)

    def holds(self, offset: int) -> bool:
        """Whether an opening within reach still waits for its closer at `offset`."""
        return any(offset - opening.offset <= REACH for opening in self._open)
