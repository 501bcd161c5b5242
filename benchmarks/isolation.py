"""How much a saturated CosyVoice2 engine delays other calls, in threads of the server or in a process of its own.

The engine has one endless caller for each slot. On the same server, paced calls speak tones, which cost almost nothing
to make. The lateness of their frames shows what the engine does to the event loop. Each arm has a fresh server. The
arms take turns, so other load disturbs them alike. Server, engine and callers share all cores.

  idle         the engine is loaded and idle
  thread       isolation: thread
  process      isolation: process
  nice5 ...    isolation: process, with that niceness of the engine's process
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from harness import report
from harness.calls import FRAME_S, BotPeer
from harness.lateness import frame_lateness_ms, metric_values, watch_timers
from harness.process import ServerProcess, cpu_times_s, place, stolen_s

_EXAMPLES = """examples:
  python benchmarks/isolation.py                              the tiny model, two minutes
  python benchmarks/isolation.py --model models/CosyVoice2-0.5B --label full --slots 4 --add \\
      --set dtype=bfloat16 --set lm_dtype=int8                a real model; keeps other results in the file
  python benchmarks/isolation.py --arms process,nice10 --repeat 5
"""
ARMS = ("idle", "thread", "process", "nice5", "nice10")
LEAD_MS = 200
_NEWS_WITHIN_S = 2
STAGES = ("prefill", "decode", "flow", "vocode")


def main() -> None:
    flags = report.parser("isolation", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--model", type=Path, help="a model directory (default: a tiny one with random weights)")
    flags.add_argument("--label", default="tiny", help="what the result calls the model (default %(default)s)")
    flags.add_argument("--arms", default=",".join(ARMS), help="arms, separated by commas (default %(default)s)")
    flags.add_argument("--slots", type=int, default=16, help="slots and callers of the engine (default %(default)s)")
    flags.add_argument("--lanes", type=int, default=2, help="threads of the engine (default %(default)s)")
    flags.add_argument("--calls", type=int, default=20, help="paced calls (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=8.0, help="measured time of an arm (default %(default)s)")
    flags.add_argument("--warm", type=float, default=3.0, help="seconds of warm-up (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=2, help="rounds over all arms (default %(default)s)")
    flags.add_argument("--set", dest="more", action="append", default=[], metavar="KEY=VALUE",
                       help="a setting of engines.cosyvoice2, such as dtype=bfloat16")  # fmt: skip
    flags.add_argument("--add", action="store_true", help="keep the results of other labels in the file")
    chosen = flags.parse_args()
    arms = chosen.arms.split(",")
    for arm in arms:
        if arm not in ARMS:
            flags.error(f"no arm {arm!r}; the arms are {', '.join(ARMS)}")
    if chosen.quick:
        chosen.seconds, chosen.warm, chosen.repeat, chosen.slots, chosen.calls = 1.0, 0.5, 1, 4, 2
        arms = ["thread", "process"]
    results: dict[str, Any] = {}
    if chosen.add and chosen.json.exists():
        results = json.loads(chosen.json.read_text(encoding="utf-8"))["results"]
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model or _tiny(Path(folder))
        for n in range(chosen.repeat):
            rounds.append({})
            for arm in arms:
                rounds[-1][arm] = found = _measured(arm, model, chosen)
                late = found["late_ms"]
                print(
                    f"  round {n + 1}, {arm}: {late['p99']:.1f} ms late (p99), {found['audio_seconds_per_second']:.1f}"
                    " s of speech a second",
                    flush=True,
                )
    names = ("slots", "lanes", "calls", "seconds", "warm", "more")
    settings = {name: getattr(chosen, name) for name in names}
    results[chosen.label] = {"settings": settings, "summary": {arm: _summary(rounds, arm) for arm in arms},
                             "rounds": rounds}  # fmt: skip
    _show(chosen, results[chosen.label]["summary"])
    report.save(chosen, results)


def _tiny(folder: Path) -> Path:
    from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

    write_random_checkpoint(folder)
    return folder


def _measured(arm: str, model: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure one arm on a server of its own."""
    isolation = "thread" if arm == "thread" else "process"
    engine = {"model": model.resolve(), "isolation": isolation, "workers": chosen.lanes, "slots": chosen.slots}
    words = [f"engines.cosyvoice2.{key}={value}" for key, value in engine.items()]
    words += ["engines.default=fake", f"speech.lead_ms={LEAD_MS}"]
    words += [f"engines.cosyvoice2.{word}" for word in chosen.more]
    settings = [part for word in words for part in ("--set", word)]
    with ServerProcess("serve", ("--instant", *settings), priority=chosen.priority) as server:
        if arm.startswith("nice"):
            place(_engine_pid(server.pid), None, int(arm.removeprefix("nice")))
        return uvloop.run(_window(server, 0 if arm == "idle" else chosen.slots, chosen))


def _engine_pid(server_pid: int) -> int:
    """The pid of the engine's process. Raises RuntimeError if the engine has no process of its own."""
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text(encoding="ascii").split()
    for pid in children:
        if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise RuntimeError("the engine has no process of its own")


