"""Messages between the engine's process and its parent, beside orders. On the socket, messages go in pickled lists,
each with its length in front."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from telephony_tts.engines.cosyvoice2.choice import EngineChoice
from telephony_tts.engines.cosyvoice2.core.orders import Event

HEADER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The model is loaded and utterances can be taken. `voices`: their names and descriptions."""

    voices: Mapping[str, str]
    choice: EngineChoice = field(default_factory=EngineChoice)


@dataclass(frozen=True, slots=True)
class ReadVoices:
    """To the process: read the stored voices now. The answer is `VoicesRead` with this number or a higher one."""

    number: int


@dataclass(frozen=True, slots=True)
class VoicesRead:
    """The core has these voices from now on. `number`: that of the last `ReadVoices` which this answers."""

    number: int
    voices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The model could not be loaded, and the process ends."""

    error: Exception


@dataclass(frozen=True, slots=True)
class UtteranceEvent:
    """An event of an utterance."""

    key: int
    event: Event


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent every `engine_process.HEARTBEAT_S`."""

    step_s: float
    """How long the oldest step has been computed."""
    counters: dict[str, float]
    cost: float
    """See `Counters`."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A log record for the parent's handlers. It is pickled before it is queued, so that a record which cannot be
    pickled does not fail the messages sent with it."""

    pickled_record: bytes


Message = EngineReady | VoicesRead | LoadFailed | UtteranceEvent | Heartbeat | LogMessage


def packed(content: object) -> bytes:
    """The bytes that go over the socket: the length of the pickle, then the pickle."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data
