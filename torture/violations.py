"""What a check found, the names of all checks, and the times that no one can be blamed for."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

ONE_END = "one end per turn"
ONE_FATE = "one fate per mark"
SILENCE = "no audio after cleared"
FRAMES = "frame size"
CLOCK = "frame clock"
HEARD = "heard text"
LOST = "no speech lost or repeated"
DONE = "done not before the last sample"
ORDER = "order of events"
ANSWERS = "one answer per message"
CLOSE = "the close"
VOICE = "the caller's voice"
SOUNDS = "sounds"
RECORDINGS = "recordings"
NEIGHBOUR = "neighbours undisturbed"
LEAKS = "nothing left behind"
LOGS = "no traceback in a log"
DRAIN = "drain exits 0"
RECOVERY = "speech after a kill"
OWN = "no error of the torture itself"

CHECKS = (
    ONE_END, ONE_FATE, SILENCE, FRAMES, CLOCK, HEARD, LOST, DONE, ORDER, ANSWERS, CLOSE, VOICE, SOUNDS, RECORDINGS,
    NEIGHBOUR, LEAKS, LOGS, DRAIN, RECOVERY, OWN,
)  # fmt: skip

_MOST_LOGS = 10


@dataclass(frozen=True)
class Violation:
    """A promise that did not hold. `call` is the number of the call in its round, None for the server itself."""

    check: str
    what: str
    call: int | None = None


@dataclass(frozen=True, slots=True)
class RecordingEnd:
    """What the server told of the end of a recording, and from when to when it told that the call is recorded."""

    file: str
    reason: str
    length_ms: int
    begin_ns: int
    end_ns: int
    call: int | None


@dataclass
class Tally:
    """What was tried and what was found, summed over calls."""

    n_checked: Counter[str] = field(default_factory=Counter)
    """How often each check had something to judge."""
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    heard_errors_ms: Counter[float] = field(default_factory=Counter)
    """How far the server's heard_ms was from what the simulated player had played, where the clock told the place. How
    often each error came: a soak has hundreds of thousands, and its own memory must not grow."""
    heard_errors_by_marks_ms: Counter[float] = field(default_factory=Counter)
    logs: dict[int, list[str]] = field(default_factory=dict)
    """What was sent and what came, of calls in which something did not hold."""
    n_words_right: int = 0
    n_words_wrong: int = 0
    recording_ends: list[RecordingEnd] = field(default_factory=list)
    """Of one round, until its recordings are judged."""

    def add(self, other: Tally) -> None:
        self.n_checked += other.n_checked
        self.violations += other.violations
        self.logs = {**self.logs, **other.logs} if len(self.logs) < _MOST_LOGS else self.logs
        self.counts += other.counts
        self.heard_errors_ms += other.heard_errors_ms
        self.heard_errors_by_marks_ms += other.heard_errors_by_marks_ms
        self.n_words_right += other.n_words_right
        self.n_words_wrong += other.n_words_wrong


def log_lines(log: Sequence[tuple[int, str, object]]) -> list[str]:
    """The log of a call, (time in ns, who, what), with milliseconds since its first line."""
    return [f"{(at - log[0][0]) / 1_000_000:8.1f} {who} {what}" for at, who, what in log]


CROSS_NS = 60_000_000
"""How much later one socket of a call may be read than another one."""


class Stops:
    """Intervals in which the machine, or our own doing, kept the server or this process from running, or a client from
    reading. With `shared` all intervals of that one count as well."""

    def __init__(self, shared: Stops | None = None) -> None:
        self._shared = shared
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Intervals may overlap. They are added about in the order of their ends."""
        at = bisect.bisect_right(self._ends, end_ns)
        self._begins.insert(at, begin_ns)
        self._ends.insert(at, end_ns)

    def within(self, begin_ns: int, end_ns: int) -> int:
        """The nanoseconds of the intervals that lie between these times; overlaps count once."""
        total, until = 0, begin_ns
        for begin, end in sorted(self._after(begin_ns)):
            if begin >= end_ns:
                break
            begin, end = max(begin, until), min(end, end_ns)
            if begin < end:
                total, until = total + end - begin, end
        return total

    def _after(self, begin_ns: int) -> list[tuple[int, int]]:
        """(begin, end) of those that end after this time."""
        chosen = range(bisect.bisect_right(self._ends, begin_ns), len(self._ends))
        shared = self._shared._after(begin_ns) if self._shared is not None else []
        return [(self._begins[at], self._ends[at]) for at in chosen] + shared

    def beyond(self, begin_ns: int, end_ns: int) -> int:
        """When `end_ns` is if the stops since `begin_ns` are left out: a stop that lasts at its end puts it off too."""
        late_ns = 0
        while (now_late_ns := self.within(begin_ns, end_ns + late_ns)) > late_ns:
            late_ns = now_late_ns
        return end_ns + late_ns

    @property
    def total_ns(self) -> int:
        return self.within(0, max(self._ends, default=0))
