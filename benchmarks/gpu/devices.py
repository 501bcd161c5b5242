"""What a check asks of a device: graphs, the places where the host waits, kernels, memory.

`CudaDevice` is a GPU. `CpuDevice` is for rehearsals. Tests add a device that computes on the CPU and is as strict as a
GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from gpu.trace import Event
from telephony_tts.engines.cosyvoice2.model.graphs import CudaRecorder, Record, Work

SYNCHRONIZING = "called a synchronizing CUDA operation"
"""The warning of `torch.cuda.set_sync_debug_mode`."""
QUERY = (
    "name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.width.current", "clocks.sm",
    "clocks.max.sm", "power.limit", "temperature.gpu",
)  # fmt: skip


class CheckedDevice(Protocol):
    name: str
    """As PyTorch calls it."""
    engine_device: str
    """The device of the engine under load."""
    counts: str
    """What `profiled` counts."""

    def describe(self) -> dict[str, Any]: ...
    def synchronize(self) -> None: ...
    def used_mib(self) -> float:
        """Memory in use on the whole device."""

    def recorder(self) -> Record | None:
        """What records graphs; None if the device records none."""

    def computing(self) -> AbstractContextManager[object]:
        """Entered by a thread that computes on the device."""

    def waits(self) -> AbstractContextManager[list[str]]:
        """Lists the places where the host waited for the device; the list is complete at the end of the block."""

    def profiled(self, work: Callable[[], object]) -> list[Event]:
        """Run the work; the events of its profile (`gpu.trace`)."""


class CpuDevice:
    name = engine_device = "cpu"
    counts = "operations"

    def describe(self) -> dict[str, Any]:
        return {"gpu": None}

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def used_mib(self) -> float:
        return 0.0

    def recorder(self) -> Record | None:
        return None

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        yield []

    def profiled(self, work: Callable[[], object]) -> list[Event]:
        return _profile([torch.profiler.ProfilerActivity.CPU], work)


class CudaDevice:
    counts = "kernels"

    def __init__(self, name: str) -> None:
        self.name = self.engine_device = name
        self._device = torch.device(name if ":" in name else f"{name}:0")
        # Between two profiles the profiler would be torn down, and then crash where there are graphs (a defect of
        # CUPTI, for which PyTorch itself does the same with its own graphs).
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")

    def describe(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(self._device)
        return {
            "gpu": properties.name,
            "capability": list(torch.cuda.get_device_capability(self._device)),
            "multiprocessors": properties.multi_processor_count,
            "memory_mib": properties.total_memory >> 20,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "architectures": torch.cuda.get_arch_list(),
            "allow_tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
            "nvidia_smi": _nvidia_smi(self._device.index),
        }

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def used_mib(self) -> float:
        n_free, n_all = torch.cuda.mem_get_info(self._device)
        return (n_all - n_free) / 2**20

    def recorder(self) -> Record | None:
        return CudaRecorder(self._device)

    def computing(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    @contextmanager
    def waits(self) -> Iterator[list[str]]:
        found: list[str] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)
        found += [f"{Path(each.filename).name}:{each.lineno}" for each in caught if SYNCHRONIZING in str(each.message)]

    def profiled(self, work: Callable[[], object]) -> list[Event]:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]

        def finished() -> None:
            work()
            self.synchronize()

        self.synchronize()
        return _profile(activities, finished)


def _profile(activities: list[Any], work: Callable[[], object]) -> list[Event]:
    with torch.profiler.profile(activities=activities) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(file)
        events: list[Event] = json.loads(Path(file).read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return events


def _nvidia_smi(index: int) -> dict[str, str] | None:
    """What the driver says of a GPU; None if its tool cannot say it."""
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(QUERY, (word.strip() for word in shown.strip().split(",")), strict=False))


class CountedRecorder:
    """Records with another recorder and counts."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.n = 0

    def __call__(self, work: Work) -> Work:
        replay = self._record(work)
        self.n += 1
        return replay


def make_device(name: str) -> CheckedDevice:
    """Raises ValueError for a device that the check does not know."""
    if name == "cpu":
        return CpuDevice()
    if name == "cuda" or name.startswith("cuda:"):
        return CudaDevice(name)
    raise ValueError(f"--device is {name!r}; expected cpu, cuda or cuda:N")
