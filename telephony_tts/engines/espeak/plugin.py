"""The engine `espeak`: many languages by espeak-ng."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from telephony_tts.engines.plugin import Package, Setup
from telephony_tts.engines.worker_plugin import WorkerPlugin, WorkerSettings
from telephony_tts.runtime.errors import how_to_get

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine
    from telephony_tts.engines.catalog import AbsentEngine


class _Espeak(WorkerPlugin[WorkerSettings]):
    name = "espeak"
    settings = WorkerSettings
    rank = 30
    modules = ("espeakng_loader",)
    extra = "espeak"
    packages = (Package("espeakng-loader", "espeak", "29 languages, robotic; GPL-3"),)

    def build(self, setup: Setup[WorkerSettings]) -> Engine:
        from telephony_tts.engines.espeak.engine import EspeakEngine

        return EspeakEngine(n_workers=setup.settings.workers)

    def absent(self, setup: Setup[WorkerSettings], *, runs: bool) -> Iterator[AbsentEngine]:
        if runs:
            return
        from telephony_tts.engines.catalog import AbsentEngine

        espeak = self.build(setup)
        languages = tuple(lang for voice in espeak.voices for lang in voice.languages)
        how = "set engines.espeak.workers to 1 or more" if setup.is_installed else how_to_get(self.extra)
        yield AbsentEngine(self.name, languages, espeak.check, how)


PLUGIN = _Espeak()
