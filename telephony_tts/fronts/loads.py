"""What each front does, in memory that all processes of the server share.

Each front has a slot, which only it writes. The supervisor clears the slot of a front that has ended.

A value is written in one step, and no decision needs two values of the same moment.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from telephony_tts.runtime.clock import NS_PER_MS
from telephony_tts.transport.fronts import FrontLoad

_FIELDS = 16
_SLOT_BYTES = 8 * _FIELDS
_GENERATION, _BEAT, _CALLS, _REQUESTS, _ARRIVING, _SOCKETS, _AWAITS, _ABLE, _DRAINING = range(9)
SILENT_NS = 250 * NS_PER_MS
"""A front that has written nothing for so long gets no new connections: it is stopped, or its event loop hangs. A
healthy one writes every 100 ms."""


class Loads:
    """The slots of `n` fronts. Close it at the end."""

    def __init__(self, path: Path, n: int, *, create: bool = False) -> None:
        """Raises OSError."""
        self.n = n
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
        try:
            if create:
                os.posix_fallocate(fd, 0, n * _SLOT_BYTES)  # now, and not as SIGBUS when the folder is full
            self._memory = mmap.mmap(fd, n * _SLOT_BYTES)
        finally:
            os.close(fd)
        self._values = memoryview(self._memory).cast("q")

    def begin(self, number: int, generation: int) -> None:
        """A front of this number has begun. `generation` counts from 1."""
        self.clear(number)
        self._values[number * _FIELDS + _GENERATION] = generation

    def clear(self, number: int) -> None:
        """No front of this number runs."""
        for at in range(number * _FIELDS, (number + 1) * _FIELDS):
            self._values[at] = 0

    def write(self, number: int, load: FrontLoad, now_ns: int) -> None:
        at = number * _FIELDS
        values = self._values
        values[at + _CALLS] = load.n_calls
        values[at + _REQUESTS] = load.n_requests
        values[at + _ARRIVING] = load.n_arriving
        values[at + _SOCKETS] = load.n_sockets
        values[at + _AWAITS] = load.awaits_media
        values[at + _ABLE] = load.is_able
        values[at + _DRAINING] = load.is_draining
        values[at + _BEAT] = now_ns

    def read(self, number: int, now_ns: int) -> FrontLoad:
        """What the front of this number does; nothing if none runs. A front that hangs is not able."""
        at = number * _FIELDS
        values = self._values
        if not values[at + _GENERATION]:
            return FrontLoad(is_draining=True)
        hangs = now_ns - values[at + _BEAT] > SILENT_NS
        return FrontLoad(
            values[at + _CALLS], values[at + _REQUESTS], values[at + _ARRIVING], values[at + _SOCKETS],
            bool(values[at + _AWAITS]), bool(values[at + _ABLE]) and not hangs, bool(values[at + _DRAINING]),
        )  # fmt: skip

    def beat_ns(self, number: int) -> int:
        """When the front of this number has written last; 0 if none runs."""
        return self._values[number * _FIELDS + _BEAT]

    def generation(self, number: int) -> int:
        """Of the front that runs; 0 if none does."""
        return self._values[number * _FIELDS + _GENERATION]

    def names(self) -> Iterator[str]:
        """Of the fronts that run."""
        for number in range(self.n):
            if generation := self.generation(number):
                yield name_of(number, generation)

    def close(self) -> None:
        self._values.release()
        self._memory.close()


def name_of(number: int, generation: int) -> str:
    return f"{number}.{generation}"


def parts_of(name: str) -> tuple[int, int]:
    """The opposite of `name_of`. Raises ValueError for another text."""
    number, dot, generation = name.partition(".")
    if not dot or not (number.isdecimal() and generation.isdecimal()):
        raise ValueError(f"{name!r} names no front")
    return int(number), int(generation)
