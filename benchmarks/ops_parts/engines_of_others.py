"""Speech servers of other projects behind our server: what it adds to their first audio, and when they see a cancel."""

from __future__ import annotations

import argparse
from typing import Any

from harness import report
from harness.process import ServerProcess, cores, run_load

KINDS = ("openai", "triton")
CALLS = 20


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Rounds alternate between our server and the other one asked directly, so that both see the same machine."""
    n_rounds, seconds, n_clears = (1, 2.0, 2) if chosen.quick else (3, 20.0, 15)
    calls = 4 if chosen.quick else CALLS
    found: dict[str, Any] = {}
    rows = []
    server_core, load_core = cores()
    for kind in KINDS:
        with ServerProcess("other_server", core=load_core, priority=chosen.priority) as other:
            spec = {
                "kind": kind, "other_port": other.port, "triton_port": other.ports[1], "calls": calls,
                "period_s": 1.0 if chosen.quick else 4.0, "seconds": seconds, "warm_s": 1.0 if chosen.quick else 5.0,
                # The sentence before is stopped first, so that the frame that is timed belongs to the new one.
                "clear": True, "clears": n_clears,
            }  # fmt: skip
            rounds = []
            settings = _settings(kind, other.ports)
            with ServerProcess("serve", settings, core=server_core, priority=chosen.priority) as ours:
                spec |= {"port": ours.port, "server_pid": ours.pid}
                for _ in range(n_rounds):
                    rounds.append(
                        {
                            "direct": _load("direct_first_audio", spec, load_core, chosen),
                            "through": _load("first_audio", spec, load_core, chosen),
                        }
                    )
                cancel = _load("clears_until_seen", spec, load_core, chosen)
        added = [one["through"]["seen_ms"]["p50"] - one["direct"]["seen_ms"]["p50"] for one in rounds]
        ratios = [one["through"]["seen_ms"]["p50"] / one["direct"]["seen_ms"]["p50"] for one in rounds]
        found[kind] = {
            "rounds": rounds,
            "added_ms_p50": report.median(added),
            "ratio": report.median(ratios),
            "failed": sum(one["through"]["n_failed"] for one in rounds),
            "cancel": cancel,
        }
        rows += [
            {
                "what": f"{kind}: added to its first audio, {calls} streams, ms p50",
                "reached": found[kind]["added_ms_p50"],
                "to_reach": "<= 5",
            },
            {
                "what": f"{kind}: clear until it sees the cancel, ms p99",
                "reached": cancel["seen_ms"].get("p99"),
                "to_reach": "<= 50",
            },
        ]
    return {"rows": rows, **found}


def _settings(kind: str, ports: list[int]) -> list[str]:
    url = f"grpc://127.0.0.1:{ports[1]}" if kind == "triton" else f"http://127.0.0.1:{ports[0]}"
    own = {"model": "cosyvoice2", "stops_on_cancel": "true"} if kind == "triton" else {"voices": "{tone: {}}"}
    theirs = {"kind": kind, "url": url, "slots": "64", **own}
    settings = [f"engines.others.theirs.{name}={value}" for name, value in theirs.items()]
    return [word for setting in (*settings, "engines.default=theirs") for word in ("--set", setting)]


def _load(scenario: str, spec: dict[str, Any], core: int, chosen: argparse.Namespace) -> dict[str, Any]:
    return run_load(scenario, spec, core=core, priority=chosen.priority)
