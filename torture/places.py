"""Folders: of the checkout whose modules are used here (the benchmarks' harness, the tests' tools), and of memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
"""The folder for temporary files that a slow disk must not delay."""


def use() -> None:
    """Put them on the import path."""
    for folder in ("benchmarks", "tests"):
        path = str(ROOT / folder)
        if path not in sys.path:
            sys.path.append(path)


use()
