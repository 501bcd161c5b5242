"""The figures of recoveries, from kills whose figures are known, and the part of the result file that keeps them."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from torture import recovery
from torture.recovery import Recovery, SteadyCall, save

MS = 1_000_000
GOOD = Recovery("front", 3000, 400, 0, 6, 3, 3, 0, 90)
"""A kill of a process that held three of six calls, whose bots all know that."""


@pytest.mark.parametrize(
    "change",
    [
        {"speaks_ms": 501},
        {"lost": 4, "lost_needlessly": 1},
        {"lost": 2},
        {"lost": 3, "lost_needlessly": 1},
        {"failed": 1, "failed_needlessly": 1},
        {"silent": 1},
        {"problem": "not within 40 s: all calls speak again"},
    ],
)
def test_what_a_recovery_must_not_have(change: dict[str, object]) -> None:
    """Each call that the killed process held is lost, and its bot has to know."""
    assert GOOD.holds
    assert not replace(GOOD, **change).holds  # type: ignore[arg-type]


def test_stops_of_the_machine_are_not_counted() -> None:
    assert replace(GOOD, speaks_ms=900, stops_ms=450).holds
    assert not replace(GOOD, speaks_ms=900, stops_ms=350).holds


def spoken(*turns: tuple[int, int]) -> SteadyCall:
    """A call with turns that were sent and started at these times."""

    async def call() -> SteadyCall:
        return SteadyCall("R1")

    made = asyncio.run(call())
    made.said_ns, made.started_ns = [said for said, _ in turns], [started for _, started in turns]
    return made


def test_a_turn_of_the_old_process_is_no_speech_of_the_new_one() -> None:
    """The process is killed at 100 and ready again at 500. A turn whose speech was made before may start behind the
    kill; the next one waits for the new process."""
    assert spoken((40, 60), (95, 120)).speaks_again_ns(100, 500) is None
    assert spoken((40, 60), (95, 120), (300, 560)).speaks_again_ns(100, 500) == 560
    assert spoken((95, 540), (700, 720)).speaks_again_ns(100, 500) == 540, "it waited for the new process"
    assert spoken((40, 60), (130, 480), (600, 620)).speaks_again_ns(100, 500) == 480, "ready before it said so"


def test_a_kill_without_speech_behind_it_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends neither the run nor the kills of the others."""
    kills = iter([RuntimeError("not within 40 s: the new front is ready"), GOOD])

    class Nothing:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Nothing:
            return self

        def __exit__(self, *_: object) -> None: ...

    async def recover(victim: str, subject: object) -> Recovery:
        told = next(kills)
        if isinstance(told, RuntimeError):
            raise told
        return told

    monkeypatch.setattr(recovery, "Subject", Nothing)
    monkeypatch.setattr(recovery, "recover", recover)
    bad, good = recovery.measure("front", 2)
    assert bad.problem == "not within 40 s: the new front is ready" and not bad.holds
    assert good == GOOD


def chosen(path: Path, note: str) -> argparse.Namespace:
    return argparse.Namespace(json=path, note=note, kills=1)


@pytest.mark.slow
def test_the_result_file_keeps_what_other_runs_have_found(tmp_path: Path) -> None:
    """Each victim is there with the settings of its own run, and the parts of other commands stay."""
    path = tmp_path / "torture.json"
    calls = {"held": True, "checks": {}}
    earlier = {"machine": {"cpu": "old"}, "commit": "a1", "settings": {"note": "before"}, "held": True}
    of_bridge = {"restart_ms": {"n": 1}, "kills": []}
    before = {"calls": calls, "recovery": {**earlier, "victims": {"bridge": of_bridge, "engine": of_bridge}}}
    path.write_text(json.dumps({"machine": {}, "commit": "a1", "settings": {}, "results": before}))
    save(chosen(path, "first"), {"engine": [GOOD]})
    save(chosen(path, "second"), {"cosyvoice2": [replace(GOOD, silent=1)]})
    parts = json.loads(path.read_text())["results"]
    assert parts["calls"] == calls
    victims = parts["recovery"]["victims"]
    assert list(victims) == ["bridge", "engine", "cosyvoice2"]
    assert victims["bridge"] == {**earlier, **of_bridge}
    assert [victims[name]["settings"]["note"] for name in victims] == ["before", "first", "second"]
    assert [victims[name]["held"] for name in victims] == [True, True, False] and not parts["recovery"]["held"]
    assert victims["engine"]["kills"][0]["speaks_ms"] == 400 == victims["engine"]["speech_after_restart_ms"]["max"]
    save(chosen(path, "third"), {"cosyvoice2": [GOOD]})
    assert json.loads(path.read_text())["results"]["recovery"]["held"]
