"""The plugin of an engine that speaks in threads of the server itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from telephony_tts.engines.plugin import EnginePlugin, Setup
from telephony_tts.runtime.schema import Between


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`workers`: 0 leaves the engine out."""

    workers: Annotated[int, Between(0, 64)] = 2


Settings = TypeVar("Settings", bound=WorkerSettings)


class WorkerPlugin(EnginePlugin[Settings]):
    """It runs if its packages are there, unless `workers` is 0."""

    def missing_setting(self, own: Settings) -> str | None:
        return None if own.workers else "workers: 0 leaves the engine out"

    def of_front(self, own: Settings, part: Callable[[int], int], n_fronts: int) -> Settings:
        return replace(own, workers=part(own.workers))

    def is_wanted(self, setup: Setup[Settings]) -> bool:
        return setup.settings.workers > 0 and setup.is_installed