async def _window(server: ServerProcess, n_engine: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Connect all calls, let them speak, measure. They connect first, because a loaded engine refuses calls."""
    paced = [BotPeer(f"paced{n}", audio="base64", options="&voice=fake/tone") for n in range(chosen.calls)]
    callers = [BotPeer(f"engine{n}", audio="base64", options="&voice=cosyvoice2/preset") for n in range(n_engine)]
    for peer in (*paced, *callers):
        await peer.connect(server.port)
    gc.collect()
    gc.freeze()  # a garbage collection in this process would look like a late frame
    for n, caller in enumerate(callers):
        caller.talk_without_end(n)
    for n, peer in enumerate(paced):
        peer.talk_without_end(n)
        await asyncio.sleep(FRAME_S / len(paced))  # so that frames of different calls do not coincide
    await asyncio.sleep(chosen.warm)
    lag_ms: list[float] = []
    watching = asyncio.create_task(watch_timers(lag_ms))
    before, counted_ns = await _work(server.port)
    begun_ns, stolen, cpu = time.monotonic_ns(), stolen_s(), cpu_times_s(server.pid)
    await asyncio.sleep(chosen.seconds)
    ended_ns, stolen, spent = time.monotonic_ns(), stolen_s() - stolen, cpu_times_s(server.pid)
    after, counted_again_ns = await _work(server.port)
    watching.cancel()
    for peer in (*paced, *callers):
        peer.hang_up()
    await asyncio.sleep(0.2)
    wall_s = (ended_ns - begun_ns) / 1e9
    late_ms = [late for peer in paced for late in frame_lateness_ms(peer.arrivals_ns, begun_ns, ended_ns, LEAD_MS)]
    counted_s = (counted_again_ns - counted_ns) / 1e9
    busy_s = sum(after.get(f"{stage}_s", 0.0) - before.get(f"{stage}_s", 0.0) for stage in STAGES)
    return {
        "late_ms": report.percentiles(late_ms),
        "late_over_20_ms_share": round(sum(late > 20 for late in late_ms) / max(1, len(late_ms)), 6),
        "audio_seconds_per_second": round((after.get("audio_s", 0.0) - before.get("audio_s", 0.0)) / counted_s, 3),
        "lanes_busy_share": round(busy_s / (counted_s * chosen.lanes), 3),
        "server_cpu_share": round((spent[0] - cpu[0]) / wall_s, 3),
        "server_waited_share": round((spent[1] - cpu[1]) / wall_s, 3),
        "host_stole_share": round(stolen / wall_s, 4),
        "generator_lag_ms": report.percentiles(lag_ms),
        "paced_underruns": sum(peer.n_underruns for peer in paced),
        "errors": sorted({code for peer in (*paced, *callers) for code in peer.errors}),
    }


async def _work(port: int) -> tuple[dict[str, float], int]:
    """(the engine's counters by name, the time of the look): the first look at which they have changed.

    An engine in a process of its own reports every second; the counters of an idle engine never change.
    """
    at_first = await _counters(port)
    for _ in range(_NEWS_WITHIN_S * 20):
        await asyncio.sleep(0.05)
        counters = await _counters(port)
        if counters != at_first:
            return counters, time.monotonic_ns()
    return at_first, time.monotonic_ns()


async def _counters(port: int) -> dict[str, float]:
    return await metric_values(port, 'telephony_tts_engine_work{engine="cosyvoice2",what="')


def _summary(rounds: list[dict[str, dict[str, Any]]], arm: str) -> dict[str, Any]:
    """Medians over the rounds; of the maximum lateness the largest."""
    found = [one[arm] for one in rounds]
    late = {name: report.median([one["late_ms"].get(name, 0.0) for one in found]) for name in ("p50", "p99")}
    names = ("audio_seconds_per_second", "lanes_busy_share", "late_over_20_ms_share", "server_waited_share")
    return {
        "late_p50_ms": late["p50"],
        "late_p99_ms": late["p99"],
        "late_max_ms": max(one["late_ms"].get("max", 0.0) for one in found),
        **{name: report.median([one[name] for one in found]) for name in names},
        "generator_lag_p99_ms": report.median([one["generator_lag_ms"].get("p99", 0.0) for one in found]),
        "paced_underruns": sum(one["paced_underruns"] for one in found),
        "errors": sorted({code for one in found for code in one["errors"]}),
    }


def _show(chosen: argparse.Namespace, summary: dict[str, dict[str, Any]]) -> None:
    report.table(
        f"frames of {chosen.calls} paced calls beside {chosen.slots} callers of the engine, {chosen.label}",
        ("arm", "p50 ms", "p99 ms", "max ms", ">20 ms", "audio s/s", "lanes busy", "own lag p99", "underruns"),
        [
            (arm, s["late_p50_ms"], s["late_p99_ms"], s["late_max_ms"], f"{s['late_over_20_ms_share']:.3%}",
             s["audio_seconds_per_second"], f"{s['lanes_busy_share']:.0%}", s["generator_lag_p99_ms"],
             s["paced_underruns"])
            for arm, s in summary.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
