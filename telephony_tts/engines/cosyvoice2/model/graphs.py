"""CUDA graphs: work that is always the same, launched on the device with one call.

In a network of hundreds of layers the host needs more time to launch the operations than the device needs to compute
them. A graph records the launches once, and replays all of them with one call, on the same memory. So recorded work
reads and writes tensors that never move. It copies nothing between host and device, and makes no decision on the host.
The inputs that differ are written into its tensors before a replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch

log = logging.getLogger(__name__)

Work = Callable[[], object]
Record = Callable[[Work], Work]
"""Runs the work at least once, and returns a function that replays it."""


class Graphs:
    """Recorded work by name. `run` does what `work()` does, and faster if the name was prepared."""

    def __init__(self, device: torch.device, record: Record | None = None) -> None:
        """`record`: by default `CudaRecorder` on a CUDA device. On others nothing is recorded."""
        self._record = CudaRecorder(device) if record is None and device.type == "cuda" else record
        self._prepared: dict[Hashable, Work] = {}

    @property
    def records(self) -> bool:
        """Whether `prepare` records anything."""
        return self._record is not None

    def prepare(self, name: Hashable, work: Work) -> None:
        """Run the work and record it. If recording fails, nothing more is recorded, and other work runs directly."""
        if self._record is None or name in self._prepared:
            return
        try:
            self._prepared[name] = self._record(work)
        except RuntimeError as error:
            log.warning("a step of the speech model runs without a graph, which is slower: %s", error)
            self._record = None

    def run(self, name: Hashable, work: Work) -> None:
        self._prepared.get(name, work)()


class CudaRecorder:
    """Records on a CUDA stream of its own. All graphs share one memory pool, because no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, work: Work) -> Work:
        """Raises RuntimeError if the work cannot be recorded: it waits for the device, or there is no memory."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            work()  # libraries initialise at the first call, which cannot be recorded
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            work()
        self._pool = self._pool or graph.pool()
        return graph.replay
