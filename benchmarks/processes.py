"""Several front processes against one: calls on time for each core that the server uses, and what the setting costs
a server with one process.

Part "fronts" adds calls with two legs that all speak all the time, and measures how late their frames are at the
receiver. A number of calls is on time if the 99th percentile is at most 20 ms. Server and load generator share all
cores of the machine: the table says how much of them the generator took. Part "cost" compares a server with one
process to an older commit, in turns.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

_EXAMPLES = """examples:
  python benchmarks/processes.py                                     all parts, about 8 minutes
  python benchmarks/processes.py --parts fronts --ramp 100,150,200 --priority -10
  python benchmarks/processes.py --parts cost --commit 2b6e9dc --repeat 5
"""
ROOT = Path(__file__).resolve().parent.parent
BEFORE = "2b6e9dc"
"""The last commit without `server.processes`."""
ON_TIME_MS = 20.0


def main() -> None:
    flags = report.parser("processes", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--parts", default="fronts,cost", help="parts, separated by commas (default %(default)s)")
    flags.add_argument("--processes", default="1,2", help="fronts to compare (default %(default)s)")
    flags.add_argument("--ramp", default="50,100,150,200,250", help="calls of the part fronts (default %(default)s)")
    flags.add_argument("--calls", type=int, default=50, help="calls of the part cost (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=5, help="rounds of the part cost (default %(default)s)")
    flags.add_argument("--commit", default=BEFORE, metavar="REV", help="of the part cost (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.ramp, chosen.calls, chosen.seconds, chosen.repeat, chosen.parts = "4", 2, 0.5, 1, "fronts"
    results: dict[str, Any] = {}
    if "fronts" in chosen.parts:
        results["fronts"] = _fronts(chosen)
    if "cost" in chosen.parts:
        results["cost"] = _cost(chosen)
    report.save(chosen, results)


def _window(chosen: argparse.Namespace, n_processes: int, calls: int, **where: Any) -> dict[str, Any]:
    """One run of a server with `calls` calls. `where`: its core, and the generator's; none if they share all cores."""
    core, load_core = where.get("core"), where.get("load_core")
    args = ["--set", "engines.default=fake"]
    if n_processes > 1:
        args += ["--set", f"server.processes={n_processes}"]
    with ServerProcess(
        "serve", args, core=core, priority=chosen.priority, package=where.get("package")
    ) as server:
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
        return run_load("speak", spec, core=load_core, priority=chosen.priority)


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


def _cost(chosen: argparse.Namespace) -> dict[str, Any]:
    """CPU of a server with one process: this checkout and an older one, in turns on one core."""
    server_core, load_core = cores()
    where = {"core": server_core, "load_core": load_core}
    rounds: list[dict[str, float]] = []
    with _checked_out(chosen.commit) as older:
        for n in range(chosen.repeat):
            sides = {"now": ROOT, "before": older}
            if n % 2:
                sides = dict(reversed(sides.items()))
            rounds.append({
                name: _window(chosen, 1, chosen.calls, **where, package=package)["server_cpu_ms_per_call_s"]
                for name, package in sides.items()
            })  # fmt: skip
            print(f"  round {n + 1}: {rounds[-1]['now']:.3f} / {rounds[-1]['before']:.3f} ms", flush=True)
    ratio = report.median([each["now"] / each["before"] for each in rounds])
    report.table(
        f"server CPU per second of call, one process, {chosen.calls} calls with two legs, {chosen.repeat} rounds",
        ("now ms/call-s", f"{chosen.commit} ms/call-s", "ratio"),
        [(report.median([each["now"] for each in rounds]), report.median([each["before"] for each in rounds]), ratio)],
    )
    return {"rounds": rounds, "ratio": ratio}


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """The files of an older commit in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="telephony-tts-processes-") as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder).resolve()


if __name__ == "__main__":
    main()
