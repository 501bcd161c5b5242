"""The tests of deploy/ and docker/ share the environments of tests/peers (`environment`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))
