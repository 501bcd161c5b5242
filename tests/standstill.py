"""When this machine itself stood still.

A virtual machine's cores are taken away for tens of milliseconds now and then, which stops Asterisk, the server and
the phones alike. Per core a witness that runs before everything else sleeps 2 ms at a time and tells when it was more.
What a test or a benchmark then sees of lateness is told apart: the machine's, or ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_WITNESS = Path(__file__).resolve().with_name("witness.py")
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """One core did nothing from `begin_ns` to `end_ns`, on the monotonic clock."""

    core: int
    begin_ns: int
    end_ns: int


class Standstills:
    """What the witnesses have told so far."""

    def __init__(self, is_exact: bool = True, told: Iterable[Standstill] = ()) -> None:
        self.is_exact = is_exact
        """Whether the witnesses run before everything else. If not nothing is told, for it could be our own doing."""
        self._told = list(told)

    def list(self) -> list[Standstill]:
        """In the order of their ends, those over 5 ms."""
        return list(self._told)

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of this time in which any core stood still."""
        total, until = 0, begin_ns
        for one in sorted(self.list(), key=lambda one: one.begin_ns):
            begin, end = max(one.begin_ns, until), min(one.end_ns, end_ns)
            if begin < end:
                total, until = total + end - begin, end
        return total

    def longest(self, since_ns: int) -> int:
        """Nanoseconds of the longest that has ended since then; 0 if there was none."""
        return max((one.end_ns - one.begin_ns for one in self.list() if one.end_ns > since_ns), default=0)

    def _add(self, core: int, line: str) -> None:
        begin, _, end = line.partition(" ")
        self._told.append(Standstill(core, int(begin), int(end)))


@contextmanager
def standstills() -> Iterator[Standstills]:
    """Witnesses on all cores of this process, while it lasts."""
    with ExitStack() as stack:
        witnesses = [stack.enter_context(_witness(core)) for core in sorted(os.sched_getaffinity(0))]
        machine = Standstills(all([_line(witness) == "first" for _, witness in witnesses]))
        readers = [
            threading.Thread(target=_read, args=(machine, core, witness), name=f"witness {core}")
            for core, witness in witnesses
            if machine.is_exact
        ]
        for reader in readers:
            reader.start()
        try:
            yield machine
        finally:
            for _, witness in witnesses:
                assert witness.stdin is not None
                witness.stdin.close()  # it ends with its input
            for reader in readers:
                reader.join(_PATIENCE_S)


@contextmanager
def _witness(core: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-I", str(_WITNESS), str(core)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as witness:
        try:
            yield core, witness
        finally:
            witness.kill()


def _line(witness: subprocess.Popen[str]) -> str:
    assert witness.stdout is not None
    return witness.stdout.readline().strip()


def _read(machine: Standstills, core: int, witness: subprocess.Popen[str]) -> None:
    while line := _line(witness):
        machine._add(core, line)
