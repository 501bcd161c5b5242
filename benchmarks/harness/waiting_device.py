"""The engine's own process with a device that computes nothing: each batch is ready after its price. Run by
`host_work.py` in place of the real process, with its orders and events.

As a GPU does, the device takes batches in their order while the host goes on, and the host waits when it reads.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from fleet_parts.core_replica import PricedRunner
from fleet_parts.prices import PRICES_OF, EnginePrices

from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import EventSink
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.runner import PASS_ROWS
from telephony_tts.engines.cosyvoice2.hosting import engine_process, known_voices, loading
from telephony_tts.engines.cosyvoice2.hosting.choosing import EngineChoice
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import MOST_ROWS
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.settings import Settings
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed

VOICE = "prompted"
"""The voice with a prompt of the random model (`bench.subject`)."""
PRICES = PRICES_OF["h200"]
COST = replace(PRICES.cost, prefill=(1.8, 0.143), vocode=(1.1, 0.155))
"""That of an H200. A step may have several runs of 16 prompts or vocoder rows, each with its price."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """Something that the device has computed at `at_s`, on the clock of `time.perf_counter`."""

    at_s: float
    begun_s: float = 0.0

    def wait(self) -> None:
        while (left_s := self.at_s - time.perf_counter()) > 0:
            time.sleep(left_s)

    def ns_after(self, begin: _Ready) -> int | None:
        """As of a GPU's events: None while it is not known."""
        return round((self.at_s - begin.at_s) * 1e9) if time.perf_counter() >= self.at_s else None


@dataclass(frozen=True, slots=True)
class _Result:
    """Ids or audio of the runner that this one extends, when they are ready."""

    result: Any
    audio: _Ready
    """Sounds of one transfer have the same one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)

    def read(self) -> Any:
        """Audio is loud from its first sample, so callers look no further for what is audible."""
        self.audio.wait()
        result = self.result.read()
        return result if isinstance(result, list) else result + np.int16(8000)


class _SleepingLanes:
    """The one lane of a device sleeps until there are orders."""

    can_help = False

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_calls = 0

    def n_calls(self) -> int:
        return self._n_calls

    def call(self) -> None:
        with self._changed:
            self._n_calls += 1
            self._changed.notify_all()

    def wait(self, n_seen: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._n_calls != n_seen)


class WaitingRunner(PricedRunner):
    """In place of `device.runner.Runner`. The work that the real one has for a batch on the host is not in it."""

    def __init__(self, prices: EnginePrices) -> None:
        super().__init__(prices)
        self.n_pass_rows = PASS_ROWS
        self.idle_lanes = cast(Any, _SleepingLanes())
        cast(Any, self.model).device = SimpleNamespace(type="cuda")
        self._free_s = 0.0
        """When the device has computed what it was given."""

    def enter(self) -> None:
        return None

    def _spend(self, stage: Stage, rows: float) -> None:
        self._free_s = max(self._free_s, time.perf_counter()) + self._cost.of(stage, rows) / 1e9

    def moment(self, now_ns: Callable[[], int]) -> Any:
        return _Ready(max(self._free_s, time.perf_counter()))

    def prefill(self, tracks: Sequence[Any], feeds: Sequence[LmFeed]) -> list[Any]:
        return self._later(super().prefill(tracks, feeds))

    def decode(self, tracks: Sequence[Any], rows: Sequence[DecodeRow]) -> list[Any]:
        return self._later(super().decode(tracks, rows))

    def vocode(self, tracks: Sequence[Any], on_failure: object) -> list[Any]:
        made: list[Any] = []
        for begin in range(0, len(tracks), MOST_ROWS):
            made += self._later(super().vocode(tracks[begin : begin + MOST_ROWS], on_failure))
        return made

    def _later(self, results: Sequence[Any]) -> list[Any]:
        ready = _Ready(self._free_s)
        return [None if result is None else _Result(result, ready) for result in results]


def load(settings: Settings, tell: EventSink, check_wanted: Callable[[], None] = lambda: None) -> Any:
    """In place of `loading.load`."""
    prices = replace(PRICES, cost=COST, n_slots=settings.n_slots)
    core = Core(cast(Any, WaitingRunner(prices)), cast(Any, {VOICE: None}), DEFAULT, tell)
    voices = SimpleNamespace(serve=lambda send: None, look_now=lambda number: None)
    return SimpleNamespace(core=core, choice=EngineChoice(), voices=voices)


def main() -> None:
    loading.load = cast(Any, load)
    known_voices.described = lambda features: dict.fromkeys(features, "")
    engine_process.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
