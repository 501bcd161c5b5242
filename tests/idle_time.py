"""Processes that run in idle time: only while no other process wants a core.

The kernel's idle class does that, but not everywhere: where the kernel groups processes by session (`autogroup`),
sessions share the cores equally, whatever their classes. There a control group with `cpu.idle` does it, which only root
can make. So `way_to_yield` tries each, and measures whether busy processes of that kind leave the cores to this one.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

GROUPS = (Path("/sys/fs/cgroup/cpu/telephony-tts-tests"), Path("/sys/fs/cgroup/telephony-tts-tests"))
"""Control groups of version 1 and 2."""
BUSY = "import signal, sys\nsignal.alarm(int(sys.argv[1]))\nprint(flush=True)\nwhile True: pass"
MAX_BUSY_S = 60
"""Then a busy process ends by itself. This one may have been killed."""
N_BUSY = 2
"""Busy processes for each core, in a measurement."""
TRY_S = 0.2
MAX_WAIT = 0.2
"""The longest wait for a core, as a part of the time that this process computes. If it shared a core with one other, it
would wait as long as it computes."""
START_S = 10

Enter = Callable[[], None]
"""What a new process calls before its program. It raises OSError where that is not possible."""


def enter_idle_class() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def entering(group: Path) -> Enter:
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # type: ignore[func-returns-value]


@contextmanager
def way_to_yield(groups: Sequence[Path] = GROUPS) -> Iterator[Enter | None]:
    """For `preexec_fn`: with it a process and its children yield to all others. None if nothing does that here."""
    if leaves_the_cores(enter_idle_class):
        yield enter_idle_class
        return
    for group in groups:
        try:
            group.mkdir(exist_ok=True)
            (group / "cpu.idle").write_text("1")
            break
        except OSError:
            remove(group)
    else:
        yield None
        return
    try:
        yield entering(group) if leaves_the_cores(entering(group)) else None
    finally:
        remove(group)


def remove(group: Path) -> None:
    with suppress(OSError):  # another run of the tests may use it, or it could not be made
        group.rmdir()


def leaves_the_cores(enter: Enter) -> bool:
    """Whether busy processes that call `enter` leave the cores to this process.

    What counts is how long this process was ready and got no core, as the kernel counts it. Time that the host took
    away is not part of it.
    """
    n = N_BUSY * len(os.sched_getaffinity(0))
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(n):
            program = [sys.executable, "-S", "-c", BUSY, str(MAX_BUSY_S)]
            busy.append(subprocess.Popen(program, stdout=subprocess.PIPE, preexec_fn=enter, start_new_session=True))
        for each in busy:
            assert each.stdout is not None
            if not select.select([each.stdout], [], [], START_S)[0] or not each.stdout.read(1):
                return False  # something else keeps all cores busy
        waited_s = _waited_s()
        until_s = time.process_time() + TRY_S
        while time.process_time() < until_s:
            pass
        return _waited_s() - waited_s < MAX_WAIT * TRY_S
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        for each in busy:
            each.kill()
            each.communicate()


def _waited_s() -> float:
    """How long this thread has waited for a core since it began."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
