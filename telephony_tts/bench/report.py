"""A benchmark's result: a JSON file for programs and a table of text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_result(
    out: Path, *, machine: Mapping[str, Any], commit: str | None, settings: Mapping[str, Any], results: object
) -> None:
    """Write the JSON document that every benchmark writes. Raises OSError if the file cannot be written."""
    document = {"machine": machine, "commit": commit, "settings": settings, "results": results}
    out.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """One line for the header and one for each row: the first column to the left, the others to the right."""
    cells = [list(header), *([format_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    )


def format_cell(value: object) -> str:
    """A number with three significant digits, or without a fraction from 100 on; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
