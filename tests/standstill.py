"""Measures when this machine stalls.

A virtual machine's cores are taken away for tens of milliseconds now and then. That stops Asterisk, the server and the
phones alike. One witness process per core, with real-time priority, sleeps 2 ms at a time and reports every longer
pause. A test or a benchmark can then tell the machine's lateness from ours.
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
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """One core did nothing from `begin_ns` to `end_ns`, on the monotonic clock."""

    core: int
    begin_ns: int
    end_ns: int


class Standstills:
    """The stalls that the witnesses have reported so far."""

    def __init__(self, is_exact: bool = True, told: Iterable[Standstill] = ()) -> None:
        self.is_exact = is_exact
        """Whether the witnesses have real-time priority. Without it nothing is reported: our load could delay them."""
        self._told = list(told)

    def list(self) -> list[Standstill]:
        """All stalls over 5 ms, in the order of their ends."""
        return list(self._told)

    def within(self, begin_ns: int, end_ns: int) -> int:
        """The nanoseconds between these two times in which any core stalled."""
        total, until = 0, begin_ns
        for one in sorted(self.list(), key=lambda one: one.begin_ns):
            begin, end = max(one.begin_ns, until), min(one.end_ns, end_ns)
            if begin < end:
                total, until = total + end - begin, end
        return total

    def longest(self, since_ns: int) -> int:
        """The length in nanoseconds of the longest stall that ended after `since_ns`; 0 without a stall."""
        return max((one.end_ns - one.begin_ns for one in self.list() if one.end_ns > since_ns), default=0)

    def _add(self, core: int, line: str) -> None:
        begin, _, end = line.partition(" ")
        self._told.append(Standstill(core, int(begin), int(end)))


@contextmanager
def standstills() -> Iterator[Standstills]:
    """Run a witness on each core of this process during the body."""
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
                reader.join(_TIMEOUT_S)


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
