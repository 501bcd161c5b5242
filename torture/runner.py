"""Runs rounds for some minutes: one server lives for several rounds, and ends with a drain and a look at its logs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop
from harness.process import give_back_unused

from torture import violations as v
from torture.histories import Round, make_round
from torture.nemesis import kills
from torture.round_run import judge_end, judge_rest, run_round, warm_up
from torture.shrinking import shrink
from torture.subject import Holdings, Subject
from torture.violations import Tally, Violation

T = TypeVar("T")
_LIFE_ROUNDS = 8
"""So many rounds of the shape "one" use the same server."""
_WATCHED = ("one", "fronts", "engine", "bridge", "names")
"""Shapes whose processes hold after a round what they held before. A server of the shape "small" is short of all."""
_SHRINK_S = 90.0
_SETTLED_ROUNDS = 2
_GROWTH_KIB = 8_000
"""A server may grow so much during its life: pools and caches fill."""


@dataclass
class Outcome:
    tally: Tally = field(default_factory=Tally)
    failed: list[tuple[Round, list[Violation]]] = field(default_factory=list)
    resident_kib: list[list[int]] = field(default_factory=list)
    """The resident memory of each server after each of its rounds."""


class Runner:
    """Use `run`. `say` gets lines of progress."""

    def __init__(self, *, defects: Sequence[str] = (), say: Callable[[str], object] = print) -> None:
        self._defects = defects
        self._say = say
        self.outcome = Outcome()
        self._subject: Subject | None = None
        self._base: Holdings | None = None
        self._n_used = 0

    def run(self, rounds: Iterable[Round], end_s: float) -> Outcome:
        """Run rounds until the time is over, there are no more, or Ctrl-C comes. A round that is broken off does not
        count."""
        try:
            for whole in rounds:
                if time.monotonic() > end_s:
                    break
                self._say(f"round {whole.number} ({whole.shape}): {len(whole.calls)} calls, {_told(whole)}")
                found = self._one(whole)
                if found:
                    self.outcome.failed.append((whole, found))
                    self._tell(found)
        except KeyboardInterrupt:
            self._say("interrupted; what the rounds before found:")
        finally:
            last = self._end_life()
            if last:
                self.outcome.failed.append((_nothing(), last))
                self._tell(last)
        return self.outcome

    def _tell(self, found: Sequence[Violation]) -> None:
        for each in found[:8]:
            call = "" if each.call is None else f" (call {each.call})"
            self._say(f"  {each.check}: {each.what}{call}")

    def _one(self, whole: Round) -> list[Violation]:
        """Run a round; what was found in it."""
        found: list[Violation] = []
        keeps = whole.shape == "one"
        # A front that was killed leaves a folder, which the next one removes when it starts.
        is_watched = whole.shape in _WATCHED and not any(fault.kind == "kill_front" for fault in whole.faults)
        if not keeps or self._n_used >= _LIFE_ROUNDS:
            found += self._end_life()
        if self._subject is None:
            self._subject = Subject(whole.shape, defects=self._defects).__enter__()
            self._n_used = 0
            self._base = None
        subject = self._subject
        tally = Tally()
        try:
            if is_watched and self._base is None:
                self._base = in_loop(warm_up(subject))
                self.outcome.resident_kib.append([])
            tally = in_loop(run_round(whole, subject))
            self._n_used += 1
            if is_watched and self._base is not None:
                after = in_loop(judge_rest(subject, self._base, tally))
                self._judge_memory(after, tally)
        finally:
            found += tally.violations
            self._merge(tally)
            if not keeps or subject.server.poll() is not None:
                may_fail = any(kills(fault.kind) for fault in whole.faults) or whole.shape in ("engine", "small")
                was_killed = any(fault.kind == "kill_front" for fault in whole.faults)
                found += self._end_life(may_fail=may_fail, was_killed=was_killed)
        return found

    def _judge_memory(self, after: Holdings, tally: Tally) -> None:
        sizes = self.outcome.resident_kib[-1]
        sizes.append(after.resident_kib)
        tally.n_checked[v.LEAKS] += 1
        grown = sizes[-1] - sizes[min(_SETTLED_ROUNDS, len(sizes)) - 1]
        if grown > _GROWTH_KIB:
            tally.violations.append(Violation(v.LEAKS, f"the server has grown by {grown} KiB in {len(sizes)} rounds"))

    def _end_life(self, *, may_fail: bool = False, was_killed: bool = False) -> list[Violation]:
        if self._subject is None:
            return []
        tally = Tally()
        try:
            judge_end(self._subject, tally, may_fail=may_fail, was_killed=was_killed)
        finally:
            self._subject.close()
            self._subject = None
        self._merge(tally)
        return tally.violations

    def _merge(self, tally: Tally) -> None:
        counts, worst = self.outcome.tally.counts, {}
        for name in list(tally.counts):
            if "worst" in name or "recovery" in name:
                worst[name] = max(counts[name], tally.counts.pop(name))
        self.outcome.tally.add(tally)
        counts.update({name: n - counts[name] for name, n in worst.items()})


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def rounds(seed: int, shape: str | None, n_calls: int, first: int = 0) -> Iterable[Round]:
    """All rounds of a seed, from number `first` on."""
    number = first
    while True:
        yield make_round(seed, number, shape=shape, n_calls=n_calls)
        number += 1


def find_short(
    failing: Round, found: Sequence[Violation], defects: Sequence[str], say: Callable[[str], object] = print
) -> Round:
    """A short history that still fails one of the checks that failed, with a server of its own for each try."""
    checks = {each.check for each in found}
    likely = list(dict.fromkeys(each.call for each in found if each.call is not None))
    end_s = time.monotonic() + _SHRINK_S

    async def fails(some: Round) -> bool:
        if time.monotonic() > end_s:
            return False
        again = await asyncio.to_thread(_again, some, defects)
        is_same = any(each.check in checks for each in again)
        say(f"  {len(some.calls)} calls, {len(some.faults)} faults: {'fails' if is_same else 'holds'}")
        return is_same

    return asyncio.run(shrink(failing, fails, likely))


def _again(whole: Round, defects: Sequence[str]) -> list[Violation]:
    runner = Runner(defects=defects, say=lambda _: None)
    outcome = runner.run([whole], time.monotonic() + 60)
    give_back_unused()
    return outcome.tally.violations


def _told(whole: Round) -> str:
    faults = [f"{fault.kind} at {fault.at_ms} ms" for fault in whole.faults]
    return ", ".join(faults) or "no fault of a process"


def _nothing() -> Round:
    return Round(0, -1, "one", (), ())


def to_json(whole: Round) -> str:
    return json.dumps(whole.to_json(), separators=(",", ":"))
