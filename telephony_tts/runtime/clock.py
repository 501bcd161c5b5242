"""The only module that reads the clock. Other modules take `now_ns` as an argument or call these functions."""

from __future__ import annotations

import time

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def monotonic_ns() -> int:
    """Nanoseconds on a clock that never goes back. Only differences have a meaning."""
    return time.monotonic_ns()


def thread_cpu_ns() -> int:
    """Nanoseconds that the calling thread has computed. Other programs on its core do not count."""
    return time.thread_time_ns()


def unix_ns() -> int:
    """Nanoseconds since 1970, for times that other programs read."""
    return time.time_ns()


def unix_s() -> float:
    """Seconds since 1970, to compare with the times of files."""
    return time.time()
