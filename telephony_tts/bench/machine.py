"""The machine and the commit of a run, and the memory and energy that it used."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns

LIBRARIES = ("torch", "numpy")
POWERCAP = Path("/sys/class/powercap")
SAMPLE_S = 0.25


def machine(device: str, names: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """The processor, the cores that this process may use, the versions of the libraries `names`; the GPU if it is used.

    Neither host names nor paths: results are published.
    """
    libraries = {}
    for name in names:
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            libraries[name] = "not installed"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": cores,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": libraries,
    }
    if device.startswith("cuda"):
        import torch

        described["gpu"] = torch.cuda.get_device_name(device)
        described["cuda"] = torch.version.cuda
    return described


def commit() -> str | None:
    """The commit of the checkout with this code, with "+changes" if the code differs; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short", "HEAD").strip()
        return head + ("+changes" if _git(root, "status", "--porcelain", "--", "telephony_tts").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    # Without this option `status` writes to the index.
    command = ["git", "--no-optional-locks", *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


class Meter:
    """Measures memory and energy inside `async with`, as far as the machine reports them."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._rapl = Rapl(POWERCAP)
        self._gpu_j: float | None = None
        self._gpu_used_most = 0
        self._sampling: asyncio.Task[None] | None = None
        self._since_start = False

    async def __aenter__(self) -> Self:
        self._since_start = not _forget_peak()
        self._rapl.begin()
        if self._device.startswith("cuda"):
            import torch

            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.reset_peak_memory_stats(self._device)
            self._sampling = asyncio.create_task(self._sample(self._look))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    def figures(self) -> dict[str, Any]:
        """Peaks in MiB and energy in joules; None where the machine does not report a figure.

        rss_peak_mib        of this process and its children: the sum of their peaks
        gpu_peak_mib        of PyTorch's tensors, if the engine runs in this process
        gpu_used_peak_mib   of the whole GPU, by samples. Like the energy it includes other programs
        """
        found: dict[str, Any] = {"rss_peak_mib": _peak_mib()}
        if self._since_start:
            found["rss_peak_since_start"] = True
        if self._device.startswith("cuda"):
            import torch

            held = torch.cuda.max_memory_allocated(self._device) if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
            found["gpu_peak_mib"] = round(held / 2**20, 1) if held else None
            found["gpu_used_peak_mib"] = round(self._gpu_used_most / 2**20, 1) if self._gpu_used_most else None
        cpu_j = self._rapl.joules()
        known = [joules for joules in (cpu_j, self._gpu_j) if joules is not None]
        return {
            **found, "energy_j": round(sum(known), 2) if known else None, "energy_cpu_j": _rounded(cpu_j),
            "energy_gpu_j": _rounded(self._gpu_j),
        }  # fmt: skip

    def _look(self) -> tuple[float | None, int]:
        """The GPU's watts and its bytes in use; None and 0 if the driver does not report them."""
        import torch

        watts, used = None, 0
        # A missing driver library and a device without a meter raise different errors.
        with suppress(Exception):
            used = torch.cuda.device_memory_used(self._device)
        with suppress(Exception):
            watts = torch.cuda.power_draw(self._device) / 1000
        return watts, used

    async def _sample(self, look: Callable[[], tuple[float | None, int]]) -> None:
        last_ns = monotonic_ns()
        while True:
            await asyncio.sleep(SAMPLE_S)
            watts, used = await asyncio.to_thread(look)
            now_ns = monotonic_ns()
            self._gpu_used_most = max(self._gpu_used_most, used)
            if watts is not None:
                self._gpu_j = (self._gpu_j or 0.0) + watts * (now_ns - last_ns) / NS_PER_S
            last_ns = now_ns


class Rapl:
    """The energy counters of the processors (RAPL). On most machines only root may read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began: dict[Path, int] = {}

    def begin(self) -> None:
        self._began = {zone: uj for zone in self._packages() if (uj := _number(zone / "energy_uj")) is not None}

    def joules(self) -> float | None:
        """Joules since `begin`; None if no counter can be read. A counter may wrap around once."""
        total_uj = 0
        for zone, began_uj in self._began.items():
            now_uj = _number(zone / "energy_uj")
            if now_uj is None:
                return None
            if now_uj < began_uj:
                now_uj += _number(zone / "max_energy_range_uj") or 0
            total_uj += max(0, now_uj - began_uj)
        return total_uj / 1e6 if self._began else None

    def _packages(self) -> list[Path]:
        """The zones of whole processors. A zone inside one has a second colon and would count twice."""
        return [zone for zone in sorted(self._folder.glob("*-rapl:*")) if zone.name.count(":") == 1]


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _processes() -> list[Path]:
    """This process and its descendants, in which an engine may run."""
    found = [Path("/proc/self")]
    for process in found:  # the list grows during the loop
        for children in process.glob("task/*/children"):
            with suppress(OSError):
                found += [Path("/proc") / pid for pid in children.read_text(encoding="ascii").split()]
    return found


def _forget_peak() -> bool:
    """Reset the kernel's peaks of the processes; False if it cannot."""
    try:
        for process in _processes():
            if process.exists():  # a child may have ended
                (process / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _peak_mib() -> float | None:
    peaks_kib = [_peak_kib(process) for process in _processes()]
    if peaks_kib[0]:
        return round(sum(peaks_kib) / 1024, 1)
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def _peak_kib(process: Path) -> int:
    """0 if the process has ended or the system does not report it."""
    try:
        lines = (process / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
