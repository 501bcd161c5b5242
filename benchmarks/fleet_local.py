"""A real small fleet on this machine: a front, engine servers behind it, and what happens when one of them goes.

The engine is the fake one. The front has one core; the engine servers and the callers share the other one. Parts:
`connection` compares engines in other processes with the front's own, `kill` kills one of three engine servers with
kill -9 while all calls speak, `ray_kill` does so with replicas on Ray (needs the extra `ray`), `restart` restarts all
three one after the other with SIGTERM, and `drain` restarts two fronts in the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import report
from harness.engine_servers import EngineServers, wait_until_ready
from harness.process import ServerProcess, cores, place, run_load
from harness.ray_replicas import RayReplicas
from harness.report import percentiles

from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S

_EXAMPLES = """examples:
  python benchmarks/fleet_local.py                               all parts, about 15 minutes
  python benchmarks/fleet_local.py --parts kill --calls 60       kill -9 of one of three engine servers
  python benchmarks/fleet_local.py --parts restart,drain --priority realtime
"""
PARTS = ("connection", "kill", "ray_kill", "restart", "drain")
N_SERVERS = 3
LEAD_MS = 200
BEFORE_S = 4.0
"""The calls speak for so long before anything happens; the first part of it is not judged."""
_CONNECT_S = 3.0
FIRST_AUDIO_TIMEOUT_MS = 1500
_ENGINE = ("engines.fake.first_audio_ms=50", "engines.fake.rtf=0.3")
_SHOWN = {True: "yes", False: "NO", None: "-"}
N_FRONTS = 2
CALL_S = 8.0
"""Calls of the part `drain` last from half of this to one and a half."""
_DRAIN_CALLS_S = 60.0


def main() -> None:
    flags = report.parser("fleet_local", __doc__.splitlines()[0], _EXAMPLES)
    with_ray = find_spec("ray") is not None
    known = [part for part in PARTS if part != "ray_kill" or with_ray]
    flags.add_argument("--parts", default=",".join(known), help="separated by commas (default %(default)s)")
    flags.add_argument("--calls", type=int, default=60, help="that speak all the time (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=15.0, help="watched after a kill (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=3, help="rounds of connection and kill (default %(default)s)")
    chosen = flags.parse_args()
    chosen.servers, chosen.fronts, chosen.before_s = N_SERVERS, N_FRONTS, BEFORE_S
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.repeat = 3, 3.0, 1
        chosen.parts = "kill,restart,drain"  # `connection` is a benchmark of its own, Ray an extra
        chosen.servers, chosen.fronts, chosen.before_s = 2, 1, 1.0
    if unknown := set(chosen.parts.split(",")) - set(known):
        flags.error(f"--parts {','.join(sorted(unknown))}: expected some of {', '.join(known)}")
    results: dict[str, Any] = {}
    parts = (_connection, _kill, _ray_kill, _restart, _drain)
    for part, run in zip(PARTS, parts, strict=True):
        if part in chosen.parts.split(","):
            print(f"{part}:", flush=True)
            results[part] = run(chosen)
    report.table(
        "a front with engine servers on this machine", ("what", "measured", "to reach", "reached"),
        [(row["what"], row["measured"], row["to_reach"], _SHOWN[row["reached"]])
         for part in results.values() for row in part["rows"]],
    )  # fmt: skip
    report.save(chosen, results)


def _row(what: str, measured: str, to_reach: str, reached: bool | None) -> dict[str, Any]:
    return {"what": what, "measured": measured, "to_reach": to_reach, "reached": reached}


# ------------------------------------------------------------------------- connection


def _connection(chosen: argparse.Namespace) -> dict[str, Any]:
    """benchmarks/remote_engine.py: both sides take turns."""
    more = ("--sides", "local,unix", "--repeat", str(chosen.repeat))
    found = _results_of(Path(__file__).with_name("remote_engine.py"), chosen, *more)
    local, unix = found["summary"]["local"], found["summary"]["unix"]
    more_p50, more_p99 = unix["p50"] - local["p50"], unix["p99"] - local["p99"]
    rows = [
        _row("first audio through an engine server, p50", f"+{more_p50:.2f} ms", "+ <= 8 ms", more_p50 <= 8),
        _row("the same, p99", f"+{more_p99:.2f} ms", "+ <= 20 ms", more_p99 <= 20),
        _row("front CPU per second of call", f"{unix['ratio']:.3f} x", "<= 1.25 x", unix["ratio"] <= 1.25),
    ]
    return {"rows": rows, "summary": found["summary"], "rounds": found["rounds"]}


def _results_of(script: Path, chosen: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Run another benchmark in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="fleet") as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, str(script), *more, "--priority", str(chosen.priority), "--json", str(out)]
        subprocess.run([*command, *(["--quick"] if chosen.quick else [])], check=True, timeout=1800)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["results"]
        return found


# ------------------------------------------------------------------------ kill, restart


def _watched(
    chosen: argparse.Namespace, happen_s: float, happening: Any, kind: type[EngineServers | RayReplicas] = EngineServers
) -> dict[str, Any]:
    """Calls speak all the time; `happening(servers)` is called in their middle, and takes at most `happen_s`."""
    server_core, load_core = cores()
    with (
        tempfile.TemporaryDirectory(prefix="fleet") as folder,
        kind(Path(folder), chosen.servers, _ENGINE, core=load_core, priority=chosen.priority) as servers,
    ):
        settings = (
            *servers.front_settings,
            "limits.text_chars_per_s=0",
            f"speech.lead_ms={LEAD_MS}",
        )
        flags = [part for setting in settings for part in ("--set", setting)]
        with ServerProcess("serve", flags, core=server_core, priority=chosen.priority) as front:
            wait_until_ready(front.port)
            from_ns = time.monotonic_ns() + round((_CONNECT_S + 1.0 + chosen.before_s) * NS_PER_S)
            spec = {
                "port": front.port,
                "calls": chosen.calls,
                "lead_ms": LEAD_MS,
                "from_ns": from_ns,
                "before_ns": round(chosen.before_s / 2 * NS_PER_S),
                "end_ns": from_ns + round((happen_s + chosen.seconds) * NS_PER_S),
                "seconds": happen_s + chosen.seconds + 60.0,
            }
            with ThreadPoolExecutor(1) as pool:
                load = pool.submit(run_load, "watched_speech", spec, core=load_core, priority=chosen.priority)
                time.sleep(max(0.0, (from_ns - time.monotonic_ns()) / NS_PER_S))
                happened = happening(servers)
                return {**load.result(), "happened": happened}


def _kill(chosen: argparse.Namespace) -> dict[str, Any]:
    """kill -9 of one engine server. This script starts it again: under Ray Serve or Kubernetes, these do."""
    return _killed(chosen, EngineServers, f"kill -9 of one of {chosen.servers}", 6.0)


def _ray_kill(chosen: argparse.Namespace) -> dict[str, Any]:
    """kill -9 of one replica on Ray, which starts another one by itself."""
    return _killed(chosen, RayReplicas, f"Ray: kill -9 of one of {chosen.servers} replicas", 30.0)


def _killed(
    chosen: argparse.Namespace, kind: type[EngineServers | RayReplicas], what: str, happen_s: float
) -> dict[str, Any]:
    def kill(servers: EngineServers | RayReplicas) -> dict[str, Any]:
        killed_ns = time.monotonic_ns()
        servers.kill(0)
        servers.wait_back(0)
        return {"back_ms": round((time.monotonic_ns() - killed_ns) / NS_PER_MS, 1)}

    rounds = [_watched(chosen, happen_s, kill, kind) for _ in range(chosen.repeat)]
    affected = [call for one in rounds for call in one["calls"] if call["replaced"]]
    others = [call for one in rounds for call in one["calls"] if not call["replaced"]]
    lost = sum(not call["is_open"] or bool(call["errors"]) or not call["frames_after"] for call in (*affected, *others))
    longest_ms = max((call["silence_ms"] for call in affected), default=0.0)
    limit_ms = FIRST_AUDIO_TIMEOUT_MS + 300
    silent = sum(call["silence_ms"] > 20 for call in others)
    rows = [
        _row(f"{what}: calls lost or with an error", f"{lost} of {len(affected) + len(others)}",
             "0", lost == 0),
        _row("longest silence of the calls that it spoke", f"{longest_ms:.0f} ms ({len(affected)} calls)",
             f"<= {limit_ms} ms", bool(affected) and longest_ms <= limit_ms),
        _row("other calls with frames more than 20 ms later than before", f"{silent} of {len(others)}", "0",
             silent == 0),
        _row(f"{'three replicas again, without a hand' if kind is RayReplicas else 'the server is back'}",
             f"{max(one['happened']['back_ms'] for one in rounds) / 1000:.1f} s", f"<= {happen_s:g} s",
             all(one["happened"]["back_ms"] <= 1000 * happen_s for one in rounds)),
    ]  # fmt: skip
    figures = {
        "silence_ms_of_affected": percentiles([call["silence_ms"] for call in affected]),
        "silence_ms_of_others": percentiles([call["silence_ms"] for call in others]),
    }
    return {"rows": rows, "figures": figures, "rounds": [_short(one) for one in rounds]}


def _restart(chosen: argparse.Namespace) -> dict[str, Any]:
    """All engine servers are drained and started again, one after the other."""

    def restart(servers: EngineServers) -> dict[str, Any]:
        statuses, took_ms = [], []
        for i in range(chosen.servers):
            begun_ns = time.monotonic_ns()
            statuses.append(servers.stop(i))
            servers.spawn(i)
            servers.wait_ready(i)
            took_ms.append(round((time.monotonic_ns() - begun_ns) / NS_PER_MS, 1))
        return {"statuses": statuses, "took_ms": took_ms}

    one = _watched(chosen, 12.0 if chosen.quick else 40.0, restart)
    calls = one["calls"]
    n_late = sum(call["over_20_ms"] for call in calls if call["late_before_ms"] <= 20)
    n_frames = sum(call["frames_after"] for call in calls)
    n_cut = sum(len(call["errors"]) + len(call["replaced"]) for call in calls)
    n_late_before = sum(call["late_before_ms"] > 20 for call in calls)
    rows = [
        _row("rolling restart of engine servers: frames late by more than 20 ms", f"{n_late} of {n_frames}", "0",
             n_late == 0),
        _row("turns cut or handed over by the drain", f"{n_cut} of {sum(call['done'] for call in calls)}", "0",
             n_cut == 0),
    ]  # fmt: skip
    return {"rows": rows, "calls_late_before_it_began": n_late_before, "rounds": [_short(one)]}


def _drain(chosen: argparse.Namespace) -> dict[str, Any]:
    """Each of two fronts is replaced: a new one starts, then the old one gets SIGTERM and lets its calls end."""
    call_s = 1.0 if chosen.quick else CALL_S
    server_core, load_core = cores()
    with tempfile.TemporaryDirectory(prefix="fleet") as folder, contextlib.ExitStack() as running:
        servers = running.enter_context(
            EngineServers(Path(folder), chosen.servers, _ENGINE, core=load_core, priority=chosen.priority)
        )
        settings = (
            *servers.front_settings,
            "limits.text_chars_per_s=0",
            f"speech.lead_ms={LEAD_MS}",
            f"server.drain_calls_s={_DRAIN_CALLS_S:g}",
        )
        flags = [part for setting in settings for part in ("--set", setting)]

        def start() -> ServerProcess:
            # It starts beside the callers, which come first, as it would start on another machine of the fleet.
            front = running.enter_context(ServerProcess("serve", flags, core=load_core))
            wait_until_ready(front.port)
            place(front.pid, server_core, chosen.priority)
            return front

        fronts = [start() for _ in range(chosen.fronts)]
        ports = Path(folder) / "ports.json"
        _write_ports(ports, fronts)
        # Each replacement: a start of a second or two, then the longest call and its last turns.
        watched_s = chosen.fronts * (1.5 * call_s + (6.0 if chosen.quick else 15.0))
        spec = {
            "ports": str(ports),
            "lines": chosen.calls,
            "call_s": call_s,
            "lead_ms": LEAD_MS,
            "end_ns": time.monotonic_ns() + round((_CONNECT_S + chosen.before_s + watched_s) * NS_PER_S),
            "seconds": watched_s + 60.0,
        }
        statuses = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(run_load, "calls_through_restarts", spec, core=load_core, priority=chosen.priority)
            time.sleep(_CONNECT_S + chosen.before_s)
            for i in range(chosen.fronts):
                old, fronts[i] = fronts[i], start()
                _write_ports(ports, fronts)
                statuses.append(old.drain(_DRAIN_CALLS_S + 10.0))
            found = load.result()
    n_cut, n_late = len(found["cut"]), found["over_20_ms"]
    rows = [
        _row("rolling restart of the fronts: turns cut by the drain", f"{n_cut} of {found['done'] + n_cut}", "0",
             n_cut == 0 and statuses == [0] * chosen.fronts),
        _row("the same: frames late by more than 20 ms", f"{n_late} of {found['frames']}", "not asked",
             None),
    ]  # fmt: skip
    return {"rows": rows, "statuses": statuses, "calls": found}


def _write_ports(path: Path, fronts: Sequence[ServerProcess]) -> None:
    """What a load balancer knows: the fronts that take calls."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps([front.port for front in fronts]), encoding="utf-8")
    draft.replace(path)


def _short(one: dict[str, Any]) -> dict[str, Any]:
    """A round without the calls to which nothing happened."""
    noted = [call for call in one["calls"] if call["replaced"] or call["errors"] or call["over_20_ms"]]
    return {
        "happened": one["happened"],
        "calls": len(one["calls"]),
        "frames": sum(call["frames_before"] + call["frames_after"] for call in one["calls"]),
        "done": sum(call["done"] for call in one["calls"]),
        "late_before_ms_max": max(call["late_before_ms"] for call in one["calls"]),
        "noted": noted,
        "generator_lag_ms": one["generator_lag_ms"],
        "generator_stalls_ms": one["generator_stalls_ms"],
    }


if __name__ == "__main__":
    main()
