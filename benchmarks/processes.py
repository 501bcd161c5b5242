"""Several front processes against one: calls on time for each core that the server uses.

Calls with two legs that all speak all the time are added, and the benchmark measures how late their frames are at the
receiver. A number of calls is on time if the 99th percentile is at most 20 ms. Server and load generator share all
cores of the machine: the table says how much of them the generator took. What a server with one process costs beside
an older commit is measured by `doors.py --parts before`.
"""

from __future__ import annotations

import argparse
from typing import Any

from harness import report
from harness.process import ServerProcess, run_load

_EXAMPLES = """examples:
  python benchmarks/processes.py                                     about 5 minutes
  python benchmarks/processes.py --ramp 100,150,200 --priority -10
"""
ON_TIME_MS = 20.0


def main() -> None:
    flags = report.parser("processes", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--processes", default="1,2", help="fronts to compare (default %(default)s)")
    flags.add_argument("--ramp", default="50,100,150,200,250", help="numbers of calls (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.ramp, chosen.seconds = "4", 0.5
    report.save(chosen, _fronts(chosen))


def _window(chosen: argparse.Namespace, n_processes: int, calls: int) -> dict[str, Any]:
    """One run of a server with `calls` calls."""
    args = ["--set", "engines.default=fake"]
    if n_processes > 1:
        args += ["--set", f"server.processes={n_processes}"]
    with ServerProcess("serve", args, priority=chosen.priority) as server:
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "shape": "twilio",
            "calls": calls,
            "seconds": chosen.seconds,
            "warm_s": max(1.0, calls / 50) + (0.5 if chosen.quick else 3.0),
            "inbound": True,
            "lead_ms": 200,
        }
        return run_load("speak", spec, priority=chosen.priority)


def _fronts(chosen: argparse.Namespace) -> dict[str, Any]:
    windows: list[dict[str, Any]] = []
    for calls in map(int, chosen.ramp.split(",")):
        for n_processes in map(int, chosen.processes.split(",")):
            window = {"processes": n_processes, **_window(chosen, n_processes, calls)}
            windows.append(window)
            late = window["late_ms"]["p99"]
            print(f"  {calls} calls, {n_processes} processes: p99 {late:.1f} ms late", flush=True)
    report.table(
        "calls with two legs that all speak, server and generator on the same cores",
        ("calls", "processes", "server cores", "ms/call-s", "p50 ms", "p99 ms", ">20 ms", "generator cores", "waited"),
        [
            (
                window["calls"],
                window["processes"],
                window["server_cpu_share"],
                window["server_cpu_ms_per_call_s"],
                window["late_ms"]["p50"],
                window["late_ms"]["p99"],
                f"{window['late_over_20_ms_share']:.2%}",
                window["generator_cpu_share"],
                window["server_waited_share"],
            )
            for window in windows
        ],
    )
    best: dict[str, dict[str, Any]] = {}
    for n_processes in map(int, chosen.processes.split(",")):
        on_time = [
            window
            for window in windows
            if window["processes"] == n_processes and window["late_ms"]["p99"] <= ON_TIME_MS and not window["errors"]
        ]
        if on_time:
            most = max(on_time, key=lambda window: int(window["calls"]))
            cores_used = most["server_cpu_share"]
            best[str(n_processes)] = {
                "calls_on_time": most["calls"],
                "server_cores": cores_used,
                "calls_per_core": round(most["calls"] / cores_used, 1),
                "generator_cores": most["generator_cpu_share"],
            }
    report.table(
        "the most calls on time (p99 at most 20 ms)",
        ("processes", "calls", "server cores", "calls per core used", "generator cores"),
        [(n, *figures.values()) for n, figures in best.items()],
    )
    return {"windows": windows, "best": best}


if __name__ == "__main__":
    main()
