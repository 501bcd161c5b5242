"""Does memory stay flat? The server's resident memory during thousands of calls and of interruptions.

The result compares the last quarter of the samples with the second, because the first quarter may still be warm-up. A
second part runs calls and the server in one process and counts the objects of finished calls. There must be none.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
from collections import Counter
from typing import Any, TextIO

from harness import churn, report
from harness.process import ServerProcess, cores, run_load

_EXAMPLES = """examples:
  python benchmarks/memory.py                 2,000 calls, 2,000 barge-ins, about 3 minutes
  python benchmarks/memory.py --calls 20000 --barge-ins 0
"""
_COUNTED = ("Session", "Call", "Turn", "Encoder", "Resampler", "CallConnection", "DirectConnection")


def main() -> None:
    flags = report.parser("memory", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--calls", type=int, default=2000, help="calls in all (default %(default)s)")
    flags.add_argument("--barge-ins", type=int, default=2000, help="interruptions (default %(default)s)")
    flags.add_argument("--width", type=int, default=8, help="calls at once (default %(default)s)")
    flags.add_argument("--samples", type=int, default=80, help="memory samples of a series (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.calls, chosen.barge_ins, chosen.width, chosen.samples = 8, 8, 2, 4
    server_core, load_core = cores()
    series: dict[str, Any] = {}
    args = ("--set", "engines.default=fake", "--set", "limits.text_chars_per_s=0", "--instant")
    with ServerProcess("serve", args, core=server_core, priority=chosen.priority) as server:
        for scenario, n in (("calls", chosen.calls), ("barge_ins", chosen.barge_ins)):
            if not n:
                continue
            spec = {
                "port": server.port,
                "server_pid": server.pid,
                "n": n,
                "width": chosen.width,
                "samples": chosen.samples,
                "seconds": 30 + n / 5,
            }
            series[scenario] = _judge(run_load(scenario, spec, core=load_core, priority=chosen.priority))
            print(f"  {scenario}: {series[scenario]['growth_percent']:+.2f} %", flush=True)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        alive = asyncio.run(_in_process(20 if chosen.quick else 200, nowhere))
    report.table(
        "resident memory, MiB (means of a quarter)",
        ("series", "n", "seconds", "first", "second", "third", "last", "last / second"),
        [
            (name, s["n"], s["seconds"], *(q / 1024 for q in s["quarters_kib"]), f"{s['growth_percent']:+.2f} %")
            for name, s in series.items()
        ],
    )
    report.table(
        "objects of finished calls still alive",
        ("class", "n"),
        [(name, alive["alive"].get(name, 0)) for name in _COUNTED],
    )
    report.save(chosen, {**series, "in_process": alive})


def _judge(run: dict[str, Any]) -> dict[str, Any]:
    rss = run["rss_kib"]
    quarter = max(1, len(rss) // 4)
    quarters = [statistics.mean(rss[n * quarter : (n + 1) * quarter]) for n in range(4)]
    growth = round((quarters[3] / quarters[1] - 1) * 100, 3)
    return {**run, "quarters_kib": [round(q) for q in quarters], "growth_percent": growth}


async def _in_process(n: int, nowhere: TextIO) -> dict[str, Any]:
    """Run calls and interruptions against a server in this process; then count what is left of them."""
    from telephony_tts.app import config
    from telephony_tts.app.engines import build_catalog
    from telephony_tts.app.settings import transport_settings
    from telephony_tts.runtime import logs
    from telephony_tts.transport.server import Server

    # A slow machine must not refuse calls: the count would then cover fewer of them.
    overrides = {"server.port": 0, "engines.default": "fake", "limits.text_chars_per_s": 0}
    settings = config.load(None, {**overrides, "limits.max_frame_lateness_ms": 10_000})
    logs.setup(settings.log, nowhere)
    catalog = build_catalog(settings)
    await catalog.start()
    try:
        async with Server(transport_settings(settings), catalog).running() as server:
            spec = {"port": server.port, "server_pid": None, "n": n, "width": 4, "samples": 1}
            await churn.calls(spec)
            await churn.barge_ins(spec, hang_up=True)
            await asyncio.sleep(0.2)
            await server.registry.wait_empty()
            await asyncio.sleep(0.2)
            gc.collect()
            found = Counter(
                type(o).__name__ for o in gc.get_objects() if str(type(o).__module__).startswith("telephony_tts")
            )
            tasks = [task.get_name() for task in asyncio.all_tasks()]
    finally:
        await catalog.close()
    alive = {name: found[name] for name in _COUNTED if found[name]}
    return {"calls": n, "barge_ins": n, "alive": alive, "tasks": sorted(tasks)}


if __name__ == "__main__":
    main()
