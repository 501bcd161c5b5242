"""Every way in against our own protocol: first audio, CPU time, interruptions, and HTTP beside calls.

A door is one protocol of a bot: ours, those of vendors, HTTP. The engine costs nothing, so the figures are those of the
server; only the HTTP streams beside calls are spoken by the embedded voice. All sides take turns in one run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import report
from harness.process import ServerProcess, check_out, cores, run_load

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "3d154ca"
"""The commit before HTTP and the protocols of vendors came in."""
SOCKETS = ("native", "deepgram", "flux", "elevenlabs", "cartesia", "dashscope")
DOORS = (*SOCKETS, "jambonz", "http", "openai")
"""jambonz has no end of a turn, so only its first audio is measured."""
PARTS = ("first_audio", "cost", "before", "interruption", "http")
_INSTANT = ("--set", "engines.default=fake", "--set", "limits.text_chars_per_s=0", "--instant")
_EXAMPLES = """examples:
  python benchmarks/doors.py                                 all, about 4 minutes
  python benchmarks/doors.py --parts before --rounds 5       the frame path against the commit before HTTP
  python benchmarks/doors.py --parts first_audio --doors native,deepgram --clients 10
"""


def main() -> None:
    flags = report.parser("doors", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--parts", default=",".join(PARTS), help="separated by commas (default %(default)s)")
    flags.add_argument("--doors", default=",".join(DOORS), help="separated by commas (default %(default)s)")
    flags.add_argument("--clients", type=int, default=50, help="clients of each door (default %(default)s)")
    flags.add_argument("--seconds", type=float, default=5.0, help="length of a measured window (default %(default)s)")
    flags.add_argument("--rounds", type=int, default=1, help="windows of each side (default %(default)s)")
    flags.add_argument("--streams", type=int, default=200, help="HTTP streams beside the calls (default %(default)s)")
    flags.add_argument("--commit", default=BEFORE, metavar="REV", help="of the part `before` (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.clients, chosen.seconds, chosen.rounds, chosen.streams = 2, 1.5, 1, 3
        chosen.parts, chosen.doors = "first_audio,cost,interruption,http", "native,deepgram,http"
    doors = chosen.doors.split(",")
    results: dict[str, Any] = {}
    for part in chosen.parts.split(","):
        print(f"{part}:", flush=True)
        results[part] = {
            "first_audio": _first_audio, "cost": _cost, "before": _before, "interruption": _interruption, "http": _http
        }[part](chosen, doors)
    report.save(chosen, results)


def _window(scenario: str, door: str, chosen: argparse.Namespace, **more: Any) -> dict[str, Any]:
    server_core, load_core = cores()
    with ServerProcess("serve", _INSTANT, core=server_core, priority=chosen.priority) as server:
        spec = {
            "port": server.port, "server_pid": server.pid, "clients": chosen.clients, "door": door,
            "seconds": chosen.seconds, "warm_s": 0.3 if chosen.quick else 2.0, **more,
        }  # fmt: skip
        return run_load(scenario, spec, core=load_core, priority=chosen.priority)


def _first_audio(chosen: argparse.Namespace, doors: list[str]) -> dict[str, Any]:
    windows: dict[str, list[dict[str, Any]]] = {door: [] for door in doors}
    for _ in range(chosen.rounds):
        for door in doors:
            windows[door].append(_window("door_first_audio", door, chosen, pause_s=0.5)["seen_ms"])
            print(f"  {door}: {windows[door][-1]}", flush=True)
    rows = {
        door: {
            "n": sum(one["n"] for one in ours),
            **{name: report.median([one[name] for one in ours]) for name in ("p50", "p99", "max")},
        }
        for door, ours in windows.items()
    }
    base = rows.get("native")
    report.table(
        "text complete to the first audio at the client, in ms",
        ("door", "turns", "p50", "p99", "max", "p50 beyond native", "p99 beyond native"),
        [
            (door, row["n"], row["p50"], row["p99"], row["max"],
             *((round(row[name] - base[name], 2) for name in ("p50", "p99")) if base else ("-", "-")))
            for door, row in rows.items()
        ],
    )  # fmt: skip
    return rows


def _cost(chosen: argparse.Namespace, doors: list[str]) -> dict[str, Any]:
    sockets = [door for door in doors if door in SOCKETS]
    ms: dict[str, list[float]] = {door: [] for door in sockets}
    failed = 0
    for _ in range(chosen.rounds):
        for door in sockets:
            window = _window("door_cost", door, chosen)
            failed += window["failed"]
            ms[door].append(window["server_cpu_ms_per_audio_s"] or float("nan"))
            print(f"  {door}: {window}", flush=True)
    base = ms[sockets[0]]
    rows = {
        door: {
            "ms_per_audio_s": report.median(ours),
            "ratio": report.median([a / b for a, b in zip(ours, base, strict=True)]),
        }
        for door, ours in ms.items()
    }
    report.table(
        f"server CPU per second of speech, in ms; {failed} clients failed",
        ("door", "ms", f"of {sockets[0]}"),
        [(door, row["ms_per_audio_s"], row["ratio"]) for door, row in rows.items()],
    )
    return {"rows": rows, "failed": failed}


def _before(chosen: argparse.Namespace, _doors: list[str]) -> dict[str, Any]:
    """The frame path now and at an older commit: both servers at the same time on one core, so that other load disturbs
    both alike."""
    pairs: dict[str, list[tuple[float, float]]] = {"native": [], "twilio": []}
    with tempfile.TemporaryDirectory(prefix="telephony-tts-doors-") as folder:
        older = Path(folder)
        check_out(chosen.commit, older)
        for n in range(chosen.rounds):
            for shape, found in pairs.items():
                with ThreadPoolExecutor(2) as pool:
                    sides = [pool.submit(_speak, shape, root, chosen) for root in (ROOT, older)]
                now, before = (side.result()["server_cpu_ms_per_call_s"] for side in sides)
                found.append((now, before))
                print(f"  round {n + 1}, {shape}: {now:.3f} / {before:.3f} = {now / before:.3f}", flush=True)
    rows = {
        shape: {
            "now_ms": report.median([now for now, _ in found]),
            "before_ms": report.median([before for _, before in found]),
            "ratio": report.median([now / before for now, before in found]),
        }
        for shape, found in pairs.items()
    }
    report.table(
        f"server CPU per second of call, in ms, against commit {chosen.commit}",
        ("shape", "now", "before", "ratio"),
        [(shape, *row.values()) for shape, row in rows.items()],
    )
    return rows


def _speak(shape: str, root: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    server_core, load_core = cores()
    args = ("--set", "engines.default=fake", "--set", "speech.lead_ms=200", "--instant")
    with ServerProcess("serve", args, core=server_core, priority=chosen.priority, package=root) as server:
        spec = {
            "shape": shape, "port": server.port, "server_pid": server.pid, "calls": chosen.clients, "inbound": False,
            "seconds": chosen.seconds, "warm_s": 3.0, "lead_ms": 200,
        }  # fmt: skip
        return run_load("speak", spec, core=load_core, priority=chosen.priority)


def _interruption(chosen: argparse.Namespace, doors: list[str]) -> dict[str, Any]:
    rows = {}
    for door in doors:
        if door in SOCKETS:
            rows[door] = _window("door_interruption", door, chosen, period_s=0.2 if chosen.quick else 2.0)
    report.table(
        "from the interruption, in ms",
        ("door", "interruptions", "last audio p50", "p99", "answer p50", "p99", "stale bytes", "unanswered"),
        [
            (door, row["last_audio_ms"]["n"], *(row["last_audio_ms"].get(name, "-") for name in ("p50", "p99")),
             *(row["answer_ms"].get(name, "-") for name in ("p50", "p99")), row["stale_bytes"], row["unanswered"])
            for door, row in rows.items()
        ],
    )  # fmt: skip
    return rows


def _http(chosen: argparse.Namespace, _doors: list[str]) -> dict[str, Any]:
    """Calls speak tones while HTTP requests are spoken by the embedded voice."""
    load_core = cores()[1]
    settings = ("engines.default=fake", "engines.hibari.workers=2", "speech.lead_ms=200")
    args = [word for setting in settings for word in ("--set", setting)] + ["--instant"]
    with ServerProcess("serve", args, priority=chosen.priority) as server, ThreadPoolExecutor(2) as pool:
        common = {"port": server.port, "server_pid": server.pid}
        streams = {**common, "clients": chosen.streams, "voice": "hibari/heart", "seconds": 120}
        calls = {
            **common, "shape": "native", "calls": chosen.clients, "inbound": False, "lead_ms": 200,
            "warm_s": 0.5 if chosen.quick else 3.0, "seconds": chosen.seconds,
        }  # fmt: skip
        speaking = pool.submit(run_load, "speak", calls, core=load_core, priority=chosen.priority)
        asked = pool.submit(run_load, "http_streams", streams, core=load_core, priority=chosen.priority)
        window, found = speaking.result(), asked.result()
    late = window["late_ms"]
    report.table(
        "lateness of the calls' frames, in ms",
        ("calls", "p50", "p99", "max"),
        [(chosen.clients, *(late.get(name, "-") for name in ("p50", "p99", "max")))],
    )
    print(f"  {found['complete']} of {found['streams']} streams complete, {found['audio_s']} s of speech", flush=True)
    return {"calls": window, "streams": found}


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
