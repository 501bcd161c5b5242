"""The voices of CosyVoice2 where one engine speaks for all fronts: what `VoiceService` needs of an engine, over a
connection to it.

The engine looks at the folder of voices by itself, twice a second, and tells its clients what it has found.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from telephony_tts.engines.api import Voice
from telephony_tts.runtime.errors import EngineError

LOOK_S = 1.0
"""After so long the engine has looked at the folder, and told it."""
_ASK_S = 0.3
_MOST_QUESTIONS = 20


class HasVoices(Protocol):
    """The connection to the engine."""

    @property
    def voices(self) -> tuple[Voice, ...]: ...
    def find_voice(self, name: str) -> Voice | None: ...


class SharedVoices:
    """See the module text."""

    def __init__(self, engine: HasVoices) -> None:
        self._engine = engine

    @property
    def voices(self) -> tuple[Voice, ...]:
        return self._engine.voices

    def find_voice(self, name: str) -> Voice | None:
        return self._engine.find_voice(name)

    async def read_voices(self) -> None:
        """Return when the engine has read the folder."""
        await asyncio.sleep(LOOK_S)

    async def until_known(self, name: str) -> None:
        """Return when the engine has said that it has a voice, listed or not. The first question for it has no answer
        yet. Raises EngineError if the engine does not know it in time."""
        for _ in range(_MOST_QUESTIONS):
            if self._engine.find_voice(name) is not None:
                return
            await asyncio.sleep(_ASK_S)
        raise EngineError("the engine has not said that it has the voice")
