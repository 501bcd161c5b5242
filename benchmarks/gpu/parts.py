"""Runs the parts of a check one after the other, each in a process of its own with a limit.

A part that crashes, hangs or leaves the GPU unusable takes nothing with it. What it had written stays.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpu.result_file import ResultFile

GRACE_S = 3.0
"""Between the request to end and the kill."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    name: str
    what: str
    limit_s: float
    least_s: float
    """It is not begun with less time left than this."""


def run_parts(
    parts: Sequence[CheckPart],
    command: Callable[[CheckPart], Sequence[str]],
    results: ResultFile,
    budget_s: float,
    tell: Callable[[str], None],
) -> bool:
    """Run the parts that are not done, in their order, within `budget_s`. Whether all are done then."""
    ends_s = time.monotonic() + budget_s
    done = {name for name, line in results.statuses().items() if line["status"] == "done"}
    for n, part in enumerate(parts, 1):
        title = f"part {n} of {len(parts)}, {part.name}"
        if part.name in done:
            tell(f"{title}: done before")
            continue
        left_s = ends_s - time.monotonic()
        if left_s < part.least_s:
            tell(f"{title}: skipped, {left_s:.0f} s are left and it needs {part.least_s:.0f}; call again to go on")
            results.append({"part": part.name, "status": "skipped", "seconds": 0.0})
            continue
        limit_s = min(part.limit_s, left_s)
        tell(f"{title}: {part.what}; at most {limit_s:.0f} s")
        begun_s = time.monotonic()
        status = _run(command(part), limit_s)
        seconds = time.monotonic() - begun_s
        results.append({"part": part.name, "status": status, "seconds": round(seconds, 1)})
        tell(f"{title}: {status} after {seconds:.1f} s, {max(0.0, ends_s - time.monotonic()):.0f} s are left")
    statuses = results.statuses()
    return all(statuses.get(part.name, {}).get("status") == "done" for part in parts)


def _run(command: Sequence[str], limit_s: float) -> str:
    """Run a process and its children; they are gone when this returns."""
    # A group of its own, so that an engine's process ends with it.
    process = subprocess.Popen(command, process_group=0)
    try:
        return "done" if process.wait(limit_s) == 0 else "failed"
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return "overran"
    finally:
        _signal(process, signal.SIGKILL)
        _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process. `Popen.wait` would wait for ever if the exception of a signal's handler came while
    it held its lock, between taking it and the `try` that gives it back."""
    if process.returncode is None:
        with suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
