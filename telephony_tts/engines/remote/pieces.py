"""An utterance's chunks gathered into pieces for the network. Pure: time is an argument.

A message costs the same for 20 ms of audio as for half a second. So audio is kept back until there is a piece of
`PIECE_NS`, but only while the listener has at least `SPARE_NS` of audio that it was sent before, or for `MOMENT_NS`: an
engine that is much faster than speech then fills the piece.
"""

from __future__ import annotations

import numpy as np

from telephony_tts.engines.api import Chunk
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S

PIECE_NS = 400 * NS_PER_MS
"""Audio of this length is sent at once."""
MOST_NS = 500 * NS_PER_MS
"""Chunks are not joined beyond this length. A longer chunk stays as the engine made it."""
SPARE_NS = 200 * NS_PER_MS
MOMENT_NS = 5 * NS_PER_MS


def duration_ns(chunk: Chunk) -> int:
    return len(chunk.pcm) * NS_PER_S // chunk.sample_rate_hz


class PieceGatherer:
    """The audio of one utterance between its engine and the network."""

    def __init__(self) -> None:
        self._kept: list[Chunk] = []
        self._kept_ns = 0
        self._kept_since_ns = 0
        self._sent_ns = 0
        """How much audio was given back for sending."""
        self._first_ns: int | None = None
        """When the first audio was."""

    def add(self, chunk: Chunk, now_ns: int) -> list[Chunk]:
        """Take a chunk. Returns the pieces to send now."""
        ready: list[Chunk] = []
        if self._kept and not self._fits(chunk):
            ready.append(self._take(now_ns))
        if not self._kept:
            self._kept_since_ns = now_ns
        self._kept.append(chunk)
        self._kept_ns += duration_ns(chunk)
        if self._kept_ns >= PIECE_NS or now_ns >= self._due_ns():
            ready.append(self._take(now_ns))
        return ready

    def flush(self, now_ns: int) -> Chunk | None:
        """All that is kept, as one piece."""
        return self._take(now_ns) if self._kept else None

    def deadline_ns(self) -> int | None:
        """When what is kept must be flushed, because the listener may need it. None if nothing is kept."""
        return self._due_ns() if self._kept else None

    def _due_ns(self) -> int:
        if self._first_ns is None:
            return self._kept_since_ns
        spare_until_ns = self._first_ns + self._sent_ns
        return min(spare_until_ns, max(spare_until_ns - SPARE_NS, self._kept_since_ns + MOMENT_NS))

    def _fits(self, chunk: Chunk) -> bool:
        last = self._kept[-1]
        is_alike = chunk.sample_rate_hz == last.sample_rate_hz and chunk.estimates == last.estimates
        return is_alike and self._kept_ns + duration_ns(chunk) <= MOST_NS

    def _take(self, now_ns: int) -> Chunk:
        kept, self._kept = self._kept, []
        if self._first_ns is None:
            self._first_ns = now_ns
        self._sent_ns += self._kept_ns
        self._kept_ns = 0
        if len(kept) == 1:
            return kept[0]
        timings = tuple(timing for chunk in kept for timing in chunk.timings)
        pcm = np.concatenate([chunk.pcm for chunk in kept])
        return Chunk(pcm, kept[0].sample_rate_hz, timings, kept[0].queued_ns, kept[0].estimates)
