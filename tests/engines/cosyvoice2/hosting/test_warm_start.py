"""Graphs recorded for a device before the first call, and their log lines."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from telephony_tts.engines.cosyvoice2.device.runner import Runner
from telephony_tts.engines.cosyvoice2.hosting.loading import _record_graphs
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.runtime.errors import EngineError


def runner(n_graphs: int, *, records: bool = True) -> Runner:
    def prepare(look: Callable[[], object]) -> None:
        for _ in range(n_graphs):
            look()

    rig: Any = SimpleNamespace(graphs=SimpleNamespace(records=records), prepare=prepare)
    return cast(Runner, rig)


def test_long_recording_is_logged_every_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    seconds = itertools.count()
    with caplog.at_level(logging.INFO):
        _record_graphs(runner(10), lambda: None, lambda: next(seconds) * NS_PER_S)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "cosyvoice2 has loaded its weights and records graphs of its steps"
    assert told[-1] == "cosyvoice2 has recorded 10 graphs" and len(told) == 3


def test_a_cpu_has_nothing_to_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _record_graphs(runner(1, records=False), lambda: pytest.fail("asked"))
    assert not caplog.records


def test_recording_stops_when_loading_is_cancelled() -> None:
    def look() -> None:
        raise EngineError("closed")

    with pytest.raises(EngineError, match="closed"):
        _record_graphs(runner(3), look)
