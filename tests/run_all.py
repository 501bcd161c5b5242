"""Run all tests: `python tests/run_all.py [--processes N] [pytest's own options]`. `make test` does.

There are three passes, by the marks of the tests. The tests marked `timed` judge the clock and mostly wait; several run
at a time. Tests marked `alone` judge the clock or the machine and compute much; they follow, one at a time. Beside both
run the unmarked tests, in idle time if the machine can do that (`idle_time.py`), and otherwise first. They run in two
processes more than there are cores, because a `slow` test often waits.

A test that failed runs once more at the end, when nothing else does, and that verdict counts: tests take each other's
CPU time, which no user's machine does. The report lists these tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from idle_time import Enter, way_to_yield

PASSED, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest. All others mean that a pass was aborted."""
N_TIMED = 3
"""So many timed tests run at a time, on however many cores. They mostly wait."""
N_WAITING = 2
"""So many more unmarked tests run at a time than there are cores: a `slow` test often waits for a process."""
PATIENCE = 3
"""So many times as long may an unmarked test wait (`clean_run.py`): the others get the cores first."""
AGAIN_WITHIN_S = 180
"""The limit of a test that runs again, in seconds. Nothing takes its time, and what it needs is installed."""
MAX_AGAIN = 20
"""With more tests that failed something is broken, and they are not run again."""


@dataclass(slots=True)
class Pass:
    """A run of pytest over the tests of one mark."""

    name: str
    process: subprocess.Popen[bytes]
    begun_s: float
    output: Path | None = None
    """A file with what it prints, while another pass prints."""
    seconds: float = 0.0

    def wait(self) -> int:
        output, self.output = self.output, None
        if output is not None:
            self._show(output)
        status = self.process.wait()
        self.seconds = time.monotonic() - self.begun_s
        if output is not None:
            # It may have ended while another pass printed. It prints until its end.
            self.seconds -= time.time() - output.stat().st_mtime
        return status

    def _show(self, output: Path) -> None:
        """Print what it has printed, and what it prints until its end."""
        print(f"== {self.name}, since {time.monotonic() - self.begun_s:.0f} s", flush=True)
        with output.open("rb") as file:
            has_ended = False
            while not has_ended:
                has_ended = self.process.poll() is not None
                while some := file.read(1 << 16):
                    sys.stdout.buffer.write(some)
                    sys.stdout.buffer.flush()
                time.sleep(0 if has_ended else 0.2)


def combined(statuses: Iterable[int]) -> int:
    """The exit status of the whole run. A pass without tests is not a failure, unless all passes have none."""
    known = list(statuses)
    broken = [status for status in known if status not in (PASSED, FAILED, NO_TESTS)]
    if broken:
        return broken[0]
    return FAILED if FAILED in known else PASSED if PASSED in known else NO_TESTS


def run(n_processes: int, options: Sequence[str]) -> int:
    """Run all passes; returns the exit status."""
    is_parallel = n_processes > 1
    with (
        tempfile.TemporaryDirectory() as folder,
        way_to_yield() if is_parallel else nullcontext() as yielding,
    ):
        retried, failures, still = (Path(folder, name) for name in ("retried", "failures", "still"))
        passes: list[Pass] = []

        def begin(name: str, n_at_a_time: int, *more: str, yielding: Enter | None = None) -> Pass:
            own = [*options, f"--retried-to={retried}", *more]
            passes.append(start(name, n_at_a_time, own, yielding, Path(folder, name)))
            return passes[-1]

        to = f"--failures-to={failures}"
        try:
            beside = begin("beside", n_processes + (N_WAITING if is_parallel else 0), to, yielding=yielding)
            statuses = [beside.wait()] if yielding is None else []
            statuses.append(begin("timed", N_TIMED if is_parallel else 1, to).wait())
            statuses.append(begin("alone", 1, to).wait())
            if yielding is not None:
                statuses.append(beside.wait())
            again = lines_of(failures)
            if combined(statuses) == FAILED and len(again) <= MAX_AGAIN:
                more = (f"--only-these={failures}", "-o", f"faulthandler_timeout={AGAIN_WITHIN_S}")
                statuses = [begin("again", 1, *more, f"--failures-to={still}").wait()]
        except BaseException:
            for each in passes:
                each.process.terminate()
            for each in passes:
                each.wait()
            raise
        print("\n==", ", ".join(f"{each.name} {each.seconds:.0f} s" for each in passes))
        if lines := lines_of(retried):
            print("== these failed while the machine stalled and were run once more:", *lines, sep="\n")
        if passes[-1].name == "again" and statuses[0] in (PASSED, FAILED):
            failed = lines_of(still)
            if others := [name for name in again if name not in failed]:
                print("== these failed, but not when they ran again by themselves:", *others, sep="\n")
            if failed:
                print("== these failed twice, the second time by themselves:", *failed, sep="\n")
        elif passes[-1].name == "again":
            print("== these failed, and their second run was aborted:", *again, sep="\n")
    return combined(statuses)


def lines_of(path: Path) -> list[str]:
    """The lines of a file that a pass wrote; none if it wrote nothing."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def start(name: str, n_processes: int, options: Sequence[str], yielding: Enter | None, output: Path) -> Pass:
    """Start a pass. With `yielding` it runs in idle time and prints to the file `output`."""
    command = [sys.executable, "-m", "pytest", *([] if name == "again" else [f"--only={name}"])]
    # Also for one at a time: a test that ends its process is then reported, and the others run.
    command += ["-n", str(n_processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    environment = {**os.environ, "TESTS_PATIENCE": str(PATIENCE)} if name == "beside" else None
    print(f"== {name}" + (", in idle time beside the next passes" if yielding is not None else ""), flush=True)
    if yielding is None:
        return Pass(name, subprocess.Popen([*command, *options], env=environment), time.monotonic())
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, *options], stdout=file, stderr=subprocess.STDOUT, preexec_fn=yielding, env=environment
        )
    return Pass(name, process, time.monotonic(), output)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="so many unmarked tests run at a time (2)")
    known, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(run(known.processes, others))
    except KeyboardInterrupt:
        sys.exit(130)
