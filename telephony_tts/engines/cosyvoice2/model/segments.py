"""Input of the language model: ids, and the embedding table that each is looked up in. It needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EmbeddingTable(Enum):
    """Which embedding an id is looked up in."""

    CONTROL = "control"
    TEXT = "text"
    SPEECH = "speech"
    SPEAKER = "speaker"
    """Not a table: the row of the slot's speaker, whose only id is 0 (CosyVoice-300M)."""


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Ids of one embedding table, in order."""

    table: EmbeddingTable
    ids: tuple[int, ...]
