"""The table of what was tried and what held, and the result as a file."""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.report import percentiles, table

from telephony_tts.bench import machine
from telephony_tts.bench.report import write_result
from torture.runner import Outcome
from torture.sandbox import what_is_allowed
from torture.violations import CHECKS, Tally

_LIBRARIES = ("numpy", "websockets", "uvloop", "prometheus_client", "grpcio")


def show(outcome: Outcome, seconds: float) -> None:
    """Print the tables."""
    tally = outcome.tally
    wrong = Counter(each.check for each in tally.violations)
    rows = [(check, f"{tally.n_checked[check]:,}", wrong[check]) for check in CHECKS]
    table("what must hold", ("check", "judged", "did not hold"), rows)
    counts = [(name, f"{n:,}") for name, n in sorted(tally.counts.items())]
    table(f"what was tried in {seconds:.0f} s", ("what", "n"), counts)
    table("heard text against the simulated player", ("figure", "value"), list(heard(tally).items()))
    table("faults below the server", ("what", "here"), list(what_is_allowed().items()))


def heard(tally: Tally) -> dict[str, Any]:
    """How far the reported place was from the place of the simulated player."""
    n_words = tally.n_words_right + tally.n_words_wrong
    return {
        "error by clock, ms": percentiles(sorted(tally.heard_errors_ms.elements())),
        "error by marks, ms": percentiles(sorted(tally.heard_errors_by_marks_ms.elements())),
        "places": n_words,
        "word right": round(tally.n_words_right / n_words, 5) if n_words else None,
    }


def save_calls(chosen: argparse.Namespace, outcome: Outcome) -> None:
    save(chosen, "calls", {
        "held": not outcome.tally.violations,
        "checks": checks(outcome.tally),
        "counts": dict(sorted(outcome.tally.counts.items())),
        "heard": heard(outcome.tally),
        "resident_kib_after_each_round": outcome.resident_kib,
        "failed": [f"round {whole.number}: {found[0].check}: {found[0].what}" for whole, found in outcome.failed],
        "sandbox": what_is_allowed(),
    })  # fmt: skip


def checks(tally: Tally) -> dict[str, Any]:
    wrong = Counter(each.check for each in tally.violations)
    return {check: {"judged": tally.n_checked[check], "violations": wrong[check]} for check in CHECKS}


@functools.cache
def commit() -> str:
    """The commit that runs. Call it at the begin of a run: the checkout may change before the end."""
    return machine.commit() or "unknown"


def about(chosen: argparse.Namespace) -> dict[str, Any]:
    """The machine, the commit and the settings of this run."""
    here = {**machine.machine("cpu", _LIBRARIES), "cores": os.cpu_count(), "load_1min": round(os.getloadavg()[0], 2)}
    settings = {k: n for k, n in vars(chosen).items() if isinstance(n, int | float | str | bool)}
    return {"machine": here, "commit": commit(), "settings": settings}


def saved(path: Path) -> dict[str, Any]:
    """The parts of the result file; none if there is no such file."""
    if not path.exists():
        return {}
    parts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return parts


def save(chosen: argparse.Namespace, part: str, results: Mapping[str, Any]) -> None:
    """Write one part of the result file. The other parts of it, from other runs, stay."""
    run = about(chosen)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    write_result(chosen.json, **run, results={**saved(chosen.json), part: {**run, **results}})
    print(f"\nresult in {chosen.json.name}")
