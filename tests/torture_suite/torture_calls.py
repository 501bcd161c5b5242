"""Calls and rounds that the tests of the torture on real servers share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torture.histories import CARRIERS, HTTP_DOORS, CallHistory, Round, Step, make_call
from torture.runner import Outcome, Runner

DOORS = (*CARRIERS, *HTTP_DOORS)


def tried(rounds: Iterable[Round], *defects: str) -> Outcome:
    return Runner(defects=defects, say=lambda line: print(line)).run(rounds, time.monotonic() + 60)


def of_doors(seed: int, doors: Sequence[str], **options: object) -> list[CallHistory]:
    """A call through each of these doors."""
    calls = [make_call(seed + n, (door,), start_ms=150 * n, n_steps=6) for n, door in enumerate(doors)]
    return [replace(call, options={**call.options, **options}) if call.options else call for call in calls]


def native(start_ms: int, *steps: Step) -> CallHistory:
    options = {"codec": "ulaw", "rate": 8000, "ptime_ms": 20, "audio": "binary", "lead_ms": 200}
    return CallHistory("native", start_ms, start_ms, steps, "close", options)
