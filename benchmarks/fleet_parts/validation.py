"""A real front with real engine servers under a known load, and the simulation of the same.

The engine is the fake one with slots and a fixed speed, because a machine that tests this cannot run several real ones.
So this checks what the simulation says of fronts, routing, admission, windows and buffers, not the prices of an engine.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.process import ServerProcess, cores, run_load

from fleet_parts.callers import WORD_NS, CallPlan, Habits, Rush, TurnPlan, calls
from fleet_parts.events import Events
from fleet_parts.figures import Prices, figures, spread
from fleet_parts.local_fleet import EngineServers, wait_until_ready
from fleet_parts.prices import NAMED_PRICES, EnginePrices
from fleet_parts.simulation import Fleet, FleetSettings
from fleet_parts.slot_replica import FakeEnginePace, SlotReplica
from telephony_tts.bench.measures import NS_PER_S
from telephony_tts.engines.remote.client import RemoteEngine

WITHIN = 0.15
"""How far the simulation may be from the measured figures."""
_PACE = FakeEnginePace(n_slots=10, first_audio_ms=150.0, rtf=0.3)
_HABITS = Habits(call_s=30.0, reply_s=(1.0, 4.0))


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """The calls of a validation, and the engines that speak them."""

    n_calls: int = 600
    seconds: float = 300.0
    n_replicas: int = 3
    pace: FakeEnginePace = _PACE
    habits: Habits = _HABITS
    seed: int = 1
    n_lone_turns: int = 12
    """Turns of a lone call, which measure what the way to the engine and back takes."""

    def plans(self) -> list[CallPlan]:
        rush = Rush(self.seconds, base=0.4)
        return calls(self.habits, rush.arrivals_ns(self.n_calls, self.seed), self.seed)


def validate(load: KnownLoad, tell: Callable[[str], None], priority: int | str = 0) -> dict[str, Any]:
    """Run both and compare them."""
    plans = load.plans()
    measured, overhead_ms = measure(load, plans, tell, priority)
    simulated = simulate(load, plans, overhead_ms)
    return {
        "load": asdict(load),
        "way_ms": overhead_ms,
        "measured": measured,
        "simulated": simulated,
        "apart": compared(measured, simulated),
        "within": WITHIN,
    }


def compared(measured: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float | None]:
    """For each figure: (simulated - measured) ÷ measured; None if nothing was measured."""
    found = {}
    for name in ("first_audio_ms_p50", "first_audio_ms_p99", "utilisation", "refused"):
        one, other = measured[name], simulated[name]
        found[name] = round((other - one) / one, 4) if one else (0.0 if not other else None)
    return found


def simulate(load: KnownLoad, plans: Sequence[CallPlan], way_ms: float) -> dict[str, Any]:
    """The simulation of the same fleet and calls."""
    settings = FleetSettings(
        NAMED_PRICES["h200-assumed"], load.n_replicas, n_fronts=1, calls_per_front=100_000, link_ms=way_ms
    )

    def make(
        events: Events, _: EnginePrices, heard: Callable[[int, int], None], ended: Callable[[int], None]
    ) -> SlotReplica:
        return SlotReplica(events, load.pace, heard, ended)

    fleet = Fleet(settings, plans, make_replica=make)
    record = fleet.run()
    row = figures(fleet, Prices(0, 0))
    each = [node.replica.busy_ns / fleet.events.now_ns for node in fleet.nodes]
    return {
        "calls": row["calls"],
        "refused": row["refused"],
        "turns": row["turns"],
        "first_audio_ms_p50": row["first_audio_ms"]["p50"],
        "first_audio_ms_p99": row["first_audio_ms"]["p99"],
        "first_audio_ms": spread([ms for _, ms, _ in record.first_audio]),
        "utilisation": round(sum(each) / len(each), 4),
        "utilisation_of_each": [round(one, 4) for one in each],
        "gaps": row["gaps"],
        "seconds": row["simulated_s"],
    }


def measure(
    load: KnownLoad, plans: Sequence[CallPlan], tell: Callable[[str], None], priority: int | str
) -> tuple[dict[str, Any], float]:
    """(the figures of the real fleet, ms that first audio takes beside the engine, for a lone call)."""
    server_core, load_core = cores()
    pace = load.pace
    engine = (
        f"engines.fake.slots={pace.n_slots}",
        f"engines.fake.first_audio_ms={pace.first_audio_ms:g}",
        f"engines.fake.rtf={pace.rtf:g}",
    )
    with (
        tempfile.TemporaryDirectory(prefix="fleet") as folder,
        EngineServers(Path(folder), load.n_replicas, engine, core=load_core, priority=priority) as servers,
    ):
        settings = ("engines.default=remote", f"engines.remote.target={servers.target}", "limits.text_chars_per_s=0")
        flags = [part for setting in settings for part in ("--set", setting)]
        with ServerProcess("serve", flags, core=server_core, priority=priority) as front:
            wait_until_ready(front.port)
            tell("a lone call measures the way to the engine and back")
            lone = CallPlan(
                0,
                0,
                60 * NS_PER_S,
                "",
                0.0,
                tuple(TurnPlan((5,), NS_PER_S // 5, None) for _ in range(load.n_lone_turns)),
            )
            alone = _run(front.port, [lone], load_core, priority)
            if alone["failed"] or alone["refused"]:
                raise RuntimeError(f"the lone call failed: {alone['failed'] or 'refused'}")
            way_ms = round(sorted(alone["first_ms"])[len(alone["first_ms"]) // 2] - pace.first_audio_ms, 3)
            tell(f"it adds {way_ms:.1f} ms; now {load.n_calls} calls within {load.seconds:g} s")
            before = asyncio.run(_counters(servers.addresses))
            found = _run(front.port, plans, load_core, priority)
            after = asyncio.run(_counters(servers.addresses))
    grown = [{name: b[name] - a[name] for name in b} for a, b in zip(before, after, strict=True)]
    each = [one["busy_s"] / pace.n_slots / found["wall_s"] for one in grown]
    first = spread(found["first_ms"])
    return {
        "calls": len(plans),
        "refused": len(found["refused"]),
        "failed": found["failed"][:5],
        "n_failed": len(found["failed"]),
        "turns": found["turns"],
        "sentences": sum(one["utterances"] for one in grown),
        "first_audio_ms_p50": first["p50"],
        "first_audio_ms_p99": first["p99"],
        "first_audio_ms": first,
        "utilisation": round(sum(each) / len(each), 4),
        "utilisation_of_each": [round(one, 4) for one in each],
        "underruns": found["underruns"],
        "seconds": found["wall_s"],
        "generator_lag_ms": found["generator_lag_ms"],
    }, way_ms


def _run(port: int, plans: Sequence[CallPlan], core: int, priority: int | str) -> dict[str, Any]:
    """Let these calls happen on the server at `port`."""
    planned = [
        (
            plan.arrives_ns / NS_PER_S,
            plan.length_ns / NS_PER_S,
            [
                (
                    turn.words,
                    turn.reply_ns / NS_PER_S,
                    None if turn.barge_in_ns is None else turn.barge_in_ns / NS_PER_S,
                )
                for turn in plan.turns
            ],
        )
        for plan in plans
    ]
    end_s = max(plan.arrives_ns + plan.length_ns for plan in plans) / NS_PER_S
    spec = {"port": port, "calls": planned, "word_s": WORD_NS / NS_PER_S, "seconds": end_s + 60.0}
    return run_load("planned_calls", spec, core=core, priority=priority)


async def _counters(addresses: Sequence[str]) -> list[dict[str, float]]:
    """What each engine has counted so far, as its server tells a client."""
    found = []
    for address in addresses:
        engine = RemoteEngine("probe", [address], start_timeout_s=10.0)
        await engine.start()
        try:
            found.append(dict(engine.counters()))  # a server that is ready has told them
        finally:
            await engine.close()
    return found
