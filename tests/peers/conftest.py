"""The tests of this folder start servers as the end-to-end tests and those of several fronts do."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("e2e", "fronts"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))
