"""The marks of one turn. Each mark is in exactly one state, and ends as `PLAYED` or `CLEARED`.

    ASKED ──► PLACED ──► SENT ──┬─► PLAYED
                  │       │     └─► CLEARED
                  └───────┴► TIMED ──► the same two

A mark with a name is the bot's, and its end is reported to the bot. A mark without a name is ours: its echo tells
where the peer is in the audio.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from telephony_tts.session.digits import Digits

NO_SAMPLE = sys.maxsize


class MarkState(Enum):
    ASKED = 1
    """Its place in the text is known, its place in the audio is not."""
    PLACED = 2
    """Its sample is known. The peer does not have it yet, or the peer reports no marks at all."""
    SENT = 3
    """The peer has it, and will report when it has played it."""
    TIMED = 4
    """The peer will not report it. It is played when the playhead reaches its sample."""
    PLAYED = 5
    CLEARED = 6


_ENDS = frozenset({MarkState.PLAYED, MarkState.CLEARED})
_NEXT: dict[MarkState, frozenset[MarkState]] = {
    MarkState.ASKED: _ENDS | {MarkState.PLACED},
    # Back to ASKED: the turn is synthesised again for another codec, or another engine goes on with it.
    MarkState.PLACED: _ENDS | {MarkState.ASKED, MarkState.SENT, MarkState.TIMED},
    # Back to PLACED: the frames before it are sent again.
    MarkState.SENT: _ENDS | {MarkState.PLACED, MarkState.TIMED},
    MarkState.TIMED: _ENDS,
    MarkState.PLAYED: frozenset(),
    MarkState.CLEARED: frozenset(),
}


@dataclass(slots=True, eq=False)
class TurnMark:
    """A place in the speech of a turn, behind `offset` characters of its text and `n_inserts` of its inserts."""

    name: str | None
    offset: int
    n_inserts: int = 0
    sample: int = 0
    """Its place in the turn's audio, once it is placed."""
    state: MarkState = MarkState.ASKED
    wire_name: str = ""
    """What the peer calls it, while it is sent."""
    digits: Digits | None = None
    """The platform sends these when the mark is played. The bot does not know of such a mark."""

    @property
    def is_ours(self) -> bool:
        """Whether it is the server's own: it is not of the bot, and no tones follow it."""
        return self.name is None and self.digits is None


def _place(mark: TurnMark) -> tuple[int, int]:
    return mark.offset, mark.n_inserts


_ORDER = {MarkState.PLACED: 1, MarkState.ASKED: 2}
"""Sent marks stand before placed marks, and these before marks that are asked for."""


