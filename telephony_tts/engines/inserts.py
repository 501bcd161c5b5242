"""Inserts: audio inside a turn that no engine speaks. Pacing, marks and `clear` treat it like a sentence."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, LoadedInsert, Utterance, Voice

RATE_HZ = 8_000
_CHUNK_MS = 500


@dataclass(frozen=True, slots=True)
class Silence:
    """Silence of `ms` milliseconds."""

    ms: int

    def chunks(self) -> Iterator[Chunk]:
        for begin_ms in range(0, self.ms, _CHUNK_MS):
            n_samples = min(_CHUNK_MS, self.ms - begin_ms) * RATE_HZ // 1000
            yield Chunk(np.zeros(n_samples, np.int16), RATE_HZ)


class InsertPlayer:
    """Gives the audio of inserts through the interface of an engine. The catalog chooses it for every insert."""

    name = "insert"
    streams_text = False
    voices = (Voice("insert", "insert", (), RATE_HZ),)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def check(self, utterance: Utterance) -> None:
        pass

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        assert utterance.insert is not None
        if isinstance(utterance.insert, LoadedInsert):
            await utterance.insert.load()
        for chunk in utterance.insert.chunks():
            yield chunk

    def stats(self) -> EngineStats:
        return EngineStats()

    def counters(self) -> Mapping[str, float]:
        return {}
