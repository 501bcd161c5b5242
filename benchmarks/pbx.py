"""Calls through a real Asterisk: first speech at the telephone, the bridge's delay, and gaps in many calls at once.

  first_speech   from the bot's `say` with the complete text to the first packet of speech at the telephone, with the
                 embedded voice, one call at a time, over each way of the audio
  bridge_added   from the server's socket to Asterisk's and back through the bridge alone: the bridge's work, and on the
                 way to the telephone the wait for its next 20 ms
  calls          many calls on one Asterisk that all hear speech all the time: the gaps between packets at the
                 telephones. Server and bridge share one core, Asterisk has another. With `--priority realtime` the
                 bridge runs first

The telephones are in this process. The kernel's timestamps say when a packet came. A virtual machine may stand still
for tens of milliseconds, and no program on it can prevent that. A witness on each core records these standstills. Late
packets count in any case; the result also says how many of them overlap a standstill.

The first use downloads Asterisk and the telephones (80 MB, into .peers). The benchmark needs no root, but without root
the witnesses have no real-time priority and record nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

# Before numpy is imported, and for the server as well, as `make run` does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from harness import pbx_bridge, pbx_calls, pbx_speech, report
from harness.pbx_peers import PeerFailed, PeerUnavailable, Standstills, standstills
from harness.pbx_setup import EXTENSIONS, pbx_setup, placement_words
from harness.process import cores

_EXAMPLES = """examples:
  python benchmarks/pbx.py                                    all, about 10 minutes
  python benchmarks/pbx.py --turns 3 --calls 3 --seconds 3 --frames 200     a check that it runs, 90 s
  python benchmarks/pbx.py --only first_speech --ways websocket --add       again, keeping the rest
  python benchmarks/pbx.py --only calls --calls 50 --seconds 120 --priority realtime
"""
PARTS = ("first_speech", "bridge_added", "calls")
TARGETS = {
    "first_speech": "p50 of speech_ms at most 120",
    "bridge_added": "p99 of to_the_phone_ms at most 25",
    "calls": "no gaps over 40 ms",
}
_MAX_CALLS = 190
"""This Asterisk has 400 ports for RTP and uses two for a call. The shipped bridge accepts 200 calls."""
_SPEAKING_SHARE = 0.8
"""Least share of packets with sound in a call that hears speech all the time; the rest are pauses."""


def main() -> int:
    flags = report.parser("pbx", __doc__, _EXAMPLES)
    flags.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default %(default)s)")
    flags.add_argument("--ways", default=",".join(EXTENSIONS), help="of first_speech, by comma (default %(default)s)")
    flags.add_argument("--turns", type=int, default=30, help="of first_speech, for each way (default %(default)s)")
    flags.add_argument("--frames", type=int, default=2000, help="of bridge_added, each way (default %(default)s)")
    flags.add_argument("--bridge-calls", type=int, default=8, help="at once in bridge_added (default %(default)s)")
    flags.add_argument("--calls", type=int, default=50, help="at once in `calls` (default %(default)s)")
    flags.add_argument("--calls-over", default="websocket,audiosocket",
                       help="of `calls`, by comma: websocket, audiosocket, ari (default %(default)s)")  # fmt: skip
    flags.add_argument("--seconds", type=float, default=30.0, help="measured time of `calls` (default %(default)s)")
    flags.add_argument("--phones-beside", choices=("asterisk", "server"), default="asterisk",
                       help="whose core the telephones of `calls` share (default %(default)s)")  # fmt: skip
    flags.add_argument("--add", action="store_true", help="keep the other parts and ways in the file")
    chosen = flags.parse_args()
    only = _listed(flags, "--only", chosen.only, PARTS)
    _listed(flags, "--ways", chosen.ways, tuple(EXTENSIONS))
    _listed(flags, "--calls-over", chosen.calls_over, tuple(EXTENSIONS))
    if not 1 <= chosen.calls <= _MAX_CALLS:
        flags.error(f"--calls {chosen.calls}: expected 1 to {_MAX_CALLS}")
    if min(chosen.turns, chosen.frames, chosen.bridge_calls) < 1 or chosen.seconds <= 0:
        flags.error("--turns, --frames, --bridge-calls and --seconds must be more than 0")
    if chosen.quick:
        chosen.turns, chosen.frames, chosen.bridge_calls, chosen.calls, chosen.seconds = 1, 20, 2, 2, 1.0
    measured: dict[str, dict[str, Any]] = {}
    signal.signal(signal.SIGTERM, _stop)
    failed = ""
    try:
        with standstills() as machine:
            if not machine.is_exact:
                print("  the witnesses have no real-time priority and record nothing; run as root to get it")
            for part in only:
                print(f"{part}:", flush=True)
                measured[part] = {"target": TARGETS[part], **_MEASURES[part](chosen, machine)}
    except (PeerFailed, PeerUnavailable, AssertionError) as error:
        failed = str(error)
    except PermissionError as error:
        failed = f"--priority needs root: {error}"
    except KeyboardInterrupt:
        return 130
    if measured:
        _show(measured)
        report.save(chosen, _merged(chosen.json, measured) if chosen.add else measured)
    if failed:
        print(f"benchmarks/pbx.py: {failed}", file=sys.stderr)
    return 1 if failed else 0


def _stop(_number: int, _frame: object) -> NoReturn:
    """Exit in order, so that every process that was started is stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(143)


