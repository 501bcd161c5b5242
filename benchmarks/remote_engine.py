"""An engine in another process against the same engine in the server's own: first audio, and CPU of the server.

The engine is the fake one, instant and cached, so the figures are those of the connection. The server has one core; the
load generator and the engine server share the other one. Rounds alternate, so that both sides see the same machine.
The side `ray` has three replicas on a Ray cluster, whose engine is not cached; it needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from harness import report
from harness.engine_servers import wait_until_ready
from harness.process import ServerProcess, cores, run_load
from harness.ray_replicas import RayReplicas

_EXAMPLES = """examples:
  python benchmarks/remote_engine.py                        all, about 6 minutes
  python benchmarks/remote_engine.py --sides local,unix --calls 50 --seconds 20 --repeat 1
  python benchmarks/remote_engine.py --sides local,ray      replicas on Ray
"""
N_REPLICAS = 3


def main() -> None:
    flags = report.parser("remote_engine", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--sides", default="local,unix,tcp", help="separated by commas (default %(default)s)")
    flags.add_argument("--calls", type=int, default=50, help="calls at once (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=30.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--period", type=float, default=5.0, help="seconds between turns (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=3, help="rounds (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.repeat = 2, 1.0, 1
    rounds: list[dict[str, Any]] = []
    for _ in range(chosen.repeat):
        rounds.append({side: _window(side, chosen) for side in chosen.sides.split(",")})
        shown = ", ".join(f"{side}: p50 {window['seen_ms'].get('p50')} ms" for side, window in rounds[-1].items())
        print(f"  {shown}", flush=True)
    summary = {side: _summary(rounds, side, chosen.calls) for side in chosen.sides.split(",")}
    report.table(
        f"first audio in ms and CPU of the server, {chosen.calls} calls, medians of {chosen.repeat} rounds",
        ("engine", "turns", "p50", "p95", "p99", "CPU ms per call second", "ratio", "failed"),
        [(side, *row.values()) for side, row in summary.items()],
    )
    report.save(chosen, {"rounds": rounds, "summary": summary})


def _summary(rounds: list[dict[str, Any]], side: str, calls: int) -> dict[str, Any]:
    windows = [each[side] for each in rounds]
    cpu_ms = [window["server_cpu_share"] * 1000 / calls for window in windows]
    first = [each["local"]["server_cpu_share"] for each in rounds if "local" in each]
    ratios = [window["server_cpu_share"] / one for window, one in zip(windows, first, strict=False)]
    return {
        "turns": sum(window["seen_ms"]["n"] for window in windows),
        **{name: report.median([w["seen_ms"].get(name, 0.0) for w in windows]) for name in ("p50", "p95", "p99")},
        "cpu_ms_per_call_s": report.median(cpu_ms),
        "ratio": report.median(ratios) if ratios else 0.0,
        "failed": sum(window["n_failed"] for window in windows),
    }


def _window(side: str, chosen: argparse.Namespace) -> dict[str, Any]:
    server_core, load_core = cores()
    with tempfile.TemporaryDirectory(prefix="engine") as folder:
        if side == "ray":
            with RayReplicas(Path(folder), N_REPLICAS, core=load_core, priority=chosen.priority) as replicas:
                flags = [part for setting in replicas.front_settings for part in ("--set", setting)]
                return _first_audio(flags, chosen, server_core, load_core)
        listen = {"local": "", "unix": f"unix:{folder}/engine.sock", "tcp": "127.0.0.1:0"}[side]
        replica = ServerProcess("engine_serve", ["--listen", listen], core=load_core) if listen else nullcontext()
        with replica as running:
            args = ["--instant", "--set", "engines.default=fake"]
            if running is not None:
                target = listen if side == "unix" else f"127.0.0.1:{running.port}"
                args = ["--set", "engines.default=remote", "--set", f"engines.remote.target={target}"]
            return _first_audio(args, chosen, server_core, load_core)


def _first_audio(args: list[str], chosen: argparse.Namespace, server_core: int, load_core: int) -> dict[str, Any]:
    with ServerProcess("serve", args, core=server_core, priority=chosen.priority) as server:
        wait_until_ready(server.port)
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "calls": chosen.calls,
            "period_s": chosen.period,
            "seconds": chosen.seconds,
            "clear": False,
            "warm_s": 0.5 if chosen.quick else chosen.period + 1,
        }
        return run_load("first_audio", spec, core=load_core, priority=chosen.priority)


if __name__ == "__main__":
    main()
