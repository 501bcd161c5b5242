"""Runs loads on a started engine: a row of figures for each, and the rows as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from telephony_tts.bench.load import Callers, Load
from telephony_tts.bench.machine import Meter
from telephony_tts.bench.measures import errors, figures, holds
from telephony_tts.bench.report import format_cell, format_table
from telephony_tts.engines.api import Engine, Utterance

COLUMNS = (
    ("loop", "mode"), ("callers", "concurrency"), ("turns/s", "arrivals_per_s"), ("turns", "turns"),
    ("failed", "failed"),
    ("first audio p50, ms", "first_audio_ms_p50"), ("p95", "first_audio_ms_p95"), ("p99", "first_audio_ms_p99"),
    ("audible p50, ms", "audible_ms_p50"), ("p95", "audible_ms_p95"), ("IQR", "audible_ms_iqr"),
    ("first gap p50, ms", "first_gap_ms_p50"), ("max", "first_gap_ms_max"),
    ("RTF", "rtf"), ("audio s/s", "audio_seconds_per_second"), ("c100", "c100"), ("underruns", "underruns"),
    ("cancel p95, ms", "cancel_ms_p95"), ("RSS, MiB", "rss_peak_mib"), ("GPU, MiB", "gpu_peak_mib"),
    ("GPU used, MiB", "gpu_used_peak_mib"),
    ("energy, J", "energy_j"),
)  # fmt: skip

TOLD_WITHIN_S = 1.5
"""Long enough for the counters of an engine in a process of its own, which it reports every second."""


async def run(
    engine: Engine,
    say: Callable[[int, int], Utterance],
    load: Load,
    device: str,
    rows: list[dict[str, Any]],
    tell: Callable[[str], None],
) -> None:
    """Run a load, append its row and report it in a line. An interrupted load gets a row of what it has measured."""
    callers, meter, before = Callers(engine, say, load), Meter(device), await _counters(engine)
    n_left: int | None = None
    counted: dict[str, float] = {}
    try:
        async with meter:
            await callers.run()
            stats = engine.stats()
            n_left = stats.n_running + stats.n_queued
        counted = await _counters(engine)
    finally:
        if callers.turns:
            row: dict[str, Any] = {"mode": "open" if load.is_open else "closed", "concurrency": load.concurrency}
            row["arrivals_per_s"] = round(load.arrivals_per_s, 4) if load.is_open else None
            row |= {"paced": load.paced, **figures(callers.turns), "queued_max": callers.n_queued_max}
            row |= meter.figures()
            if counted:
                row["counters"] = {name: round(value - before.get(name, 0.0), 6) for name, value in counted.items()}
            if row["failed"]:
                row["errors"] = errors(callers.turns)
            if n_left is None:
                row["interrupted"] = True
            elif n_left:
                row["left_in_engine"] = n_left
            row["holds"] = holds(row)
            rows.append(row)
            tell(_line(row))


async def _counters(engine: Engine) -> dict[str, float]:
    """The engine's counters when all of them are up to date; empty for an engine without counters."""
    counters: Callable[[], Mapping[str, float]] | None = getattr(engine, "counters", None)
    if counters is None or not counters():
        return {}
    await asyncio.sleep(TOLD_WITHIN_S)
    return dict(counters())


def _line(row: dict[str, Any]) -> str:
    p50, p95 = (format_cell(row[f"first_audio_ms_p{n}"]) for n in (50, 95))
    load = f"{row['concurrency']} at once"
    if row["mode"] == "open":
        load = f"{format_cell(row['arrivals_per_s'])} turns a second"
    line = f"{row['mode']} loop, {load}: first audio p50 {p50} ms, p95 {p95} ms, "
    line += f"first gap {format_cell(row['first_gap_ms_max'])} ms at most, "
    line += f"RTF {format_cell(row['rtf'])}, c100 {format_cell(row['c100'])}, {row['underruns']} underruns, "
    line += f"{row['turns']} turns in {row['wall_s']:.1f} s"
    if row["failed"]:
        line += f"; {row['failed']} failed: {row['errors'][0]}"
    return line


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as lines of text, without the columns that have no figure."""
    columns = [(title, key) for title, key in COLUMNS if any(row.get(key) is not None for row in rows)]
    return format_table([title for title, _ in columns], [[row.get(key) for _, key in columns] for row in rows])
