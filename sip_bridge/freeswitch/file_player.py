"""Plays the files of one call in order: which commands FreeSWITCH gets, and when a file has really ended. Pure.

FreeSWITCH gets one file at a time. The other files wait here, where a clear can remove them. FreeSWITCH runs commands
in order, so a break can only stop a file that was sent before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.runtime.clock import NS_PER_MS

_BEGIN_NS = 3_000 * NS_PER_MS
"""A file that has not begun by then counts as failed: FreeSWITCH takes some 30 ms."""

_SETTLE_NS = 500 * NS_PER_MS
"""The longest wait for the reply to a break and for the end of the file that it stops. Seen: 5 to 31 ms."""

_AGAIN_NS = 150 * NS_PER_MS
"""The wait before a file is played again after a break that the bridge did not send. A hang-up comes within it."""

_MAX_TRIES = 2
_MAX_WAITING = 1_000


class PlayerActions(Protocol):
    """The commands and reports of the player. `number` is the server's number of a file.

    `stop` stops the file that plays. With `empties_queue` it also empties FreeSWITCH's queue of files.
    """

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
    """First "asked", then "playing". Briefly "broken": another program, or a break for the file before, stopped it."""
    is_cleared: bool = False
    is_removed: bool = False


class FilePlayer:
    """The queue of files of one call. Times are in ns on one clock; call `poll` at `deadline_ns`."""

    def __init__(self, actions: PlayerActions) -> None:
        self._actions = actions
        self._waiting: deque[_PlayerFile] = deque()
        self._current: _PlayerFile | None = None
        self._late: str | None = None
        """The path of a cleared file that was given up before it began. If it begins later, it is stopped then."""
        self._is_known = False
        """Whether this player knows the call from its beginning, or has asked for the speech again."""
        self._first = 0
        """Files before this number were cleared."""
        self.deadline_ns: int | None = None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def greeted(self, following: int, now_ns: int) -> None:
        """The server reports the number of its next file: 1 at the beginning of a call."""
        if not self._is_known and following > 1:
            self.lost_touch(now_ns)
        self._is_known = True

    def add(self, number: int, path: str, now_ns: int) -> None:
        """Add a file of speech. The event of a cleared file may come late.

        If the first file of a call is not number 1, another bridge had the call before. It is not known which files
        that bridge played, so the server is asked to send all of them again, this one included.
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
        """Do not play files before this number any more; stop the one that plays."""
        current = self._current
        self._first = max(self._first, before)
        kept = deque(file for file in self._waiting if file.number >= self._first)
        for file in self._waiting:
            if file.number < self._first:
                self._remove(file)
        self._waiting = kept
        if not self._is_known:
            self._is_known = True
            self._actions.stop()  # an earlier bridge may have begun a file
        if current is None or current.number >= self._first or current.is_cleared:
            return
        if current.state == "broken":
            self._leave(current, now_ns)  # FreeSWITCH does not have the file
        else:
            self._give_up(current, now_ns)

    def begun(self, path: str, now_ns: int) -> None:
        """FreeSWITCH has begun to play a file."""
        current = self._current
        if path == self._late:
            # The break came before the file began and did not stop it. The next file may be queued behind it.
            self._late = None
            self._actions.stop(empties_queue=False)
            return
        if current is None or current.path != path:
            return
        self._late = None
        current.state = "playing"
        if current.is_cleared:
            self._give_up(current, now_ns)
        else:
            self.deadline_ns = None
            self._actions.report("playing", current.number)

    def ended(self, path: str, was_broken: bool, now_ns: int) -> None:
        """FreeSWITCH has stopped playing a file."""
        current = self._current
        if current is None or current.path != path:
            return
        if was_broken and not current.is_cleared:
            # A break of another program, or one for the file before, which had ended by itself.
            current.state = "broken"
            self.deadline_ns = now_ns + _AGAIN_NS
            return
        if not current.is_cleared:
            self._actions.report("played", current.number)
        self._leave(current, now_ns)

    def stopped(self, now_ns: int) -> None:
        """FreeSWITCH has run a break. A file that had not begun is no longer queued, and no end event will come."""
        current = self._current
        if current is not None and current.is_cleared and current.state != "playing":
            self._leave(current, now_ns)

    def refused(self, path: str, now_ns: int) -> None:
        """FreeSWITCH refuses to play a file."""
        current = self._current
        if current is None or current.path != path or current.state != "asked":
            return
        if not current.is_cleared:
            self._actions.report("failed", current.number)
        self._leave(current, now_ns)

    def forget_files(self) -> None:
        """Remove every file: the call is over, or the server will send the unheard speech again."""
        for file in self._waiting:
            self._remove(file)
        self._waiting.clear()
        if self._current is not None:
            self._remove(self._current)
            if not self._current.is_cleared:
                self.deadline_ns = None  # its end is not waited for

    def lost_touch(self, now_ns: int) -> None:
        """Events and commands were lost. Stop what may be playing; the server sends the unheard speech again."""
        self.forget_files()
        if self._current is not None:
            self._give_up(self._current, now_ns)
        elif not self._is_known:
            self._actions.stop()  # an earlier bridge may have begun a file
        self._is_known = True
        self._actions.report("again")

    def poll(self, now_ns: int) -> None:
        """Act on a deadline that has passed."""
        current = self._current
        if current is None or self.deadline_ns is None or now_ns < self.deadline_ns:
            return
        if current.is_cleared:
            self._leave(current, now_ns)
        elif current.state == "broken" and current.n_tries < _MAX_TRIES:
            self._play(current, now_ns)
        else:
            self._actions.report("failed", current.number)
            self._leave(current, now_ns)

    def _give_up(self, file: _PlayerFile, now_ns: int) -> None:
        file.is_cleared = True
        self.deadline_ns = now_ns + _SETTLE_NS
        self._actions.stop()

    def _leave(self, file: _PlayerFile, now_ns: int) -> None:
        if file.is_cleared and file.state == "asked":
            self._late = file.path
        self._remove(file)
        self._current = self.deadline_ns = None
        self._next(now_ns)

    def _remove(self, file: _PlayerFile) -> None:
        if not file.is_removed:
            file.is_removed = True
            self._actions.remove(file.path)

    def _next(self, now_ns: int) -> None:
        if self._waiting:
            self._current = self._waiting.popleft()
            self._play(self._current, now_ns)

    def _play(self, file: _PlayerFile, now_ns: int) -> None:
        file.n_tries += 1
        file.state = "asked"
        self.deadline_ns = now_ns + _BEGIN_NS
        self._actions.play(file.path)
