"""One call's files, played one after the other: what is asked of FreeSWITCH, and when a file has truly ended. Pure.

FreeSWITCH is given one file at a time. Whatever waits, waits here, where a clear finds it; and a break can only hit
what the clear was about, however late FreeSWITCH comes to it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from telephony_tts.clock import NS_PER_MS

_BEGIN_NS = 3_000 * NS_PER_MS
"""A file that has not begun by then does not: FreeSWITCH takes about 120 ms."""

_SETTLE_NS = 500 * NS_PER_MS
"""A break is done when the file's end is told, or by then where it never began: FreeSWITCH takes about 34 ms."""

_AGAIN_NS = 150 * NS_PER_MS
"""After a break that nobody here has asked for: a hang-up would have been told by then."""

_MAX_TRIES = 2
_MAX_WAITING = 1_000


class Hands(Protocol):
    """What the player can do. `number` is a file's name on the server's side."""

    def play(self, path: str) -> None: ...
    def stop(self) -> None: ...
    def report(self, what: str, number: int | None = None) -> None: ...
    def remove(self, path: str) -> None: ...


@dataclass(slots=True)
class _File:
    number: int
    path: str
    n_tries: int = 0
    state: str = "asked"
    """Then "playing"; or "broken", by somebody else, for a moment."""
    is_cleared: bool = False


class FilePlayer:
    """Times are in ns on one clock; `poll` is due at `deadline_ns`."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._waiting: deque[_File] = deque()
        self._current: _File | None = None
        self._first = 0
        """Files before this number were cleared."""
        self.deadline_ns: int | None = None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def add(self, number: int, path: str, now_ns: int) -> None:
        """A file of speech is there. The event of one that was cleared may come late."""
        if number < self._first or len(self._waiting) >= _MAX_WAITING:
            self._hands.remove(path)
            return
        self._waiting.append(_File(number, path))
        if self._current is None:
            self._next(now_ns)

    def clear(self, before: int, now_ns: int) -> None:
        """Files before this number are not to be heard any more."""
        current = self._current
        self._first = max(self._first, before)
        kept = deque(file for file in self._waiting if file.number >= self._first)
        for file in self._waiting:
            if file.number < self._first:
                self._hands.remove(file.path)
        self._waiting = kept
        if current is None or current.number >= self._first or current.is_cleared:
            return
        if current.state == "broken":
            self._leave(current, now_ns)  # nothing plays, and a break without a file would hit the next one
        else:
            self._give_up(current, now_ns)

    def begun(self, path: str, now_ns: int) -> None:
        """FreeSWITCH plays a file."""
        current = self._current
        if current is None or current.path != path:
            return
        current.state = "playing"
        if current.is_cleared:
            # The break came before its beginning and has not reached it.
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
            # Somebody else's break, or what was left over of one that found nothing to stop.
            current.state = "broken"
            self.deadline_ns = now_ns + _AGAIN_NS
            return
        if not current.is_cleared:
            self._hands.report("played", current.number)
        self._leave(current, now_ns)

    def refused(self, path: str, now_ns: int) -> None:
        """FreeSWITCH does not play it."""
        current = self._current
        if current is None or current.path != path or current.state != "asked":
            return
        if not current.is_cleared:
            self._hands.report("failed", current.number)
        self._leave(current, now_ns)

    def lost_touch(self, now_ns: int) -> None:
        """Events and orders were lost. What may be playing is stopped; the server sends again what was not heard."""
        for file in self._waiting:
            self._hands.remove(file.path)
        self._waiting.clear()
        if self._current is not None:
            self._give_up(self._current, now_ns)
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

    def _give_up(self, file: _File, now_ns: int) -> None:
        file.is_cleared = True
        self.deadline_ns = now_ns + _SETTLE_NS
        self._hands.stop()

    def _leave(self, file: _File, now_ns: int) -> None:
        self._hands.remove(file.path)
        self._current = self.deadline_ns = None
        self._next(now_ns)

    def _next(self, now_ns: int) -> None:
        if self._waiting:
            self._current = self._waiting.popleft()
            self._play(self._current, now_ns)

    def _play(self, file: _File, now_ns: int) -> None:
        file.n_tries += 1
        file.state = "asked"
        self.deadline_ns = now_ns + _BEGIN_NS
        self._hands.play(file.path)
