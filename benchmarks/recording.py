"""What it costs to record calls: the server's CPU time per second of speech, and how late its frames are.

Two servers run at the same time on one core, one that records all its calls and one that records none, so other load
disturbs both alike. All calls speak all the time, and their callers send audio all the time. The times are those of all
threads of a server, so the thread that writes the recordings counts.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

_EXAMPLES = """examples:
  python benchmarks/recording.py                          about 3 minutes
  python benchmarks/recording.py --repeat 9 --seconds 10  the ratio, with less noise
  python benchmarks/recording.py --shape native           calls of one socket: nothing comes from the caller
"""
_SERVE = ("--set", "engines.default=fake", "--instant")


def main() -> None:
    flags = report.parser("recording", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=50, help="calls of each server (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=5, help="rounds (default %(default)s)")
    flags.add_argument("--shape", default="twilio", choices=("twilio", "native"), help="default %(default)s")
    flags.add_argument("--lead-ms", type=int, default=200, help="how far ahead frames are sent (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.seconds, chosen.repeat = 2, 0.5, 1
    rounds = []
    for n in range(chosen.repeat):
        with ThreadPoolExecutor(2) as pool:
            off, on = pool.submit(_window, chosen, False), pool.submit(_window, chosen, True)
        rounds.append({"off": off.result(), "on": on.result()})
        off_ms, on_ms = (rounds[-1][side]["server_cpu_ms_per_call_s"] for side in ("off", "on"))
        print(f"  round {n + 1}: on {on_ms:.2f} / off {off_ms:.2f} ms = {on_ms / off_ms:.3f}", flush=True)
    summary = _summary(rounds)
    report.table(
        f"server CPU per second of call, {chosen.calls} calls that speak and are spoken to, {chosen.repeat} rounds",
        ("recording", "ms/call-s", "late p99 ms", "late max ms", "> 20 ms"),
        [(side, *(summary[side][key] for key in summary[side])) for side in ("off", "on")],
    )
    print(f"  on / off: {summary['ratio']:.3f} (rounds {summary['ratios']})")
    report.save(chosen, {"summary": summary, "rounds": rounds})


def _window(chosen: argparse.Namespace, records: bool) -> dict[str, Any]:
    server_core, load_core = cores()
    folder = Path(tempfile.mkdtemp(prefix="recordings-"))
    args = (*_SERVE, "--set", f"speech.lead_ms={chosen.lead_ms}")
    if records:
        args = (*args, "--set", f"recordings.folder={folder}", "--set", "recordings.calls=all")
    spec = {
        "shape": chosen.shape,
        "calls": chosen.calls,
        "seconds": chosen.seconds,
        "warm_s": max(1.0, chosen.calls / 50) + (0.5 if chosen.quick else 5.0),
        "inbound": chosen.shape != "native",
        "lead_ms": chosen.lead_ms,
    }
    try:
        with ServerProcess("serve", args, core=server_core, priority=chosen.priority) as server:
            spec |= {"port": server.port, "server_pid": server.pid}
            window = run_load("speak", spec, core=load_core, priority=chosen.priority)
        files = list(folder.glob("*.wav"))
        assert len(files) == (chosen.calls if records else 0), f"{len(files)} recordings"
        return {**window, "recorded_mb": round(sum(path.stat().st_size for path in files) / 1e6, 2)}
    finally:
        shutil.rmtree(folder)


def _summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    ratios = [one["on"]["server_cpu_ms_per_call_s"] / one["off"]["server_cpu_ms_per_call_s"] for one in rounds]
    sides = {
        side: {
            "ms_per_call_s": report.median([one[side]["server_cpu_ms_per_call_s"] for one in rounds]),
            "late_p99_ms": report.median([one[side]["late_ms"]["p99"] for one in rounds]),
            "late_max_ms": max(one[side]["late_ms"]["max"] for one in rounds),
            "late_over_20_ms_share": max(one[side]["late_over_20_ms_share"] for one in rounds),
        }
        for side in ("off", "on")
    }
    return {"ratio": report.median(ratios), "ratios": [round(ratio, 3) for ratio in ratios], **sides}


if __name__ == "__main__":
    main()
