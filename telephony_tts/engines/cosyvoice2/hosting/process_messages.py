"""What the engine's process says to its parent, and how messages go over their socket: a length, then a pickle."""

from __future__ import annotations

import logging
import pickle
import struct
from dataclasses import dataclass

from telephony_tts.engines.cosyvoice2.core.orders import Event

HEADER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Ready:
    """The voices, by name: utterances may come."""

    voices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be loaded, and the process ends."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Heard:
    """Something happened to an utterance."""

    key: int
    event: Event


@dataclass(frozen=True, slots=True)
class Alive:
    """The heartbeat, sent every `engine_process.HEARTBEAT_S`. `step_s`: how long the oldest step has been computed;
    `counters`, `cost`: see `Counters`."""

    step_s: float
    counters: dict[str, float]
    cost: float


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record for the parent's handlers."""

    record: logging.LogRecord


Message = Ready | Failed | Heard | Alive | Logged


def packed(message: object) -> bytes:
    """As it goes over the socket."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data
