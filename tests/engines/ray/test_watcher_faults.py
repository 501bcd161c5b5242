"""A front whose watcher cannot be started or says what cannot be read. It needs no Ray: the watcher is a script."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from clean_run import until
from log_lines import lines

from telephony_tts.engines.ray import engine as ray_engine
from telephony_tts.engines.ray.engine import RayEngine

WAIT_S = 20.0


def put_program(path: Path, line: str) -> None:
    """A program that says `line`, and ends when its standard input is closed."""
    new = path.with_suffix(".new")
    new.write_text(f"#!/bin/sh\necho '{line}'\nexec cat\n")
    new.chmod(0o755)
    new.replace(path)


@pytest.mark.slow
def test_after_any_fault_of_the_watcher_the_replicas_are_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "BACKOFF_S", (0.05,))
    program = tmp_path / "python"

    async def run() -> None:
        engine = RayEngine("ray", "an address", "an app", start_timeout_s=2 * WAIT_S, python=str(program))
        start = asyncio.create_task(engine.start())
        try:
            await until(lambda: "cannot be started: No such file" in engine.problem, "there is no program", WAIT_S)
            for line in ("7", "[]", '"replicas"', '{"replicas": 7}', '{"replicas": [7]}'):
                engine.problem = ""
                put_program(program, line)
                await until(lambda: "what cannot be read" in engine.problem, line, WAIT_S)
            put_program(program, '{"replicas": []}')
            await until(lambda: engine.problem == "the application has no replica", "a good watcher", WAIT_S)
        finally:
            start.cancel()
            with suppress(asyncio.CancelledError):
                await start

    asyncio.run(run())


@pytest.mark.slow
def test_after_a_fault_of_ours_the_replicas_are_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: they were not watched any more, and nothing said so."""
    monkeypatch.setattr(ray_engine, "BACKOFF_S", (0.05,))
    program, take = tmp_path / "python", RayEngine._take
    put_program(program, '{"replicas": []}')
    failures = iter([ZeroDivisionError("a bug of ours"), OSError("no memory")])

    def fail_twice(engine: RayEngine, line: bytes) -> bool:
        for failure in failures:
            raise failure
        return take(engine, line)

    monkeypatch.setattr(RayEngine, "_take", fail_twice)

    async def run() -> None:
        engine = RayEngine("ray", "an address", "an app", start_timeout_s=2 * WAIT_S, python=str(program))
        start = asyncio.create_task(engine.start())
        try:
            await until(lambda: engine.problem == "the application has no replica", "a good watcher", WAIT_S)
        finally:
            start.cancel()
            with suppress(asyncio.CancelledError):
                await start

    asyncio.run(run())
    why = [line["why"] for line in lines(caplog, "replica_watcher_ended")]
    assert why[:2] == ["the watcher failed: a bug of ours", "the watcher failed: no memory"]
    assert len(lines(caplog, "replica_watcher_crashed")) == 2
