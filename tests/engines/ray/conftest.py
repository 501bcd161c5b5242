"""The folder with `PreloadedDriver` is on the path. It is last: other folders have files of the same names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "peers"))
