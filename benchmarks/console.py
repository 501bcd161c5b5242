"""The console: how soon its page makes the first sound, how heavy the page is, and what open consoles cost the server.

  first_sound   in a real Chromium, with the embedded voice on the same machine: from Enter to the first frame in the
                page, and to the first sample above -46 dBFS at the loudspeaker. The second has the decoding, the
                output, and the voice's own silence before its first sound, which are told apart
  page          the bytes of all files, and the first paint, also with a processor slowed down four times
  watching      the server's share of a core and the lateness of frames, with calls that speak all the time and no, one
                and ten consoles that watch them

The first use downloads a Chromium (100 MB, into .peers).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness import report
from harness.console_watchers import watchers
from harness.process import ServerProcess, cores, run_load

_CHECKOUT = Path(__file__).resolve().parents[1]
_EXAMPLES = """examples:
  python benchmarks/console.py                                 all, about 4 minutes
  python benchmarks/console.py --only first_sound --turns 10
  python benchmarks/console.py --only watching --calls 50 --watchers 0,1,10 --seconds 60
"""
PARTS = ("first_sound", "page", "watching")
TARGETS = {
    "first_sound": "p50 of network_first_ms at most 120",
    "page": "at most 150 kB; first paint at most 300 ms on a slow core",
    "watching": "one console at most 1 % of a core; 50 calls keep their frames with ten",
}
_TEXTS = ("Hello, this is your bank.", "Your parcel arrives tomorrow.", "How can I help you today?")
_SLOWED = 4


def main() -> None:
    flags = report.parser("console", __doc__ or "", _EXAMPLES)
    flags.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default %(default)s)")
    flags.add_argument("--turns", type=int, default=40, help="of first_sound (default %(default)s)")
    flags.add_argument("--loads", type=int, default=10, help="of page, for each speed (default %(default)s)")
    flags.add_argument("--calls", type=int, default=50, help="of watching (default %(default)s)")
    flags.add_argument("--watchers", default="0,1,10", help="of watching, by comma (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=30.0, help="of each window of watching (default %(default)s)")
    flags.add_argument("--repeat", type=int, default=2, help="windows of each kind of watching (default %(default)s)")
    chosen = flags.parse_args()
    if unknown := [part for part in chosen.only.split(",") if part not in PARTS]:
        flags.error(f"unknown part {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    if chosen.quick:
        chosen.turns, chosen.loads, chosen.repeat = 2, 1, 1
        chosen.calls, chosen.seconds, chosen.watchers = 2, 1.0, "0,1"
    results: dict[str, Any] = {"targets": {part: TARGETS[part] for part in chosen.only.split(",")}}
    if "watching" in chosen.only:
        results["watching"] = _watching(chosen)
    if "first_sound" in chosen.only or "page" in chosen.only:
        results |= _in_browser(chosen)
    report.save(chosen, results)


# ------------------------------------------------------------------ in a browser


def _in_browser(chosen: argparse.Namespace) -> dict[str, Any]:
    for folder in ("tests/peers", "tests/e2e", "tests", "examples/asterisk_demo"):
        sys.path.append(str(_CHECKOUT / folder))
    from browser import chromium

    results: dict[str, Any] = {}
    with (
        ServerProcess("serve", ["--set", "engines.hibari.workers=1"], priority=chosen.priority) as server,
        chromium() as devtools,
    ):
        url = f"http://127.0.0.1:{server.port}/console/"
        if "page" in chosen.only:
            results["page"] = asyncio.run(_page(devtools, url, chosen))
        if "first_sound" in chosen.only:
            results["first_sound"] = asyncio.run(_first_sound(devtools, url, chosen))
    return results


async def _first_sound(devtools: str, url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    from browser import page

    async with page(devtools, url) as shown:
        await shown.until("document.querySelectorAll('#voice option').length > 1", within_s=30)
        for n in range(chosen.turns + 1):
            await shown.write("#text", _TEXTS[n % len(_TEXTS)])
            await asyncio.sleep(0.05)
            await shown.press("Enter")
            await shown.until(f"document.querySelectorAll('.turn').length > {min(n, 49)}")
            turn = "(await import('./say.js')).turns[0]"
            await shown.until(f"(async () => {turn}.audibleAt !== null)()", within_s=30)
            await asyncio.sleep(0.2)
            await shown.press("Space")
            await shown.until(f"(async () => {turn}.endedAt !== null)()", within_s=30)
            await asyncio.sleep(0.2)
        told: list[dict[str, float]] = await shown.evaluate(
            "(async () => (await import('./say.js')).turns.map((turn) => ({"
            " network_first_ms: turn.firstFrameAt - turn.sentAt, server_first_ms: turn.firstAudioMs,"
            " decode_ms: turn.decodeMs, output_ms: turn.begunAt - turn.firstFrameAt - turn.decodeMs,"
            " silence_ms: turn.audibleAt - turn.begunAt,"
            " audible_first_ms: turn.audibleAt - turn.sentAt })))()"
        )
        where = await shown.evaluate(
            "(async () => { const context = await (await import('./call.js')).audioContext();"
            " return { rate_hz: context.sampleRate, base_latency_ms: context.baseLatency * 1000,"
            " output_latency_ms: context.outputLatency * 1000,"
            " browser: navigator.userAgent.match(/Chrome.[0-9.]+/)[0] } })()"
        )
    first, kept = told[-1], told[:-1]  # the newest is first; the very first turn also opens the call
    names = ("network_first_ms", "server_first_ms", "decode_ms", "output_ms", "silence_ms", "audible_first_ms")
    figures = {name: report.percentiles([each[name] for each in kept]) for name in names}
    report.table(
        "from Enter, in ms", ("part", "n", "p50", "p95", "max", "first turn"),
        [(name, len(kept), *(figures[name].get(k, "-") for k in ("p50", "p95", "max")), round(first[name], 1))
         for name in names],
    )  # fmt: skip
    return {"turns": len(kept), "output": where, "first_turn": first, **figures}


async def _page(devtools: str, url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    from browser import page

    rows = []
    for slowed in (1, _SLOWED):
        paints: list[float] = []
        for _ in range(chosen.loads):
            async with page(devtools, "about:blank") as shown:
                await shown._ask("Emulation.setCPUThrottlingRate", rate=slowed)
                await shown._ask("Network.enable")
                await shown._ask("Network.setCacheDisabled", cacheDisabled=True)
                await shown._ask("Page.navigate", url=url)
                painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                paints.append(await shown.until(painted, within_s=30))
        rows.append({"cpu_slowed": slowed, "first_paint_ms": report.percentiles(paints)})
    files = {file.name: file.stat().st_size for file in sorted((_CHECKOUT / "telephony_tts" / "console").iterdir())}
    report.table(
        f"the page: {sum(files.values())} bytes in {len(files)} files", ("CPU slowed", "first paint p50", "max"),
        [(row["cpu_slowed"], row["first_paint_ms"]["p50"], row["first_paint_ms"]["max"]) for row in rows],
    )  # fmt: skip
    return {"bytes": sum(files.values()), "files": files, "loads": rows}


# ------------------------------------------------------------------------ watching


def _watching(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for _ in range(chosen.repeat):
        for n in map(int, chosen.watchers.split(",")):
            rows.append(_window(n, chosen))
            print(f"  {n} consoles: {rows[-1]['server_cpu_share']:.2%} of a core", flush=True)
    report.table(
        f"{chosen.calls} calls that speak all the time",
        ("consoles", "server CPU", "late p50 ms", "p99", "max", "over 20 ms", "underruns", "snapshots"),
        [(row["consoles"], f"{row['server_cpu_share']:.2%}",
          *(row["late_ms"].get(k, "-") for k in ("p50", "p99", "max")), f"{row['late_over_20_ms_share']:.4%}",
          row["underruns"], row["snapshots"]) for row in rows],
    )  # fmt: skip
    return rows


def _window(n: int, chosen: argparse.Namespace) -> dict[str, Any]:
    server_core, load_core = cores()
    settings = ("engines.default=fake", "limits.text_chars_per_s=0", "speech.lead_ms=60")
    args = ("--instant", *(word for setting in settings for word in ("--set", setting)))
    with (
        ServerProcess("serve", args, core=server_core, priority=chosen.priority) as server,
        watchers(server.port, n) as seen,
    ):
        spec = {
            "port": server.port, "server_pid": server.pid, "shape": "twilio", "calls": chosen.calls,
            "seconds": chosen.seconds, "warm_s": 1.5 if chosen.quick else 4.0, "inbound": True, "lead_ms": 60,
        }  # fmt: skip
        began_s = time.monotonic()
        window = run_load("speak", spec, core=load_core, priority=chosen.priority)
        took_s = time.monotonic() - began_s
    if n and min(seen) < took_s / 2:
        raise RuntimeError(f"a console got {min(seen)} snapshots in {took_s:.0f} s; expected one a second")
    return {"consoles": n, "snapshots": sum(seen), **window}


if __name__ == "__main__":
    main()
