"""Neighbours to which nothing is done, and what a server must hold, log and return when all is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torture import violations as v
from torture.links import Link
from torture.surroundings import Surroundings
from torture.violations import Stops, Violation

MS = 1_000_000
FRAME_NS = 20 * MS
LATE_NS = 20 * MS
"""A neighbour's frame may be so late beyond the stops that were measured."""
_TEXT = "aaa aaaa aaaaa aaa aaaaaa."
_TURN_S = 20.0
_SAMPLE_S = 0.005
_LEAST_WAIT_NS = 1 * MS


class Neighbour(Link):
    """A call that says the same sentence again and again, each frame sent exactly when it is due. Its first turn,
    before anything is done to anyone, is what the others have to be like."""

    def __init__(self, around: Surroundings, number: int) -> None:
        super().__init__("/v1/stream?audio=binary&lead_ms=0", around)
        self._number = number
        self._frames: list[tuple[int, bytes]] = []
        self._alone: list[bytes] = []
        self._changed = asyncio.Event()
        self._event: dict[str, Any] = {}
        self.n_turns = 0
        self._late: list[tuple[int, int, int]] = []
        """(from when stops excuse it, when it was due, when it came) of each late frame."""
        self.worst_ns = 0

    @property
    def own_stops(self) -> Stops:
        return self._around.stops

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        if message["type"] in ("done", "error", "cleared"):
            self._event = message
            self._changed.set()

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        self._frames.append((at_ns, payload))

    async def turn(self) -> bool:
        """Speak one turn and judge it. False if the connection is gone."""
        self.n_turns += 1
        self._frames.clear()
        self._changed.clear()
        self.send({"type": "say", "turn": f"n{self.n_turns}", "text": _TEXT})
        waiting = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait((waiting, self.closed), timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.closed.done() or not self._changed.is_set():
            if self.missed_a_ping():
                self._around.tally.counts["calls that missed a ping"] += 1
            elif not self._around.may_break:
                lost = f"lost its connection, which was closed with {self.close_code}"
                self._wrong(lost if self.closed.done() else f"had no end of a turn in {_TURN_S:.0f} s")
            return False
        if self._event["type"] != "done":
            if not self._around.may_fail:
                self._wrong(f"got {self._event}")
            return True
        if not self._alone:
            self._alone = [payload for _, payload in self._frames]
        else:
            self._judge()
        return True

    def _judge(self) -> None:
        tally = self._around.tally
        tally.n_checked[v.NEIGHBOUR] += len(self._frames)
        tally.counts["neighbours' frames"] += len(self._frames)
        heard = [payload for _, payload in self._frames]
        if heard != self._alone and not self._around.may_fail:
            self._wrong(f"heard {len(heard)} frames, {len(self._alone)} expected, or others than before")
        if not heard:
            return
        begin_ns = self._frames[0][0]
        for n, (at_ns, _) in enumerate(self._frames):
            due_ns = begin_ns + n * FRAME_NS
            if at_ns - due_ns > LATE_NS:
                # If a stop made the engine late, the schedule was moved by that and stays where it is (§6.6).
                since_ns = begin_ns if self._event.get("underruns") else due_ns - 2 * FRAME_NS
                self._late.append((since_ns, due_ns, at_ns))

    def judge_late(self) -> None:
        """Stops become known after what they delayed, so this is the last thing."""
        worst_ns, late_at_ms = 0, []
        for since_ns, due_ns, at_ns in self._late:
            late_ns = at_ns - due_ns - self._around.stops.within(since_ns, at_ns)
            worst_ns = max(worst_ns, late_ns)
            if late_ns > LATE_NS:
                late_at_ms.append((at_ns - self._around.begin_ns) // MS)
        if late_at_ms and not self._around.may_fail:
            first, last = late_at_ms[0], late_at_ms[-1]
            self._wrong(f"had {len(late_at_ms)} frames up to {worst_ns / MS:.0f} ms late, after {first} to {last} ms")
        self.worst_ns = worst_ns

    def _wrong(self, what: str) -> None:
        self._around.tally.violations.append(Violation(v.NEIGHBOUR, f"neighbour {self._number} {what}"))


async def speak_beside(number: int, around: Surroundings, stop: asyncio.Event, ready: Callable[[], object]) -> int:
    """A neighbour until `stop`. Returns its worst lateness in nanoseconds."""
    worst_ns, is_told = 0, False
    while True:
        neighbour = Neighbour(around, number)
        try:
            await neighbour.connect_in_time(around.port, 5)
            await neighbour.turn()
            if not is_told:
                is_told = True
                ready()
            while not stop.is_set() and await neighbour.turn():
                pass
        except OSError as error:
            if not (around.may_break or around.may_refuse):
                around.tally.violations.append(Violation(v.NEIGHBOUR, f"neighbour {number}: {error}"))
            await asyncio.sleep(0.1)
        finally:
            if neighbour.transport is not None:
                neighbour.leave()
                await neighbour.gone(2)
                neighbour.close()
            neighbour.judge_late()
            worst_ns = max(worst_ns, neighbour.worst_ns)
        if stop.is_set() or not (around.may_break or around.may_refuse):
            if not is_told:
                ready()
            return worst_ns


@contextmanager
def watching_cores(pids: Callable[[], list[int]], stops: Stops) -> Iterator[None]:
    """Note when a process was ready to run and did not get a core: other programs had them. Linux only."""
    over = threading.Event()

    def watch() -> None:
        waited: dict[int, int] = {}
        while not over.wait(_SAMPLE_S):
            for pid in pids():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
                    now_ns, waiting_ns = time.monotonic_ns(), int(fields[1])
                    new_ns = waiting_ns - waited.get(pid, waiting_ns)
                    waited[pid] = waiting_ns
                    if new_ns > _LEAST_WAIT_NS:
                        stops.add(now_ns - new_ns, now_ns)

    watcher = threading.Thread(target=watch, name="watch cores")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


_ALWAYS_WRONG = re.compile(
    r"Traceback|never retrieved|was never awaited|ResourceWarning|RuntimeWarning|Task was destroyed|"
    r"Exception ignored|call_crashed|Fatal (Python )?error"
)

_TOLD_CHARS = 1000


def wrong_lines(log: str, *, may_fail: bool, expected: Sequence[str] = ()) -> list[str]:
    """The lines of a log that no fault excuses. `may_fail`: errors of engines are expected, otherwise the events of
    `expected` only."""
    found = []
    lines = log.splitlines()
    for number, line in enumerate(lines):
        told = _told(line)
        is_error = str(told.get("level", "")).lower() in ("error", "critical")
        is_error = is_error and not may_fail and told.get("event") not in expected
        if _ALWAYS_WRONG.search(line) or is_error:
            is_traceback = line.startswith("Traceback")
            found.append(_traceback(lines[number:])[-_TOLD_CHARS:] if is_traceback else line[:_TOLD_CHARS])
    return found


def _traceback(lines: Sequence[str]) -> str:
    """The traceback that these lines begin with, with its error at its end."""
    n = next((n for n, line in enumerate(lines) if n and not line.startswith(" ")), len(lines) - 1)
    return " | ".join(line.strip() for line in lines[: n + 1])


def _told(line: str) -> dict[str, Any]:
    """A line of JSON as a dict; empty for any other line."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
