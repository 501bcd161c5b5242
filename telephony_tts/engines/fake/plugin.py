"""The engine `fake`: tones in place of speech, for load tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from telephony_tts.engines.plugin import EnginePlugin, Setup
from telephony_tts.runtime.schema import Between

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """Tones instead of speech, for load tests. `rtf` 0.5 is twice as fast as real time, 0 instant. `slots`: the most
    sentences that are spoken at once; 0 is no limit."""

    first_audio_ms: Annotated[float, Between(0, 60_000)] = 0.0
    rtf: Annotated[float, Between(0, 100)] = 0.0
    slots: Annotated[int, Between(0, 10_000)] = 0


class _Fake(EnginePlugin[FakeSettings]):
    name = "fake"
    settings = FakeSettings
    rank = 40

    def is_wanted(self, setup: Setup[FakeSettings]) -> bool:
        return False

    def build(self, setup: Setup[FakeSettings]) -> Engine:
        from telephony_tts.engines.fake.engine import FakeEngine

        own = setup.settings
        return FakeEngine(
            first_audio_ms=own.first_audio_ms, speed=1 / own.rtf if own.rtf else math.inf, slots=own.slots
        )


PLUGIN = _Fake()
