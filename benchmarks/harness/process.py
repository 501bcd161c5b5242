"""The processes of a benchmark: the server on one core, the load generator on another, and their CPU time.

/proc/PID/schedstat has the nanoseconds on a CPU and the nanoseconds that a process was ready but waited for one. The
second figure shows how much other load disturbed a measurement. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_HARNESS = Path(__file__).resolve().parent
_START_WITHIN_S = 60.0


def cores() -> tuple[int, int]:
    """(the server's core, the load generator's core). Both are the same on a machine with one core."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def cpu_times_s(pid: int) -> tuple[float, float]:
    """(seconds on a CPU, seconds waiting for one), summed over the live threads of a process."""
    on_cpu_ns = waiting_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            fields = (task / "schedstat").read_text(encoding="ascii").split()
            on_cpu_ns += int(fields[0])
            waiting_ns += int(fields[1])
    return on_cpu_ns / 1e9, waiting_ns / 1e9


def family_cpu_times_s(pid: int) -> tuple[float, float]:
    """The same for a process and the processes that it has started: the fronts of a server with several."""
    family = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        family += map(int, (task / "children").read_text(encoding="ascii").split())
    times = [cpu_times_s(each) for each in family]
    return sum(on_cpu for on_cpu, _ in times), sum(waiting for _, waiting in times)


def stolen_s() -> float:
    """Seconds that the host took from this virtual machine, summed over its cores."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    """Resident memory of a process in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no resident memory")


def check_out(commit: str, folder: Path) -> None:
    """Write the files of a commit of this checkout into `folder`. Leaves no trace in the repository."""
    root = _HARNESS.parent.parent
    archive = subprocess.run(["git", "archive", commit], cwd=root, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)


def give_back_unused() -> None:
    """Let the C library return its unused memory, so that later growth of this process is memory in use.

    Does nothing without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def place(pid: int, core: int | None, priority: int | str = 0, rank: int = 1) -> None:
    """Move all threads of a process to a core (None: any) and give them a priority; later threads inherit both.

    `priority` is a niceness or "realtime". Between processes with "realtime" the higher `rank` runs first.
    Raises PermissionError for a priority that this user may not set.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        thread = int(task.name)
        with contextlib.suppress(ProcessLookupError):
            if core is not None:
                os.sched_setaffinity(thread, {core})
            if isinstance(priority, str):
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(rank))
            elif priority:
                os.setpriority(os.PRIO_PROCESS, thread, priority)


def place_this(core: int | None, priority: int | str = 0) -> None:
    """`place` the process that calls this."""
    place(os.getpid(), core, priority)


@contextmanager
def placed_here(core: int | None, priority: int | str = 0) -> Iterator[None]:
    """`place` this process, and with it every process that it starts; undo it at the end."""
    usable, niceness = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    try:
        place_this(core, priority)
        yield
    finally:
        for task in Path("/proc/self/task").iterdir():
            thread = int(task.name)
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, usable)
                if priority:
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                    os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _environment() -> dict[str, str]:
    """This environment, with the harness on the Python path and one BLAS thread as in `make run`. A tiny run tells its
    servers that it is one (`serve.py`)."""
    paths = [str(_HARNESS.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}
    return {**found, "BENCHMARK_QUICK": "1"} if "--quick" in sys.argv else found


class ServerProcess:
    """A server in a process of its own. `script` is a file of this folder; it prints "port N" when it is ready."""

    def __init__(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        core: int | None = None,
        priority: int | str = 0,
        package: Path | None = None,
    ) -> None:
        """`package`: a checkout whose server is started; None is the installed one. Only for `serve`,
        which prints the directory of its package behind the port."""
        self._command = [sys.executable, str(_HARNESS / f"{script}.py"), *args]
        self._core = core
        self._priority = priority
        self._package = package
        self._environment = _environment()
        if package is not None:
            paths = [str(_HARNESS.parent), str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            preexec_fn=partial(place_this, self._core, self._priority),
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("port "):
            self._process.kill()
            raise RuntimeError(f"the server did not start; to see why, run: {' '.join(self._command)}")
        self.ports = [int(word) for word in line.split()[1:] if word.isdecimal()]
        """All that it prints; most servers have one."""
        self.port = self.ports[0]
        if self._package is not None and (ran := line.split(maxsplit=2)[2].strip()) != str(self._package.resolve()):
            self.__exit__(None, None, None)
            raise RuntimeError(f"the server ran the package in {ran} instead of {self._package}")
        return self

    def drain(self, within_s: float) -> int:
        """SIGTERM, and wait until the server has let its calls end. Returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(within_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)  # the second signal ends live calls
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def run_load(
    scenario: str, spec: dict[str, Any], *, core: int | None = None, priority: int | str = 0
) -> dict[str, Any]:
    """Run a scenario of load_generator.py in a process of its own and return its figures."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(_HARNESS / "load_generator.py"), scenario],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        env=_environment(),
        preexec_fn=partial(place_this, core, priority),
        check=False,
        timeout=_START_WITHIN_S + 3 * float(spec.get("seconds", 120)),
    )
    if done.returncode:
        raise RuntimeError(f"{scenario} failed after {time.monotonic() - begun:.0f} s:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def speaking_calls(scenario: str, shape: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run a scenario against a server whose engine is instant. `chosen` has the flags calls, seconds, period and
    priority."""
    server_core, load_core = cores()
    args = ("--set", "engines.default=fake", "--set", "limits.text_chars_per_s=0", "--instant")
    with ServerProcess("serve", args, core=server_core, priority=chosen.priority) as server:
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "calls": chosen.calls,
            "shape": shape,
            "seconds": chosen.seconds,
            "period_s": chosen.period,
        }
        return run_load(scenario, spec, core=load_core, priority=chosen.priority)
