"""How late speech is: frames of a call, the timers of this process, and the server's own figures from /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from harness.calls import FRAME_NS

_TIMER_S = 0.01


def frame_lateness_ms(arrivals_ns: Sequence[int], begun_ns: int, ended_ns: int, lead_ms: int) -> list[float]:
    """For each frame of a call that came in the window: how much later it came than its schedule says.

    The first frame of the call begins the schedule: frame n is due n * 20 ms less the lead after it. Every delay
    counts, whether the server, the kernel or this process caused it. A schedule that slipped once stays late.
    """
    if not arrivals_ns:
        return []
    first_ns = arrivals_ns[0]
    return [
        max(0, at_ns - first_ns - max(0, n * FRAME_NS - lead_ms * 1_000_000)) / 1e6
        for n, at_ns in enumerate(arrivals_ns)
        if begun_ns <= at_ns < ended_ns
    ]


async def watch_timers(late_ms: list[float]) -> None:
    """Append how late this process runs its own timers, until cancelled: the error of everything it measures."""
    while True:
        asked_ns = time.monotonic_ns()
        await asyncio.sleep(_TIMER_S)
        late_ms.append(max(0.0, (time.monotonic_ns() - asked_ns) / 1e6 - _TIMER_S * 1000))


async def metric_values(port: int, head: str) -> dict[str, float]:
    """The lines of the server's /metrics that begin with `head`, which ends within a label: its value to the figure."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
    body = (await reader.read()).decode()
    writer.close()
    pairs = [line[len(head) :].split('"} ') for line in body.splitlines() if line.startswith(head)]
    return {label: float(value) for label, value in pairs}


async def server_lateness(port: int) -> dict[str, float]:
    """The server's histogram of late frames: upper bound of a bucket in ms to the cumulative count."""
    return await metric_values(port, 'telephony_tts_frame_lateness_ms_bucket{le="')


def lateness_between(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Percentiles between two looks at `server_lateness`, as upper bounds of buckets; only n if no frame was sent."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    total = counts.get("+Inf", 0)
    if not total:
        return {"n": 0}

    def below(share: float) -> str:
        return next(bound for bound, count in counts.items() if count >= share * total)

    return {
        "n": int(total),
        "p50_le": below(0.5),
        "p99_le": below(0.99),
        "p999_le": below(0.999),
        "over_20_ms_share": round(1 - counts["20.0"] / total, 6),
    }