class TurnMarks:
    """The marks of one turn that have not ended.

    They are one list: marks that are asked for stand at its end, in the order of the text. The others stand in the
    order in which they are sent.
    """

    def __init__(self) -> None:
        self.live: list[TurnMark] = []
        self.next_sample = NO_SAMPLE
        """The sample of the next mark to be sent; NO_SAMPLE if no mark is placed."""
        self.end_is_sent = False
        """The peer has the mark at the end of the turn."""

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[TurnMark]:
        """All marks in the order of the text."""
        return iter(sorted(self.live, key=_place))

    def first(self, state: MarkState) -> TurnMark | None:
        return next((mark for mark in self.live if mark.state is state), None)

    def in_state(self, state: MarkState) -> list[TurnMark]:
        return [mark for mark in self.live if mark.state is state]

    def sent_as(self, wire_name: str) -> TurnMark | None:
        """The mark that the peer knows by this name; None if the peer is no longer expected to report it."""
        return next((mark for mark in self.in_state(MarkState.SENT) if mark.wire_name == wire_name), None)

    # ------------------------------------------------------------- new marks

    def ask(self, name: str | None, offset: int, n_inserts: int = 0, digits: Digits | None = None) -> None:
        """Add a mark whose place in the audio is not known yet."""
        at = len(self.live)
        while at and self.live[at - 1].state is MarkState.ASKED and _place(self.live[at - 1]) > (offset, n_inserts):
            at -= 1
        self.live.insert(at, TurnMark(name, offset, n_inserts, digits=digits))

    def add_ours(self, sample: int, offset: int = 0, n_inserts: int = 0) -> None:
        """Add a mark of ours at a known sample, behind the placed marks up to there."""
        self._insert(TurnMark(None, offset, n_inserts, sample, MarkState.PLACED), sample)

    def add_beginning(self, sample: int) -> None:
        """Add a mark of ours that is sent before all others: its echo tells when the peer began to play."""
        self._insert(TurnMark(None, 0, sample=sample, state=MarkState.PLACED), -1)

    def has_beginning(self, sample: int) -> bool:
        """Whether the mark of `add_beginning` waits to be sent, for the first time or again."""
        return any(mark.is_ours and mark.sample == sample for mark in self.in_state(MarkState.PLACED))

    def _insert(self, mark: TurnMark, behind_sample: int) -> None:
        """Insert a placed mark behind those that are placed up to `behind_sample`."""
        at = len(self.live)
        for n, other in enumerate(self.live):
            if other.state is MarkState.ASKED or (other.state is MarkState.PLACED and other.sample > behind_sample):
                at = n
                break
        self.live.insert(at, mark)
        self._find_next()

    # --------------------------------------------------------- from state to state

    def place(self, mark: TurnMark, sample: int) -> None:
        """The place of a mark in the audio is known."""
        self._set(mark, MarkState.PLACED)
        mark.sample = sample
        self._find_next()

    def send(self, mark: TurnMark, wire_name: str) -> None:
        """The peer gets the mark."""
        self._set(mark, MarkState.SENT)
        mark.wire_name = wire_name
        self._find_next()

    def leave_to_clock(self, mark: TurnMark) -> None:
        """The peer will not report the mark. A mark of ours tells nothing then, so it ends."""
        self._set(mark, MarkState.CLEARED if mark.is_ours else MarkState.TIMED)
        self._find_next()

    def end(self, mark: TurnMark, state: MarkState) -> None:
        """The mark was `PLAYED` or `CLEARED`."""
        self._set(mark, state)
        self._find_next()

    def take_back(self, n_sent_samples: int) -> None:
        """Only so many samples count as sent now. Marks behind them are sent again."""
        self.end_is_sent = False
        for mark in self.in_state(MarkState.SENT):
            if mark.sample > n_sent_samples:
                self._set(mark, MarkState.PLACED)
        # Behind the marks that the peer still has; `sort` keeps the order of the others.
        self.live.sort(key=lambda mark: _ORDER.get(mark.state, 0))
        self._find_next()

    def begin_again(self) -> None:
        """The turn is synthesised again: no place in its audio is known any more."""
        for mark in self.live[:]:
            if mark.is_ours:
                self._set(mark, MarkState.CLEARED)
            elif mark.state is MarkState.PLACED:
                self._set(mark, MarkState.ASKED)
        self._find_next()

    def cut(self, sample: int) -> None:
        """The audio behind `sample` was dropped, so the marks there have no place again. Ours end."""
        for mark in self.in_state(MarkState.PLACED):
            if mark.sample > sample:
                self._set(mark, MarkState.CLEARED if mark.is_ours else MarkState.ASKED)
        self.live.sort(key=lambda mark: _ORDER.get(mark.state, 0))
        self._find_next()

    def _set(self, mark: TurnMark, state: MarkState) -> None:
        assert state in _NEXT[mark.state], f"a mark cannot go from {mark.state} to {state}"
        mark.state = state
        if state in _ENDS:
            self.live.remove(mark)

    def _find_next(self) -> None:
        mark = self.first(MarkState.PLACED)
        self.next_sample = NO_SAMPLE if mark is None else mark.sample
