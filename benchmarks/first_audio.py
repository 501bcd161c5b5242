"""First audio: from the complete text to the first frame, as the client measures it and as the server reports it.

The fake engine has no delay of its own, so its figures are those of the server. The embedded voice shows how long a
caller waits. Every call says a sentence of about 4 s every 5 s, at a phase of its own. A single call is interrupted
every second and says its next sentence, so that there are enough turns.
"""

from __future__ import annotations

import argparse
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

_EXAMPLES = """examples:
  python benchmarks/first_audio.py                          all, about 3 minutes
  python benchmarks/first_audio.py --engines hibari --calls 1,10,50 --period 8
  python benchmarks/first_audio.py --engines hibari --workers 1 --switch 0.005
"""


def main() -> None:
    flags = report.parser("first_audio", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--engines", default="fake,hibari", help="engines, separated by commas (default %(default)s)")
    flags.add_argument("--calls", default="1,50", help="numbers of calls, separated by commas (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=30.0, help="length of a measured window (default %(default)s)")
    flags.add_argument(
        "--period", type=float, help="seconds between turns of a call (default 5; for a single call 1, with `clear`)"
    )
    flags.add_argument("--repeat", type=int, default=1, help="windows of each kind (default %(default)s)")
    flags.add_argument("--workers", type=int, default=2, help="threads of the embedded voice (default %(default)s)")
    flags.add_argument("--switch", type=float, help="the interpreter's switch interval in seconds, for experiments")
    flags.add_argument(
        "--server-cores",
        choices=("one", "all"),
        default="all",
        help="cores of the server with the embedded voice; with the fake engine it has one (default %(default)s)",
    )
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.engines, chosen.calls, chosen.seconds, chosen.period = "fake", "2", 1.0, 5.0
    windows = []
    for _ in range(chosen.repeat):
        for engine in chosen.engines.split(","):
            for calls in (int(word) for word in chosen.calls.split(",")):
                windows.append(_window(engine, calls, chosen))
                print(f"  {engine}, {calls}: p50 {windows[-1]['seen_ms'].get('p50')} ms", flush=True)
    report.table(
        "first frame after the text is complete, in ms: measured by the client | reported by the server",
        (
            "engine, calls",
            "turns",
            "p50",
            "p95",
            "p99",
            "max",
            "| p50",
            "p95",
            "p99",
            "silence p50",
            "max",
            "CPU",
            "underruns",
            "failed",
        ),
        [
            (
                f"{w['engine']}, {w['calls']}",
                w["seen_ms"]["n"],
                *(w["seen_ms"].get(k, "-") for k in ("p50", "p95", "p99", "max")),
                *(w["told_ms"].get(k, "-") for k in ("p50", "p95", "p99")),
                *(w["leading_silence_ms"].get(k, "-") for k in ("p50", "max")),
                f"{w['server_cpu_share']:.0%}",
                w["underruns"],
                w["n_failed"],
            )
            for w in windows
        ],
    )
    report.save(chosen, windows)


def _window(engine: str, calls: int, chosen: argparse.Namespace) -> dict[str, Any]:
    server_core, load_core = cores()
    args = ["--set", f"engines.default={engine}", "--set", f"engines.hibari.workers={chosen.workers}"]
    if chosen.switch is not None:
        args += ["--switch", str(chosen.switch)]
    alone = calls == 1 and chosen.period is None
    period_s = chosen.period or (1.0 if alone else 5.0)
    if engine == "fake":
        args.append("--instant")
    one_core = engine == "fake" or chosen.server_cores == "one"
    with ServerProcess("serve", args, core=server_core if one_core else None, priority=chosen.priority) as server:
        # During the warm-up every call says its first sentences, and the fake engine caches all of them.
        spec = {
            "port": server.port,
            "server_pid": server.pid,
            "calls": calls,
            "period_s": period_s,
            "seconds": chosen.seconds,
            "clear": alone,
            "warm_s": 0.5 if chosen.quick else max(period_s, 10.0 if alone else 5.0) + 1,
        }
        return {
            "engine": engine,
            "period_s": period_s,
            **run_load("first_audio", spec, core=load_core, priority=chosen.priority),
        }


if __name__ == "__main__":
    main()
