"""Results of fuzzing: what was tried, what was found, and the table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torture.fuzz.judge import Finding, Judge

_MOST_SHOWN_BYTES = 2_000


def result_of(judge: Judge, seconds: float) -> dict[str, Any]:
    return {
        "target": judge.target.name,
        "inputs": judge.n_inputs,
        "per_s": round(judge.n_inputs / max(seconds, 1e-9)),
        "slowest_ms": round(judge.slowest_ms, 1),
        "findings": [_shown(finding) for finding in judge.findings.values()],
    }


def _shown(finding: Finding) -> dict[str, Any]:
    data = repr(finding.data[:_MOST_SHOWN_BYTES])
    return {
        "kind": finding.kind,
        "place": finding.place,
        "detail": finding.detail,
        "bytes": len(finding.data),
        "input": data,
    }


def table(results: Iterable[Mapping[str, Any]]) -> str:
    rows = [("target", "inputs", "per s", "slowest ms", "findings")]
    rows += [
        (
            each["target"],
            f"{each['inputs']:,}",
            f"{each['per_s']:,}",
            str(each["slowest_ms"]),
            str(len(each["findings"])),
        )
        for each in results
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
