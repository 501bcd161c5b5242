"""The engine `hibari`: the embedded English voice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from telephony_tts.engines.plugin import Package, Setup
from telephony_tts.engines.worker_plugin import WorkerPlugin, WorkerSettings

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine


class _Hibari(WorkerPlugin[WorkerSettings]):
    name = "hibari"
    settings = WorkerSettings
    rank = 10
    modules = ("hibari",)
    packages = (Package("hibari-tts", "", "the embedded English voice"),)

    def build(self, setup: Setup[WorkerSettings]) -> Engine:
        from telephony_tts.engines.hibari.engine import HibariEngine

        return HibariEngine(n_workers=setup.settings.workers)


PLUGIN = _Hibari()
