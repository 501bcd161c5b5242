"""The one reader of the wall clock; everything else takes `now_ns` as an argument."""

from __future__ import annotations

import time

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def monotonic_ns() -> int:
    """Nanoseconds on a clock that never steps back; only differences mean anything."""
    return time.monotonic_ns()


def unix_s() -> float:
    """Seconds since 1970, for log lines and file stamps only."""
    return time.time()
