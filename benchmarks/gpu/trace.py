"""Reads PyTorch's profile: how many kernels ran, how long the device computed, and for which stage.

The events are those of the Chrome trace format that `torch.profiler` exports: `cat` is the kind, `ts` and `dur` are
microseconds. A kernel and the call that launched it have the same `args.correlation`.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]

ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_HOST = frozenset({"cpu_op"})
"""What stands for kernels where the device is the CPU."""
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
STAGE = "stage "
"""The begin of the names of the ranges that mark stages (`torch.profiler.record_function`)."""
KEPT = ON_DEVICE | LAUNCHES | {"user_annotation", "gpu_user_annotation"}
NAME_LENGTH = 60


def computed(events: Iterable[Event]) -> list[Event]:
    """The events in which the device computed or copied; on a CPU the operations."""
    timed = [event for event in events if event.get("ph") == "X"]
    on_device = [event for event in timed if event.get("cat") in ON_DEVICE]
    return on_device or [event for event in timed if event.get("cat") in ON_HOST]


def busy_us(events: Iterable[Event]) -> float:
    """Time in which at least one of these events ran."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def summary(events: Sequence[Event], n_top: int = 8) -> dict[str, Any]:
    """Kernels, milliseconds in which the device was busy, the share of the time in which it was idle between the first
    kernel and the last, and the kernels that took longest."""
    found = computed(events)
    if not found:
        return {"kernels": 0, "busy_ms": 0.0, "idle_share": None, "top": []}
    span = max(event["ts"] + event["dur"] for event in found) - min(event["ts"] for event in found)
    busy = busy_us(found)
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in found:
        by_name[str(event["name"])[:NAME_LENGTH]].append(event["dur"])
    top = sorted(by_name.items(), key=lambda each: -sum(each[1]))[:n_top]
    return {
        "kernels": len(found),
        "busy_ms": round(busy / 1000, 4),
        "idle_share": round(1 - busy / span, 4) if span else 0.0,
        "top": [{"name": name, "n": len(times), "ms": round(sum(times) / 1000, 4)} for name, times in top],
    }


def by_stage(events: Sequence[Event]) -> list[dict[str, Any]]:
    """For each stage: calls, kernels, milliseconds of the host in it, milliseconds of the device for it."""
    marks = sorted(
        (
            event
            for event in events
            if event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith(STAGE)
        ),
        key=lambda mark: float(mark["ts"]),
    )
    begins: dict[object, tuple[list[float], list[Event]]] = defaultdict(lambda: ([], []))
    for mark in marks:
        begins[mark.get("tid")][0].append(mark["ts"])
        begins[mark.get("tid")][1].append(mark)
    launched = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    rows: dict[str, dict[str, Any]] = {}

    def row(stage: str) -> dict[str, Any]:
        return rows.setdefault(stage, {"stage": stage, "calls": 0, "kernels": 0, "host_ms": 0.0, "device_ms": 0.0})

    for mark in marks:
        of = row(mark["name"].removeprefix(STAGE))
        of["calls"] += 1
        of["host_ms"] += mark["dur"] / 1000
    for event in computed(events):
        launch = launched.get(event.get("args", {}).get("correlation"), event)
        of = row(_stage_at(*begins[launch.get("tid")], launch["ts"]))
        of["kernels"] += 1
        of["device_ms"] += event["dur"] / 1000
    for of in rows.values():
        of["host_ms"], of["device_ms"] = round(of["host_ms"], 3), round(of["device_ms"], 3)
    return sorted(rows.values(), key=lambda of: -of["device_ms"])


def _stage_at(begins: Sequence[float], marks: Sequence[Event], ts: float) -> str:
    """The stage whose range has the time. The marks of a thread do not overlap."""
    at = bisect_right(begins, ts) - 1
    if at >= 0 and ts <= marks[at]["ts"] + marks[at]["dur"]:
        return str(marks[at]["name"]).removeprefix(STAGE)
    return "other"


def write(events: Sequence[Event], out: Path) -> None:
    """Write a trace for chrome://tracing or Perfetto: the device's work, its launches and the stages."""
    kept = [event for event in events if event.get("ph") == "M" or event.get("cat") in KEPT]
    kept = kept if any(event.get("cat") in ON_DEVICE for event in kept) else list(events)
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump({"traceEvents": kept}, file)
