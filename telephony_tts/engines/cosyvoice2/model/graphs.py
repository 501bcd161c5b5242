"""Work that is always the same, given to the device in one go.

A network of hundreds of layers costs the host more time to ask for, product by product, than the device to compute. A
graph (CUDA's word) is the list of what was asked for once: it can be asked for again as one, and does the same to the
same memory. So the work that is recorded reads and writes tensors that stay where they are, has nothing to send or to
read, and decides nothing: what differs from time to time is put into its tensors before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch

log = logging.getLogger(__name__)

Work = Callable[[], object]
Record = Callable[[Work], Work]
"""Does the work once or more, and gives what does the same again."""


class Graphs:
    """Works by their names. `run` is `work()`, quicker where it was prepared."""

    def __init__(self, device: torch.device, record: Record | None = None) -> None:
        """`record`: by default CUDA's on such a device, and none on others, where all is done piece by piece."""
        self._record = CudaRecorder(device) if record is None and device.type == "cuda" else record
        self._prepared: dict[Hashable, Work] = {}

    @property
    def records(self) -> bool:
        """Whether there is something to be gained by `prepare`."""
        return self._record is not None

    def prepare(self, name: Hashable, work: Work) -> None:
        """Do the work and remember it. Where it cannot be recorded it is done piece by piece from then on."""
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
    """Records on a stream of its own; all it records shares one pool of memory, for no two run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, work: Work) -> Work:
        """Raises RuntimeError where the work cannot be recorded: it waits for the device, or there is no memory."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            work()  # libraries set themselves up at the first call, which cannot be recorded
        torch.cuda.current_stream(self._device).wait_stream(stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            work()
        self._pool = self._pool or graph.pool()
        return graph.replay
