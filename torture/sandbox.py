"""Which faults below the server this machine lets us cause."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path


def what_is_allowed() -> dict[str, str]:
    """Each way to disturb a server from below, with "yes", or why not."""
    return {
        "stop a process (SIGSTOP)": "yes",
        "a disk that is full (tmpfs)": _of(_mounts()),
        "packet loss (netem in a network namespace)": _of(_netem()),
        "memory pressure (cgroup)": _of(_cgroup()),
        "Asterisk": "yes" if shutil.which("asterisk") else "no: not installed, an AudioSocket client stands in for it",
    }


def _of(why_not: str) -> str:
    return f"no: {why_not}" if why_not else "yes"


def _mounts() -> str:
    with tempfile.TemporaryDirectory() as folder:
        if not (why := _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)):
            _run("umount", folder)
        return why


def _netem() -> str:
    name = "torture-probe"
    if why := _run("ip", "netns", "add", name):
        return why
    try:
        return _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    finally:
        _run("ip", "netns", "del", name)


def _cgroup() -> str:
    for folder in (Path("/sys/fs/cgroup/memory/torture-probe"), Path("/sys/fs/cgroup/torture-probe")):
        try:
            folder.mkdir()
        except OSError as error:
            why = str(error.strerror)
            continue
        limit = next((name for name in ("memory.limit_in_bytes", "memory.max") if (folder / name).exists()), None)
        folder.rmdir()
        if limit is not None:
            return ""
        why = "no memory controller"
    return why


def _run(*command: str) -> str:
    """ "" if it worked, else the reason."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:120]
