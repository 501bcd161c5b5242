"""An engine as one call may use it: with some of its voices only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from telephony_tts.engines.api import Engine, FindsVoices, Voice


class EngineView:
    """The engine, but for voices that `may_use` does not allow. Whatever else is asked, the engine itself answers."""

    def __init__(self, engine: Engine, may_use: Callable[[Voice], bool]) -> None:
        self._engine = engine
        self._may_use = may_use

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def voices(self) -> tuple[Voice, ...]:
        return tuple(voice for voice in self._engine.voices if self._may_use(voice))

    def find_voice(self, name: str) -> Voice | None:
        found = self._engine.find_voice(name) if isinstance(self._engine, FindsVoices) else None
        return found if found is not None and self._may_use(found) else None
