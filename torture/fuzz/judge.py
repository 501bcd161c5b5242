"""What must hold for every input of a parser: only the errors it documents, no long time, no great need of memory."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MOST_MS = 50.0
"""The longest that one input may take. The event loop of all calls stands still for so long."""
MOST_MB = 64.0
"""By how much the process may grow for one input."""
_ROOT = Path(__file__).resolve().parents[2]
_NS_PER_MS = 1_000_000
_TRIES = 3
_KB_PER_MB = 1024 if sys.platform != "darwin" else 1024 * 1024


@dataclass(frozen=True)
class FuzzTarget:
    """One parser. `run` gives it an input; it raises for whatever must not happen, and returns for documented errors.

    `seeds` are inputs that reach different parts of the parser, `words` what it knows. `most_ms`: see `MOST_MS`.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    more_seeds: Callable[[], tuple[bytes, ...]] = tuple
    """Seeds that take time to make, or need a package that may be missing."""
    most_ms: float = MOST_MS


@dataclass(frozen=True, slots=True)
class Finding:
    """An input for which something did not hold. `place` names the code; findings of one place are one mistake."""

    target: str
    kind: str
    place: str
    detail: str
    data: bytes = field(repr=False)


class Judge:
    """Runs a target, and keeps the first finding of each place."""

    def __init__(self, target: FuzzTarget, known: Iterable[bytes] = ()) -> None:
        """`known` are run unjudged: what a parser imports and keeps at its first use is not the subject."""
        for data in known:
            with suppress(Exception):
                target.run(data)
        self.target = target
        self.findings: dict[tuple[str, str], Finding] = {}
        self.n_inputs = 0
        self.slowest_ms = 0.0
        _forget_peak()
        self._peak_kb = _peak_kb()

    def try_input(self, data: bytes) -> Finding | None:
        """Run one input. Returns what it found, also if that is known."""
        self.n_inputs += 1
        begin_ns = time.thread_time_ns()
        try:
            self.target.run(data)
        except Exception as error:
            return self._found("exception", _place(error), _told(error), data)
        ms = (time.thread_time_ns() - begin_ns) / _NS_PER_MS
        if ms > self.target.most_ms:
            ms = min(ms, *(self._again_ms(data) for _ in range(_TRIES - 1)))  # the first use of a thing takes longer
            if ms > self.target.most_ms:
                return self._found("slow", self.target.name, f"{ms:.0f} ms", data)
        self.slowest_ms = max(self.slowest_ms, ms)
        peak_kb, before_kb = _peak_kb(), self._peak_kb
        if peak_kb > before_kb:
            _forget_peak()
            self._peak_kb = _peak_kb()
        if peak_kb - before_kb > MOST_MB * _KB_PER_MB:
            return self._found("memory", self.target.name, f"{(peak_kb - before_kb) // _KB_PER_MB} MB", data)
        return None

    def _again_ms(self, data: bytes) -> float:
        begin_ns = time.thread_time_ns()
        self.target.run(data)
        return (time.thread_time_ns() - begin_ns) / _NS_PER_MS

    def _found(self, kind: str, place: str, detail: str, data: bytes) -> Finding:
        known = self.findings.get((kind, place))
        if known is None or len(data) < len(known.data):  # the shortest input is the easiest to read
            self.findings[kind, place] = Finding(self.target.name, kind, place, detail, data)
        return self.findings[kind, place]


def _told(error: Exception) -> str:
    """The traceback, without the place of this folder. It may quote an input, which has any characters."""
    told = "".join(traceback.format_exception(error)).replace(f"{_ROOT}/", "")
    return told[-2_000:].encode("ascii", "backslashreplace").decode()


def _forget_peak() -> None:
    """Begin the process's peak of memory anew, so that what it needed before hides nothing. Linux only."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _place(error: Exception) -> str:
    """Where an exception was raised: its type, and the innermost line of our own packages."""
    place = "?"
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("telephony_tts", "sip_bridge")):
            place = f"{name}:{line}"
    return f"{type(error).__name__} at {place}"
