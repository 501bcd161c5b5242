"""What crosses between host and device: neither way makes the host wait for what the device still has to do.

A copy from ordinary memory of the host, or into it, is waited for; from and into memory that stays in its place
("pinned") the device makes it by itself, in the order of its work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor


def sent(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers of the host, nested lists of equal lengths too, on their way to the device."""
    here = torch.tensor(numbers, dtype=dtype)
    if device.type == "cuda":
        # PyTorch keeps the memory until the copy is made, and then for the next one.
        here = here.pin_memory()
    return here.to(device, non_blocking=True)


class Returning:
    """A tensor on its way back, behind what the device had to do when this was made and before all that came later."""

    def __init__(self, there: Tensor) -> None:
        self._here = there
        self._arrived: torch.cuda.Event | None = None
        if there.device.type == "cuda":
            self._here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            self._here.copy_(there, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(there.device))

    def read(self) -> Tensor:
        """Waits for it; on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here.cpu()


class HostMoment:
    """When the host came here, by `now_ns`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._at_ns = now_ns()

    def ns_after(self, begin: Self) -> int | None:
        return self._at_ns - begin._at_ns

    def wait(self) -> None:
        """It is there."""


class DeviceMoment:
    """When a device comes here in what it has to do, which may be long after the host has asked for it."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def ns_after(self, begin: Self) -> int | None:
        """None as long as it has not come here."""
        return round(1e6 * begin._event.elapsed_time(self._event)) if self._event.query() else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until it has come here."""
        self._event.synchronize()
