"""The program of the engine's process with a simulated device: it computes nothing, and each batch takes about as
long as on an H200. `host_work.py` starts it in place of `engine_process`.

As on a GPU, batches run in order while the host goes on, and the host waits only when it reads a result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from harness.engine_prices import NAMED_PRICES, EnginePrices
from harness.priced_runner import PricedRunner
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import EventSink
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.cosyvoice2.device.idle_lanes import SleepingLanes
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.runner import PASS_ROWS
from telephony_tts.engines.cosyvoice2.hosting import engine_process, known_voices, loading
from telephony_tts.engines.cosyvoice2.hosting.choosing import EngineChoice
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import MOST_ROWS
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.settings import Settings
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed

VOICE = "prompted"
"""The voice with a prompt of the random model (`random_speech`)."""
PRICES = NAMED_PRICES["h200"]
COST_OF_RUN = replace(PRICES.cost, prefill=(1.8, 0.143), vocode=(1.1, 0.155))
"""The prices of an H200 for one run. A step of more than 16 prompts or vocoder rows has several runs, and each has its
price."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """Something that the device has computed at `at_s`, on the clock of `time.perf_counter`."""

    at_s: float

    def wait(self) -> None:
        while (left_s := self.at_s - time.perf_counter()) > 0:
            time.sleep(left_s)

    def ns_after(self, begin: _Ready) -> int | None:
        """None until this moment has come, as with a GPU's events."""
        return round((self.at_s - begin.at_s) * 1e9) if time.perf_counter() >= self.at_s else None


@dataclass(frozen=True, slots=True)
class _Result:
    """Ids or audio of `PricedRunner` that can be read only when the simulated device has finished."""

    result: Any
    audio: _Ready
    """When the transfer is done. Sounds of one transfer share this object, by which `Core` groups them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)

    def read(self) -> Any:
        """Waits for the device. An offset makes the zeros loud, so that the caller counts audio as audible from the
        first sample."""
        self.audio.wait()
        result = self.result.read()
        return result if isinstance(result, list) else result + np.int16(8000)


class WaitingRunner(PricedRunner):
    """In place of `device.runner.Runner`, without the work that the real runner does on the host for each batch."""

    def __init__(self, prices: EnginePrices) -> None:
        super().__init__(prices)
        self.n_pass_rows = PASS_ROWS
        self.idle_lanes = cast(Any, SleepingLanes())
        cast(Any, self.model).device = SimpleNamespace(type="cuda")
        self._free_s = 0.0
        """When the device will have finished all batches given to it."""

    def enter(self) -> None:
        return None

    def _spend(self, stage: Stage, rows: float) -> None:
        self._free_s = max(self._free_s, time.perf_counter()) + self._cost.of(stage, rows) / 1e9

    def moment(self, now_ns: Callable[[], int]) -> Any:
        return _Ready(max(self._free_s, time.perf_counter()))

    def prefill(self, tracks: Sequence[Any], feeds: Sequence[LmFeed]) -> list[Any]:
        return self._when_ready(super().prefill(tracks, feeds))

    def decode(self, tracks: Sequence[Any], rows: Sequence[DecodeRow]) -> list[Any]:
        return self._when_ready(super().decode(tracks, rows))

    def vocode(self, tracks: Sequence[Any], on_failure: object) -> list[Any]:
        made: list[Any] = []
        for begin in range(0, len(tracks), MOST_ROWS):
            made += self._when_ready(super().vocode(tracks[begin : begin + MOST_ROWS], on_failure))
        return made

    def _when_ready(self, results: Sequence[Any]) -> list[Any]:
        ready = _Ready(self._free_s)
        return [None if result is None else _Result(result, ready) for result in results]


def load(settings: Settings, tell: EventSink, check_wanted: Callable[[], None] = lambda: None) -> Any:
    """In place of `loading.load`."""
    prices = replace(PRICES, cost=COST_OF_RUN, n_slots=settings.n_slots)
    core = Core(cast(Any, WaitingRunner(prices)), cast(Any, {VOICE: None}), DEFAULT, tell)
    voices = SimpleNamespace(serve=lambda send: None, look_now=lambda number: None)
    return SimpleNamespace(core=core, choice=EngineChoice(), voices=voices)


def main() -> None:
    loading.load = cast(Any, load)
    known_voices.described = lambda features: dict.fromkeys(features, "")
    engine_process.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
