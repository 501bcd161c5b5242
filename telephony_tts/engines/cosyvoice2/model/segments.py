"""What the language model is fed: ids, each with the embedding table that it is looked up in. No tensor is here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EmbeddingTable(Enum):
    """Which embedding an id is looked up in."""

    CONTROL = "control"
    TEXT = "text"
    SPEECH = "speech"


@dataclass(frozen=True, slots=True)
class TokenSegment:
    """Ids of one embedding table, in order."""

    table: EmbeddingTable
    ids: tuple[int, ...]