def _merged(kept: Path, measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The measured parts and ways, and from the kept file those that were not measured."""
    if not kept.exists():
        return measured
    results: dict[str, dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["results"]
    for part, found in measured.items():
        ways = {**results.get(part, {}).get("ways", {}), **found.get("ways", {})}
        results[part] = {**found, **({"ways": ways} if ways else {})}
    return results


def _listed(flags: argparse.ArgumentParser, flag: str, text: str, known: tuple[str, ...]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            flags.error(f"{flag}: unknown {word!r}; expected some of {', '.join(known)}")
    return words


def _first_speech(chosen: argparse.Namespace, machine: Standstills) -> dict[str, Any]:
    placement = {"server": None, "bridge": None, "asterisk": None}
    texts = pbx_speech.QUICK_TEXTS if chosen.quick else pbx_speech.TEXTS
    ways = {}
    with pbx_setup("embedded", placement, chosen.priority) as up:
        for way in chosen.ways.split(","):
            found = pbx_speech.measure(up, way, chosen.turns, texts, machine)
            ways[way] = {"reached": _at_most(found["speech_ms"].get("p50"), 120.0) and not found["failed"], **found}
    return {"placement": placement_words({**placement, "phones and bot": None}), "ways": ways}


def _bridge_added(chosen: argparse.Namespace, machine: Standstills) -> dict[str, Any]:
    ours, other = cores()
    found = pbx_bridge.measure(chosen.frames, chosen.bridge_calls, (ours, other), chosen.priority, machine)
    to_phone = found["to_the_phone_ms"]
    return {
        "placement": placement_words({"bridge": ours, "stand-ins of server and Asterisk": other}),
        "reached": _at_most(to_phone.get("p99"), pbx_bridge.LIMIT_MS) and not to_phone["lost"],
        **found,
    }


def _calls(chosen: argparse.Namespace, machine: Standstills) -> dict[str, Any]:
    ours, other = cores()
    placement = {"server": ours, "bridge": ours, "asterisk": other}
    phones = other if chosen.phones_beside == "asterisk" else ours
    ways = {}
    with pbx_setup("tones", placement, chosen.priority) as up:
        for way in chosen.calls_over.split(","):
            found = pbx_calls.measure(up, way, chosen.calls, chosen.seconds, phones, machine)
            all_speak = found["speaking_share"]["least"] >= _SPEAKING_SHARE
            ways[way] = {"reached": found["gaps_over_40_ms"] == 0 and all_speak, **found}
    return {"placement": placement_words({**placement, "phones, sipp and bots": phones}), "ways": ways}


def _at_most(figure: float | None, limit: float) -> bool:
    return figure is not None and figure <= limit


_MEASURES = {"first_speech": _first_speech, "bridge_added": _bridge_added, "calls": _calls}


def _show(results: dict[str, Any]) -> None:
    if found := results.get("first_speech"):
        report.table(
            f"from `say` to the first packet of speech at the telephone, in ms; target: {found['target']}",
            ("way", "turns", "p50", "p95", "max", "| any sound p50", "| server's own p50", "failed",
             "in standstills"),
            [
                (way, one["turns"], *(one["speech_ms"].get(name, "-") for name in ("p50", "p95", "max")),
                 one["sound_ms"].get("p50", "-"), one["told_by_the_server_ms"].get("p50", "-"), one["failed"],
                 _or_unknown(one["turns_in_a_standstill"]))
                for way, one in found["ways"].items()
            ],
        )  # fmt: skip
    if found := results.get("bridge_added"):
        report.table(
            f"through the bridge, in ms; target: {found['target']}",
            ("to", "frames", "p50", "p99", "max", "lost", "over 25 ms", "| in standstills", "over without them"),
            [
                (to, one["n"], *(one.get(name, "-") for name in ("p50", "p99", "max")), one["lost"],
                 one["over_25_ms"]["n"],
                 _or_unknown(one["over_25_ms"]["overlapping_a_standstill"]),
                 _or_unknown(one["over_25_ms"]["over_without_the_standstill"]))
                for to, one in (("the phone", found["to_the_phone_ms"]), ("the server", found["to_the_server_ms"]))
            ],
        )  # fmt: skip
    if found := results.get("calls"):
        report.table(
            f"times without a packet, calls that all speak; target: {found['target']}",
            ("way", "calls", "frames", "p99 ms", "max ms", "over 40 ms", "moments", "| in standstills",
             "over without them", "server", "bridge", "Asterisk", "phones"),
            [
                (way, one["calls"], one["frames"], one["gap_ms"]["p99"], one["gap_ms"]["max"], one["gaps_over_40_ms"],
                 one["moments"], _or_unknown(one["overlapping_a_standstill"]),
                 _or_unknown(one["over_without_the_standstill"]),
                 *(f"{one['cpu_share'][name]:.0%}" for name in ("server", "bridge", "asterisk", "phones")))
                for way, one in found["ways"].items()
            ],
        )  # fmt: skip


def _or_unknown(n: int | None) -> object:
    return "unknown" if n is None else n


if __name__ == "__main__":
    sys.exit(main())
