"""The folders of the checkout whose modules are used here: the benchmarks' harness and the tests' own tools."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def use() -> None:
    """Put them on the import path."""
    for folder in ("benchmarks", "tests"):
        path = str(ROOT / folder)
        if path not in sys.path:
            sys.path.append(path)


use()
