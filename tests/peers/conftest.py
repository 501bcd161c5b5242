"""The tests of this folder start servers as the end-to-end tests do (`served`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
