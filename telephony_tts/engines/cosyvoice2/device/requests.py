"""What the core asks of the device, in plain values: rows and blocks to compute, and how many fit one batch.

No tensor is here, so the core can name these without PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Most rows in one batch of each stage. `all_stages`: whether one step computes all stages."""

    prefill: int = 1
    decode: int = 4
    flow: int = 1
    vocode: int = 1
    all_stages: bool = False


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One row of a decode step. `banned`: for each id to draw, the stop ids that must not be drawn. `forced`: the first
    id instead of a draw, or None."""

    speech_id: int
    banned: tuple[tuple[int, ...], ...]
    forced: int | None


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Speech ids that go through the flow in one call."""

    new: tuple[int, ...]
    ahead: tuple[int, ...] | None
    """The lookahead: the ids after `new`. None if these are the last of the piece."""
    all_ids: tuple[int, ...] | None = None
    """All ids of the piece, if the end is computed over the whole piece again (`Profile.causal_finish`)."""
    n_before: int = 0
    """With `all_ids`: how many ids were voiced before."""
