"""What the supervisor and a front tell each other, over a socket that the front inherits: a length and a pickle each.

Both ends run from the same files. When one end is closed, its process has ended.
"""

from __future__ import annotations

import pickle
import struct
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
    shared_engines: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FrontReady:
    """The front can take calls. `served` is what `serve` announces."""

    served: Any


@dataclass(frozen=True, slots=True)
class FrontFailed:
    """The front could not start. `is_config`: the configuration is wrong."""

    message: str
    is_config: bool


def packed(message: FrontOrder | FrontReady | FrontFailed) -> bytes:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data
