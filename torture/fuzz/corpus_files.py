"""The corpus: a text file for each target, with one input on a line as a literal of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MOST_KEPT = 40
MOST_KEPT_BYTES = 1_500
"""Longer inputs that reach new code are found again from the others."""


def kept_inputs(name: str, folder: Path | None = None) -> list[bytes]:
    file = (folder or CORPUS) / f"{name}.txt"
    if not file.exists():
        return []
    return [ast.literal_eval(line) for line in file.read_text(encoding="ascii").splitlines()]


def keep(name: str, inputs: Iterable[bytes], folder: Path | None = None) -> int:
    """Write the shortest of `inputs`. Returns how many."""
    short = sorted({data for data in inputs if len(data) <= MOST_KEPT_BYTES}, key=lambda data: (len(data), data))
    chosen = short[:: max(1, len(short) // MOST_KEPT)][:MOST_KEPT]
    text = "".join(f"{data!r}\n" for data in chosen)
    ((folder or CORPUS) / f"{name}.txt").write_text(text, encoding="ascii")
    return len(chosen)
