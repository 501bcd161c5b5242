"""The tests of this folder start servers and raw peers as the end-to-end tests do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
