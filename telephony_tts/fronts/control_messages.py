"""What the supervisor and a front tell each other, over a socket that the front inherits: a length and a pickle each.

Both ends run from the same files. When one end is closed, its process has ended.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HEADER = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class FrontOrder:
    """The first message to a front: what it is to serve. `sockets` are the descriptors of listening sockets.

    `config` is the whole configuration, which holds secrets. With `listens_at_once` it accepts connections before its
    engines are loaded.
    """

    config: Any = field(repr=False)
    folder: str
    number: int
    generation: int
    n_fronts: int
    sockets: tuple[int, ...]
    listens_at_once: bool
    shared_engines: Mapping[str, str] = field(default_factory=dict)
    """Engines that run once for all fronts, by their name: the address of each."""


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """The first message to the process of a shared engine: the engine `name` of `config`, and where it listens."""

    config: Any = field(repr=False)
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class FrontReady:
    """The front can take calls. `served` is what `serve` announces."""

    served: Any


@dataclass(frozen=True, slots=True)
class FrontFailed:
    """The front could not start. `is_config`: the configuration is wrong."""

    message: str
    is_config: bool


def packed(message: FrontOrder | EngineOrder | FrontReady | FrontFailed) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data


def read_order(control: socket.socket) -> Any:
    """The first message to a new process. None if its parent is gone."""
    with control.makefile("rb") as messages:
        header = messages.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        return pickle.loads(messages.read(HEADER.unpack(header)[0]))
