"""Which faults below the server this machine lets us cause."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torture.name_server import ADDRESS, NameServer, name_server
from torture.places import ROOT


def what_is_allowed() -> dict[str, str]:
    """Each way to disturb a server from below, with "yes", or why not."""
    return {
        "stop a process (SIGSTOP)": "yes",
        "a disk that is full (tmpfs)": _of(_mounts()),
        "packet loss (netem in a network namespace)": _of(_netem()),
        "memory pressure (cgroup)": _of(_cgroup()),
        "a DNS server that does not answer": _of(_resolver()),
        "Asterisk": _of("" if has_asterisk() else "fetched by --shape asterisk; else an AudioSocket client stands in"),
        "CosyVoice2's own process": _of("" if has_torch() else NO_TORCH),
    }


NO_TORCH = "PyTorch is not installed; make model installs it"


def has_torch() -> bool:
    """Whether CosyVoice2 can run."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "safetensors", "tokenizers"))


def has_asterisk() -> bool:
    """Whether Asterisk and telephones were fetched."""
    return (ROOT / ".peers" / "asterisk" / ".installed").exists()


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


_EMPTY_S = 2.0
_MEMORY = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
"""Where memory groups are made: version 1 of cgroups, and version 2."""


def _cgroup() -> str:
    try:
        with memory_group() as group:
            return "no memory controller" if group is None else ""
    except OSError as error:
        return str(error.strerror)


class MemoryGroup:
    """A group of processes whose new memory can be limited. A process that needs more waits, and is not killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_first = (folder / "memory.limit_in_bytes").exists()
        self._homes: dict[int, Path] = {}
        """Where each process was before."""

    def take(self, pid: int) -> None:
        controller = ":memory:" if self._is_first else "::"
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
            if controller in line:
                home = line.partition(controller)[2].lstrip("/")
                self._homes[pid] = self._folder.parent / home
        (self._folder / "cgroup.procs").write_text(str(pid))

    def limit(self, n_bytes: int | None) -> None:
        """None: no limit."""
        if self._is_first:
            # A process that waits for memory is killed if killing is allowed before there is memory.
            settings = [("memory.oom_control", "1"), ("memory.limit_in_bytes", str(n_bytes))]
            if n_bytes is None:
                settings = [("memory.limit_in_bytes", "-1"), ("memory.oom_control", "0")]
            for name, value in settings:
                (self._folder / name).write_text(value)
        else:
            (self._folder / "memory.high").write_text("max" if n_bytes is None else str(n_bytes))

    def n_waits(self) -> int:
        """How often a process had to wait for memory, as far as the system counts it."""
        counter = self._folder / "memory.failcnt"
        return int(counter.read_text()) if counter.exists() else 0

    def give_back(self) -> None:
        """Move all processes to where they came from. Those that they have started meanwhile are in the group too."""
        homes = list(self._homes.values())
        for pid in (int(line) for line in (self._folder / "cgroup.procs").read_text().split()):
            with suppress(ProcessLookupError):
                (self._homes.get(pid, homes[0]) / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the group, which has no process any more. One that is just being started or ended counts for a
        moment."""
        until_s = time.monotonic() + _EMPTY_S
        while True:
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > until_s:
                    raise
                if self._homes:
                    self.give_back()
                time.sleep(0.01)
            else:
                return


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """A new group; None where this user may not make one. Its processes are moved out and it is removed at the end."""
    for parent in _MEMORY:
        folder = parent / f"torture-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        group = MemoryGroup(folder)
        try:
            if any((folder / name).exists() for name in ("memory.limit_in_bytes", "memory.high")):
                try:
                    yield group
                finally:
                    group.limit(None)
                    group.give_back()
                return
        finally:
            group.remove()
    yield None


@contextmanager
def own_resolver(file: Path) -> Iterator[tuple[Sequence[str], NameServer | None]]:
    """The beginning of a command whose program asks our own DNS server, and that server. Where this user may not do
    that, names fail as they do here."""
    if _resolver():
        yield (), None
        return
    file.write_text(f"nameserver {ADDRESS}\noptions timeout:2 attempts:1\n", encoding="ascii")
    with name_server() as names:
        yield ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', str(file)), names


def _resolver() -> str:
    try:
        with name_server():
            pass
    except OSError as error:
        return str(error.strerror)
    return _run("unshare", "-m", "mount", "--bind", "/etc/hosts", "/etc/resolv.conf")


def _run(*command: str) -> str:
    """ "" if it worked, else the reason."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:120]
