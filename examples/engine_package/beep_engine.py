"""An engine of another package: each word is a beep. Copy it to begin an engine of your own.

pip install ./examples/engine_package
telephony-tts say "One two three." out.wav --engine beep --set engines.beep.hz=700
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, Timing, Utterance, Voice
from telephony_tts.engines.plugin import EnginePlugin, Setup
from telephony_tts.engines.words import words
from telephony_tts.runtime.errors import UnknownVoice
from telephony_tts.runtime.schema import Between

RATE_HZ, BEEP_S = 16_000, 0.12


@dataclass(frozen=True, slots=True)
class BeepSettings:
    """The section `engines.beep`."""

    hz: Annotated[float, Between(100, 3_000)] = 440.0


class BeepEngine:
    """See `telephony_tts.engines.api.Engine`. Models are loaded in `start`, and work that blocks runs in a thread."""

    name, streams_text = "beep", False
    voices = (Voice("sine", "beep", ("en", "zh"), RATE_HZ, description="a beep for each word"),)

    def __init__(self, hz: float) -> None:
        t = np.arange(round(BEEP_S * RATE_HZ)) / RATE_HZ
        tone = 8_000 * np.sin(2 * np.pi * hz * t) * np.sin(np.pi * t / BEEP_S)
        self._beep = np.concatenate([tone, np.zeros(len(tone) // 2)]).astype(np.int16)
        self._n_running = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(n_running=self._n_running)

    def counters(self) -> dict[str, float]:
        return {}

    def check(self, utterance: Utterance) -> None:
        if utterance.voice not in (None, "sine"):
            raise UnknownVoice(f"beep has no voice {utterance.voice!r}; it has 'sine'")

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        self._n_running += 1
        try:
            for n, (start, end) in enumerate(words(utterance.text)):
                begins = n * len(self._beep)
                yield Chunk(self._beep, RATE_HZ, (Timing(start, end, begins, begins + len(self._beep)),))
        finally:  # it has ended, or was closed: the slot is free
            self._n_running -= 1


class BeepPlugin(EnginePlugin[BeepSettings]):
    name, settings = "beep", BeepSettings

    def build(self, setup: Setup[BeepSettings]) -> BeepEngine:
        return BeepEngine(setup.settings.hz)


PLUGIN = BeepPlugin()
