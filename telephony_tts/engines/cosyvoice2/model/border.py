"""Copies between host and device that do not make the host wait for the device.

The host waits for a copy from or to ordinary memory. From and to pinned memory the device copies by itself, in the
order of its work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(
    numbers: Sequence[Any] | NDArray[np.int64], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A tensor of `numbers` on the device. Nested lists must be of equal lengths. The copy may still be under way."""
    here = torch.tensor(numbers, dtype=dtype)
    if device.type == "cuda":
        # PyTorch keeps the pinned memory until the copy is made, and then reuses it.
        here = here.pin_memory()
    return here.to(device, non_blocking=True)


class Returning:
    """A tensor on its way to the host. The copy is queued behind the device's work so far, before all later work."""

    def __init__(self, there: Tensor) -> None:
        self._here = there
        self._columns: list[list[Any]] | None = None
        self._arrived: torch.cuda.Event | None = None
        if there.device.type == "cuda":
            self._here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            self._here.copy_(there, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(there.device))

    @property
    def n_rows(self) -> int:
        """The tensor's first size."""
        return self._here.shape[0]

    def read(self) -> Tensor:
        """The tensor on the host. Waits until it has arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here.cpu()

    def columns(self) -> list[list[Any]]:
        """The columns of a tensor of two dimensions on the host. Waits until it has arrived."""
        if self._columns is None:
            self._columns = self.read().T.tolist()
        return self._columns


class HostMoment:
    """The time at which the host created this, by `now_ns`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._at_ns = now_ns()

    def ns_after(self, begin: Self) -> int | None:
        return self._at_ns - begin._at_ns

    def wait(self) -> None:
        """Returns at once: the host is already past this moment."""


class DeviceMoment:
    """The time at which a device reaches this point in its queue, which may be long after the host queued it."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def ns_after(self, begin: Self) -> int | None:
        """Nanoseconds since `begin`. None until the device has reached this point."""
        return round(1e6 * begin._event.elapsed_time(self._event)) if self._event.query() else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Waits until the device has reached this point."""
        self._event.synchronize()
