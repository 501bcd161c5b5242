"""What counts as heard, against players that are late: calls through each dialect of telephone platforms."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from typing import Any

from harness.report import percentiles, table

from torture import report
from torture.dialects import DIALECTS, LATENESS, more_error_ms
from torture.violations import HEARD, LOST, Tally

_PART = 25
"""Calls that a process does in one piece."""


def run_heard(chosen: argparse.Namespace) -> int:
    """Run the calls, print and keep what was found. 1 if something did not hold."""
    begun_s = time.monotonic()
    n_each = max(1, chosen.calls // len(DIALECTS) // len(LATENESS))
    parts = [
        (dialect, late, (chosen.seed * 100 + number) * 100_000 + at, min(_PART, n_each - at))
        for number, (dialect, late) in enumerate(itertools.product(DIALECTS, LATENESS))
        for at in range(0, n_each, _PART)
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.processes) as pool:
        tallies = pool.starmap(late_calls, parts)
    found: dict[tuple[str, str], Tally] = {}
    for (dialect, late, *_), tally in zip(parts, tallies, strict=True):
        found.setdefault((dialect, late), Tally()).add(tally)
    rows = [row(dialect, late, tally) for (dialect, late), tally in found.items()]
    shown = [tuple(each.values()) for each in rows]
    table("heard text against players that are late by up to 2 s", list(rows[0]), shown)
    whole = Tally()
    for tally in found.values():
        whole.add(tally)
    for each in whole.violations[:5]:
        print(f"  {each.check}: {each.what} (seed {each.call})")
    seconds = round(time.monotonic() - begun_s)
    print(f"{whole.counts['calls']:,} calls, {whole.counts['turns']:,} turns in {seconds} s")
    if chosen.json is not None:
        report.save(chosen, "heard", {
            "held": not whole.violations, "rows": rows, "checks": report.checks(whole), "seconds": seconds,
            "counts": dict(sorted(whole.counts.items())),
        })  # fmt: skip
    return 1 if whole.violations else 0


def late_calls(dialect: str, late: str, first: int, n_calls: int) -> Tally:
    """The calls of these seeds."""
    from torture.virtual_calls import run_late_calls

    return run_late_calls(range(first, first + n_calls), dialect, late)


def row(dialect: str, late: str, tally: Tally) -> dict[str, Any]:
    """What was found for a dialect and a kind of lateness."""
    errors = sorted((tally.heard_errors_ms + tally.heard_errors_by_marks_ms).elements())
    n_words = tally.n_words_right + tally.n_words_wrong
    told = percentiles(errors)
    return {
        "platform": dialect,
        "late": late,
        "up to ms": DIALECTS[dialect].most_late_ms,
        "places": len(errors),
        "by marks": tally.heard_errors_by_marks_ms.total(),
        "error p99, ms": told.get("p99"),
        "error max, ms": told.get("max"),
        "allowed, ms": DIALECTS[dialect].most_error_ms + more_error_ms(late),
        "word right": round(tally.n_words_right / n_words, 4) if n_words else None,
        "wrong": sum(each.check in (HEARD, LOST) for each in tally.violations),
    }
