"""What a call costs the server, and how many calls can speak at once on one core.

Part "cost" measures the server's CPU time per second of speech, with inbound audio. It compares our server with a bare
loop of websockets, soxr and audioop (harness/reference.py). Both run at the same time on one core, so other load
disturbs both alike. Part "ramp" adds calls that all speak all the time and measures how late their frames are. The
server runs on one core and the load generator on another.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

_EXAMPLES = """examples:
  python benchmarks/capacity.py                                        both parts, about 6 minutes
  python benchmarks/capacity.py --parts cost --repeat 9 --seconds 10   the ratio, with less noise
  python benchmarks/capacity.py --parts ramp --ramp 200,400,800        up to the limit
  python benchmarks/capacity.py --parts cost --patch pairs             an experiment against the plain server
"""
_OURS = ("--set", "engines.default=fake", "--instant")
MOST_SILENT = 3
"""So many windows without speech end the run."""


def main() -> None:
    flags = report.parser("capacity", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--parts", default="cost,ramp", help="parts, separated by commas (default %(default)s)")
    flags.add_argument("--calls", type=int, default=50, help="calls of the cost part (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=6.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=5, help="rounds of the cost part (default %(default)s)")
    flags.add_argument("--ramp", default="50,100,200,300,400", help="calls of the ramp part (default %(default)s)")
    flags.add_argument("--shapes", default="twilio,native", help="of the ramp: twilio (two legs), native, bare")
    flags.add_argument("--lead-ms", type=int, default=200, help="how far ahead frames are sent (default %(default)s)")
    flags.add_argument("--patch", action="append", default=[], help="also measure with this experiment (cost)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.repeat, chosen.ramp, chosen.shapes = 2, 0.5, 1, "2", "native"
    results: dict[str, Any] = {}
    if "cost" in chosen.parts:
        results["cost"] = _cost(chosen)
    if "ramp" in chosen.parts:
        results["ramp"] = _ramp(chosen)
    report.save(chosen, results)


def _window(
    script: str, args: tuple[str, ...], shape: str, calls: int, chosen: argparse.Namespace, **more: Any
) -> dict[str, Any]:
    server_core, load_core = cores()
    warm_s = max(1.0, calls / 50) + (0.5 if chosen.quick else 3.0)
    if script == "serve":
        args = (*args, "--set", f"speech.lead_ms={chosen.lead_ms}")
    with ServerProcess(script, args, core=server_core, priority=chosen.priority) as server:
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "shape": shape,
            "calls": calls,
            "seconds": chosen.seconds,
            "warm_s": warm_s,
            "inbound": shape != "native",
            "lead_ms": chosen.lead_ms,
            **more,
        }
        return run_load("speak", spec, core=load_core, priority=chosen.priority)


def _pair(name: str, args: tuple[str, ...], chosen: argparse.Namespace, **more: Any) -> dict[str, dict[str, Any]]:
    """Both sides at the same time. Again, if a busy machine let a short window pass without speech."""
    for _ in range(MOST_SILENT):
        with ThreadPoolExecutor(2) as pool:
            bare = pool.submit(_window, "reference", (), "bare", chosen.calls, chosen)
            ours = pool.submit(_window, "serve", args, "twilio", chosen.calls, chosen, **more)
        pair = {"ours": ours.result(), "bare": bare.result()}
        if all(window["server_cpu_ms_per_call_s"] is not None for window in pair.values()):
            return pair
    raise SystemExit(
        f"capacity.py: {name}: no call spoke in {MOST_SILENT} windows of {chosen.seconds} s: "
        "the machine is too busy for so many calls; try fewer --calls or more --seconds"
    )


def _cost(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run each side at the same time as a bare loop on the same core, so other load disturbs both alike."""
    sides: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {"ours": (_OURS, {})}
    if chosen.patch:
        sides |= {f"ours + {name}": ((*_OURS, "--patch", name), {}) for name in chosen.patch}
    else:
        sides["ours, bot hears the caller"] = (_OURS, {"bot_inbound": "binary"})
    rounds: list[dict[str, dict[str, Any]]] = []
    for n in range(chosen.repeat):
        rounds.append({})
        for name, (args, more) in sides.items():
            rounds[-1][name] = _pair(name, args, chosen, **more)
            ours_ms, bare_ms = (rounds[-1][name][side]["server_cpu_ms_per_call_s"] for side in ("ours", "bare"))
            print(f"  round {n + 1}: {name:<28} {ours_ms:.2f} / {bare_ms:.2f} ms = {ours_ms / bare_ms:.2f}", flush=True)
    summary = {name: _summary([one[name] for one in rounds]) for name in sides}
    report.table(
        f"server CPU per second of call speech, {chosen.calls} calls, 50 frames/s each way, {chosen.repeat} rounds",
        ("side", "ms/call-s", "bare ms", "ratio", "late p99 ms", "bare's", "kept waiting"),
        [
            (
                name,
                s["ms_per_call_s"],
                s["bare_ms_per_call_s"],
                s["ratio"],
                s["late_p99_ms"],
                s["bare_late_p99_ms"],
                f"{s['waited_share']:.1%}",
            )
            for name, s in summary.items()
        ],
    )
    return {"summary": summary, "rounds": rounds}


def _summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    ours = [one["ours"] for one in rounds]
    bare = [one["bare"] for one in rounds]
    pairs = [(a["server_cpu_ms_per_call_s"], b["server_cpu_ms_per_call_s"]) for a, b in zip(ours, bare, strict=True)]
    return {
        "ms_per_call_s": report.median([a for a, _ in pairs]),
        "bare_ms_per_call_s": report.median([b for _, b in pairs]),
        "ratio": report.median([a / b for a, b in pairs]),
        "ratios": [round(a / b, 3) for a, b in pairs],
        "late_p99_ms": report.median([one["late_ms"]["p99"] for one in ours]),
        "bare_late_p99_ms": report.median([one["late_ms"]["p99"] for one in bare]),
        "waited_share": report.median([one["server_waited_share"] for one in ours]),
        "errors": sorted({code for one in ours for code in one["errors"]}),
        "underruns": sum(one["underruns"] for one in ours),
    }


def _ramp(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    windows = []
    for shape in chosen.shapes.split(","):
        rows = []
        for calls in (int(word) for word in chosen.ramp.split(",")):
            script, args = ("reference", ()) if shape == "bare" else ("serve", _OURS)
            window = {"shape": shape, **_window(script, args, shape, calls, chosen)}
            windows.append(window)
            late, reported = window["late_ms"], window["server_late_ms"]
            rows.append(
                (
                    calls,
                    f"{window['server_cpu_share']:.0%}",
                    late["p50"],
                    late["p99"],
                    late["max"],
                    f"{window['late_over_20_ms_share']:.3%}",
                    reported.get("p50_le", "-"),
                    reported.get("p99_le", "-"),
                    f"{window['server_waited_share']:.0%}",
                    f"{window['generator_cpu_share']:.0%}",
                    window["generator_lag_ms"]["p99"],
                )
            )
            print(f"  {shape} {calls}: p99 {late['p99']:.1f} ms late", flush=True)
        report.table(
            f"frames of calls that all speak, {shape}: late at the receiver, and by the server's own measure",
            (
                "calls",
                "CPU",
                "p50 ms",
                "p99 ms",
                "max ms",
                ">20 ms",
                "own p50 <=",
                "own p99 <=",
                "waited",
                "load CPU",
                "load lag p99",
            ),
            rows,
        )
    return windows


if __name__ == "__main__":
    main()
