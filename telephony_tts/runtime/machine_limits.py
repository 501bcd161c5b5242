"""What this process may use of the machine: the processor's model, its cores, and memory.

A container or a service has a control group (cgroup) with limits of its own, which other interfaces do not report. Both
versions of the interface are read. A limit holds for all groups inside, so each group up to the root is asked. What
cannot be read limits nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 for "no limit"."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """The part of a machine's processor that this process may use."""

    n_cpus: int
    """Logical processors of its affinity mask."""
    n_cores: int
    """Physical cores among them."""
    quota: float | None = None
    """Processors' worth of time that its control group allows; None without a limit."""

    @property
    def usable(self) -> float:
        """Processors' worth of time."""
        return float(self.n_cpus) if self.quota is None else min(float(self.n_cpus), self.quota)

    def __str__(self) -> str:
        cpus = f"{self.n_cpus} CPU{'s' if self.n_cpus != 1 else ''}"
        if self.n_cores < self.n_cpus:
            cpus += f" ({self.n_cores} core{'s' if self.n_cores != 1 else ''})"
        limited = self.quota is not None and self.quota < self.n_cpus
        return f"{cpus}, of which the control group allows {self.quota:g}" if limited else cpus


def cpu_model(root: Path = Path("/")) -> str:
    """The processor's name. A virtual machine may hide it, so its family, model and stepping follow."""
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    first: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        first.setdefault(name.strip(), value.strip())
    numbers = [first[key] for key in ("cpu family", "model", "stepping") if key in first]
    name = first.get("model name", platform.machine())
    return f"{name} ({'/'.join(numbers)})" if numbers else name


def cpu_share(root: Path = Path("/")) -> CpuShare:
    """The processors that this process may use."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in cpus:
        of_cpu = _text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(of_cpu or str(cpu))
    return CpuShare(len(cpus), len(siblings), _quota(root))


def memory_free(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take without swapping; None if the system does not say."""
    known = [*_free_in_groups(root)]
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            known.append(int(value.split()[0]) << 10)
    return min(known, default=None)


def _quota(root: Path) -> float | None:
    """Processors' worth of time; None without a limit."""
    quotas = []
    for folder in _groups(root, ""):
        quota, _, period = (_text(folder / "cpu.max") or "").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            quotas.append(int(quota) / int(period))
    for folder in _groups(root, "cpu"):
        of_group, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if of_group is not None and of_group > 0 and period_us:
            quotas.append(of_group / period_us)
    return min((quota for quota in quotas if quota > 0), default=None)


def _free_in_groups(root: Path) -> Iterator[int]:
    """Bytes that each limited group has left. Cached files count as free: they are dropped when memory is needed."""
    for controller, most, used, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _groups(root, controller):
            limit, taken = _number(folder / most), _number(folder / used)
            if limit is None or taken is None or limit >= NO_LIMIT_BYTES:
                continue
            reclaimable = 0
            for line in (_text(folder / "memory.stat") or "").splitlines():
                name, _, value = line.partition(" ")
                if name == cached and value.isdecimal():
                    reclaimable = int(value)
            yield max(0, limit - taken + reclaimable)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those around it. `controller` is "" for version 2.

    Inside a container the kernel's path may not exist: the container sees its own group as the root.
    """
    mount = root / "sys/fs/cgroup"
    if controller:
        mount /= controller
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controller not in controllers.split(","):
            continue
        folder = mount / path.strip("/")
        while folder != mount:
            yield folder
            folder = folder.parent
    yield mount


def _number(file: Path) -> int | None:
    text = _text(file)
    try:
        return None if text is None else int(text)
    except ValueError:  # "max"
        return None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
