"""The parts of ops.py: what an operator's tools cost. Each has a function `measure`, and runs alone too:
`python -m benchmarks.ops_parts.watching`."""

from __future__ import annotations

import sys
from pathlib import Path

if (_benchmarks := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.insert(0, _benchmarks)  # a benchmark that is run as a file has this path
