"""The rows of a parity report, and how missing or damaged files become rows.

A stage that was compared has an error and a tolerance. A stage without vectors in the directory is skipped. An
exception in our code, or a file that cannot be read, makes a stage with an infinite error. It misses, and the next
stage follows.
"""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

EXACT = 0.0


class Stage(NamedTuple):
    """A comparison: the largest error, or the number of differences, and how large it may be."""

    name: str
    error: float
    tolerance: float


class Skipped(NamedTuple):
    """A stage that was not compared, and why."""

    name: str
    reason: str


Row = Stage | Skipped


class Absent(Exception):
    """The directory has no such file or array. There is nothing to compare with, which is not an error."""


class Arrays(dict[str, Tensor]):
    """The numeric arrays of an .npz as tensors. Raises Absent for one that it does not have."""

    def __init__(self, path: Path) -> None:
        found = read_npz(path)
        super().__init__(
            {name: torch.from_numpy(array) for name, array in found.items() if array.dtype.kind in "bfiu"}
        )
        self.file = path.name

    def __missing__(self, name: str) -> Tensor:
        raise Absent(f"{self.file} has no {name}")

    def ids(self, name: str) -> Tensor:
        """Token ids, [1, n] int64: an empty array may have any type and shape."""
        return self[name].reshape(1, -1).long()


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays. Raises Absent without the file, ValueError with its name if it cannot be read."""
    present(path)
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            return dict(file)
    except Exception as failure:  # a damaged archive fails in many ways
        raise ValueError(f"{path.name} cannot be read: {reason(failure)}") from failure


def read_json(path: Path) -> Any:
    """Raises Absent without the file, ValueError with its name if it cannot be read."""
    present(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as failure:
        raise ValueError(f"{path.name} cannot be read: {reason(failure)}") from failure


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pt file. Raises Absent without the file, ValueError with its name if it cannot be read."""
    present(path)
    try:
        return dict(_state(path.read_bytes()))
    except Exception as failure:  # a damaged archive fails in many ways
        raise ValueError(f"{path.name} cannot be read: {reason(failure)}") from failure


@functools.lru_cache(maxsize=16)
def _state(content: bytes) -> dict[str, Tensor]:
    """Cached by content: every stage reads its file again, and unpacking takes much of a comparison's time."""
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def present(path: Path) -> None:
    if not path.exists():
        raise Absent(f"no {path.name}")


def reason(failure: BaseException) -> str:
    """An exception in one line."""
    words = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {words[:200]}" if words else type(failure).__name__


def measure(name: str, compute: Callable[[], float], tolerance: float) -> Row:
    """One stage. It is computed here, so that an exception concerns this stage alone."""
    try:
        return Stage(name, compute(), tolerance)
    except Absent as absent:
        return Skipped(name, str(absent))
    except Exception as failure:
        return Stage(f"{name} ({reason(failure)})", math.inf, tolerance)


def guarded(name: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows. An exception between two rows ends them with a row of this name."""
    try:
        yield from rows
    except Absent as absent:
        yield Skipped(name, str(absent))
    except Exception as failure:
        yield Stage(f"{name} ({reason(failure)})", math.inf, EXACT)


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference. It is infinite if the shapes differ, or if two values differ and one is not finite."""
    if got.shape != want.shape:
        return math.inf
    if not got.numel():
        return 0.0
    a, b = got.double(), want.double()
    largest = float(torch.where(a == b, 0.0, (a - b).abs()).max())
    return math.inf if math.isnan(largest) else largest
