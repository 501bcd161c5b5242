"""One call's files, played one after the other: what is asked of FreeSWITCH, and when a file has truly ended. Pure.

FreeSWITCH is given one file at a time. Whatever waits, waits here, where a clear finds it. FreeSWITCH does what it is
asked in the order in which it is asked, so a break can only hit what was asked for before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.clock import NS_PER_MS

_BEGIN_NS = 3_000 * NS_PER_MS
"""A file that has not begun by then does not: FreeSWITCH takes some 30 ms."""

_SETTLE_NS = 500 * NS_PER_MS
"""The longest wait for the answer to a break and for the end of the file that it stops. 5 to 31 ms were seen."""

_AGAIN_NS = 150 * NS_PER_MS
"""After a break that the bridge has not asked for: a hang-up would have been told by then."""

_MAX_TRIES = 2
_MAX_WAITING = 1_000


class PlayerActions(Protocol):
    """What the player can do. `number` is a file's name on the server's side. `stop` stops what plays, and also takes
    from FreeSWITCH's queue what has not begun, unless that is to stay."""

    def play(self, path: str) -> None: ...
    def stop(self, *, empties_queue: bool = True) -> None: ...
    def report(self, what: str, number: int | None = None) -> None: ...
    def remove(self, path: str) -> None: ...


@dataclass(slots=True)
class _PlayerFile:
    number: int
    path: str
    n_tries: int = 0
    state: str = "asked"
    """Then "playing"; or "broken", by another program or a break that was for the file before it, for a moment."""
    is_cleared: bool = False
    is_removed: bool = False


class FilePlayer:
    """Times are in ns on one clock; `poll` is due at `deadline_ns`."""

    def __init__(self, hands: PlayerActions) -> None:
        self._hands = hands
        self._waiting: deque[_PlayerFile] = deque()
        self._current: _PlayerFile | None = None
        self._late: str | None = None
        """A cleared file that was given up before it began. If it begins nevertheless, it is broken then."""
        self._is_known = False
        """Whether this player has seen the call from its beginning, or has asked the server to send again."""
        self._first = 0
        """Files before this number were cleared."""
        self.deadline_ns: int | None = None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def greeted(self, following: int, now_ns: int) -> None:
        """The server says which number its next file has: 1 at a call's beginning."""
        if not self._is_known and following > 1:
            self.lost_touch(now_ns)
        self._is_known = True

    def add(self, number: int, path: str, now_ns: int) -> None:
        """A file of speech is there. The event of one that was cleared may come late.

        If the first file of a call is not number 1, another bridge had the call before. What it did with the earlier
        files is not known, so the server is asked to send all again, this one included.
        """
        file = _PlayerFile(number, path)
        if not self._is_known and number != 1:
            self._remove(file)
            self.lost_touch(now_ns)
            return
        self._is_known = True
        if number < self._first or len(self._waiting) >= _MAX_WAITING:
            self._remove(file)
            return
        self._waiting.append(file)
        if self._current is None:
            self._next(now_ns)

    def clear(self, before: int, now_ns: int) -> None:
        """Files before this number are not to be heard any more."""
        current = self._current
        self._first = max(self._first, before)
        kept = deque(file for file in self._waiting if file.number >= self._first)
        for file in self._waiting:
            if file.number < self._first:
                self._remove(file)
        self._waiting = kept
        if not self._is_known:
            self._is_known = True
            self._hands.stop()  # the bridge that knew the call may have begun a file
        if current is None or current.number >= self._first or current.is_cleared:
            return
        if current.state == "broken":
            self._leave(current, now_ns)  # FreeSWITCH does not have it
        else:
            self._give_up(current, now_ns)

    def begun(self, path: str, now_ns: int) -> None:
        """FreeSWITCH plays a file."""
        current = self._current
        if path == self._late:
            # The break came before the file's beginning and has not reached it. The next file may be queued behind it.
            self._late = None
            self._hands.stop(empties_queue=False)
            return
        if current is None or current.path != path:
            return
        self._late = None
        current.state = "playing"
        if current.is_cleared:
            self._give_up(current, now_ns)
        else:
            self.deadline_ns = None
            self._hands.report("playing", current.number)

    def ended(self, path: str, was_broken: bool, now_ns: int) -> None:
        """FreeSWITCH plays it no longer."""
        current = self._current
        if current is None or current.path != path:
            return
        if was_broken and not current.is_cleared:
            # Another program's break, or ours for the file before it, which ended by itself.
            current.state = "broken"
            self.deadline_ns = now_ns + _AGAIN_NS
            return
        if not current.is_cleared:
            self._hands.report("played", current.number)
        self._leave(current, now_ns)

    def stopped(self, now_ns: int) -> None:
        """FreeSWITCH has done a break. A file that had not begun is out of its queue now, and will have no end."""
        current = self._current
        if current is not None and current.is_cleared and current.state != "playing":
            self._leave(current, now_ns)

    def refused(self, path: str, now_ns: int) -> None:
        """FreeSWITCH does not play it."""
        current = self._current
        if current is None or current.path != path or current.state != "asked":
            return
        if not current.is_cleared:
            self._hands.report("failed", current.number)
        self._leave(current, now_ns)

    def forget_files(self) -> None:
        """Remove every file: the call is over, or the server sends again what was not heard."""
        for file in self._waiting:
            self._remove(file)
        self._waiting.clear()
        if self._current is not None:
            self._remove(self._current)
            if not self._current.is_cleared:
                self.deadline_ns = None  # what becomes of it is not waited for

    def lost_touch(self, now_ns: int) -> None:
        """Events and orders were lost. What may be playing is stopped; the server sends again what was not heard."""
        self.forget_files()
        if self._current is not None:
            self._give_up(self._current, now_ns)
        elif not self._is_known:
            self._hands.stop()  # the bridge that knew the call may have begun a file
        self._is_known = True
        self._hands.report("again")

    def poll(self, now_ns: int) -> None:
        """Do what is due."""
        current = self._current
        if current is None or self.deadline_ns is None or now_ns < self.deadline_ns:
            return
        if current.is_cleared:
            self._leave(current, now_ns)
        elif current.state == "broken" and current.n_tries < _MAX_TRIES:
            self._play(current, now_ns)
        else:
            self._hands.report("failed", current.number)
            self._leave(current, now_ns)

    def _give_up(self, file: _PlayerFile, now_ns: int) -> None:
        file.is_cleared = True
        self.deadline_ns = now_ns + _SETTLE_NS
        self._hands.stop()

    def _leave(self, file: _PlayerFile, now_ns: int) -> None:
        if file.is_cleared and file.state == "asked":
            self._late = file.path
        self._remove(file)
        self._current = self.deadline_ns = None
        self._next(now_ns)

    def _remove(self, file: _PlayerFile) -> None:
        if not file.is_removed:
            file.is_removed = True
            self._hands.remove(file.path)

    def _next(self, now_ns: int) -> None:
        if self._waiting:
            self._current = self._waiting.popleft()
            self._play(self._current, now_ns)

    def _play(self, file: _PlayerFile, now_ns: int) -> None:
        file.n_tries += 1
        file.state = "asked"
        self.deadline_ns = now_ns + _BEGIN_NS
        self._hands.play(file.path)
