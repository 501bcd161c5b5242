"""Run all tests: `python tests/run_all.py [--processes N] [pytest's own options]`. `make test` does.

There are three passes, by the marks of the tests. `timed` tests judge the clock and mostly wait; two run at a time.
Tests marked `alone` judge the clock or the machine and compute much; they run one at a time, after the timed ones.
Meanwhile the unmarked tests use what is left of the cores. They run in the scheduler's idle class, which gives way to
every other process at once, so they do not make the others late.

A test that failed beside the others runs once more at the end, when nothing else does, and that verdict counts: the
passes take each other's CPU time, which no user's machine does. The report lists these tests.

The passes do not overlap with `--processes 1`, on a machine that is busy with other work, or in a container with a CPU
quota. Beside other work the idle class gets almost no time. Under a quota it uses up the time of the other passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PASSED, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest. All others mean that a pass was aborted."""
N_TIMED = 2
"""So many timed tests run at a time, on however many cores. They mostly wait."""
N_WAITING = 2
"""So many more unmarked tests run beside the others than there are cores: a `slow` test often waits for a process."""
MIN_IDLE_SHARE = 0.6
"""Of the cores' time, for a machine that counts as quiet."""
MAX_AGAIN = 20
"""With more tests that failed something is broken, and they are not run again."""


@dataclass(slots=True)
class Pass:
    """A run of pytest over the tests of one mark."""

    name: str
    process: subprocess.Popen[bytes]
    begun_s: float
    seconds: float = 0.0

    def wait(self) -> int:
        status = self.process.wait()
        self.seconds = time.monotonic() - self.begun_s
        return status


def combined(statuses: Iterable[int]) -> int:
    """The exit status of the whole run. A pass without tests is not a failure, unless all passes have none."""
    known = list(statuses)
    broken = [status for status in known if status not in (PASSED, FAILED, NO_TESTS)]
    if broken:
        return broken[0]
    return FAILED if FAILED in known else PASSED if PASSED in known else NO_TESTS


def run(n_processes: int, options: Sequence[str]) -> int:
    """Run all passes; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        retried, failures = Path(folder, "retried"), Path(folder, "failures")
        passes: list[Pass] = []

        def begin(name: str, n_at_a_time: int, *more: str, report: IO[bytes] | None = None) -> Pass:
            passes.append(start(name, n_at_a_time, [*options, f"--retried-to={retried}", *more], report))
            return passes[-1]

        to = f"--failures-to={failures}"

        def judge_the_clock() -> list[int]:
            n_timed = N_TIMED if n_processes > 1 else 1
            return [begin("timed", n_timed, to).wait(), begin("alone", 1, to).wait()]

        try:
            if n_processes < 2 or not is_quiet():
                statuses = [begin("beside", n_processes, to).wait(), *judge_the_clock()]
            else:
                beside = begin("beside", n_processes + N_WAITING, to, report=output)
                statuses = judge_the_clock()
                set_scheduler(beside.process.pid, os.SCHED_OTHER)
                statuses.append(beside.wait())
                show(beside, output)
            again = lines_of(failures)
            if combined(statuses) == FAILED and len(again) <= MAX_AGAIN:
                statuses = [begin("again", 1, f"--only-these={failures}").wait()]
        except BaseException:
            for each in passes:
                each.process.terminate()
                each.process.wait()
            raise
        print("\n==", ", ".join(f"{each.name} {each.seconds:.0f} s" for each in passes))
        if lines := lines_of(retried):
            print("== these failed while the machine stalled and were run once more:", *lines, sep="\n")
        if passes[-1].name == "again":
            verdict = "passed" if statuses == [PASSED] else "did not all pass"
            print(f"== these failed beside other tests, and {verdict} with nothing beside them:", *again, sep="\n")
    return combined(statuses)


def lines_of(path: Path) -> list[str]:
    """The lines of a file that a pass wrote; none if it wrote nothing."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def is_quiet(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> bool:
    """Whether the passes may overlap: the cores are mostly free, and no container's quota limits their use.

    The load average is no measure: it still contains the installation and the checks that ran before.
    """
    if not hasattr(os, "SCHED_IDLE") or idle_share() < MIN_IDLE_SHARE:
        return False
    try:
        return limits.read_text(encoding="ascii").startswith("max")
    except OSError:
        return True


def idle_share(watched_s: float = 2.0, counters: Path = Path("/proc/stat")) -> float:
    """The share of the time of all cores in which they had nothing to do, from now on for `watched_s` seconds."""

    def read() -> tuple[int, int]:
        ticks = [int(each) for each in counters.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)  # the fourth and fifth are idle time, without and with pending I/O

    try:
        idle, total = read()
        time.sleep(watched_s)
        idle_after, total_after = read()
    except (OSError, ValueError, IndexError):
        return 0.0
    return (idle_after - idle) / max(1, total_after - total)


def set_scheduler(pid: int, policy: int) -> None:
    """Put a process and its descendants into a scheduler class. Only root may take them out of the idle class."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
            for child in (thread / "children").read_text(encoding="ascii").split():
                set_scheduler(int(child), policy)


def start(name: str, n_processes: int, options: Sequence[str], output: IO[bytes] | None = None) -> Pass:
    """Start a pass. With `output` its report goes there, and it gets only idle CPU time."""
    command = [sys.executable, "-m", "pytest", *([] if name == "again" else [f"--only={name}"])]
    # Also for one at a time: a test that ends its process is then reported, and the others run.
    command += ["-n", str(n_processes), "--dist", "loadfile", "--no-loadscope-reorder"]
    print(f"== {name}{': in the background, its report follows' if output else ''}", flush=True)
    process = subprocess.Popen([*command, *options], stdout=output, preexec_fn=give_way if output else None)
    return Pass(name, process, time.monotonic())


def give_way() -> None:
    """Let this process and its children run only in idle CPU time."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def show(each: Pass, output: IO[bytes]) -> None:
    """Print the report of a pass that ran in the background."""
    print(f"\n== {each.name}", flush=True)
    output.seek(0)
    sys.stdout.buffer.write(output.read())
    sys.stdout.flush()


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="so many unmarked tests run at a time (2)")
    known, others = parser.parse_known_args()
    try:
        sys.exit(run(known.processes, others))
    except KeyboardInterrupt:
        sys.exit(130)
