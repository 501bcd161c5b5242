"""How far the light replica is from the engine's real core, on the same calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fleet_parts.callers import Habits, Rush, calls
from fleet_parts.figures import Prices, figures
from fleet_parts.light_replica import LightReplica
from fleet_parts.prices import EnginePrices
from fleet_parts.simulation import Fleet, FleetSettings, MakeReplica, core_replicas
from fleet_parts.sizing import listeners_in_time

COMPARED = ("first_audio_ms_p50", "first_audio_ms_p99", "utilisation", "turns_with_gap_share", "refused_share")
_FREE = Prices(0.0, 0.0)


def light_replicas(flow_group: int, decode_group: int) -> MakeReplica:
    """Replicas of the quick kind."""
    return partial(LightReplica, flow_group=flow_group, decode_group=decode_group)


def compare(
    prices: EnginePrices,
    habits: Habits,
    *,
    shares: Sequence[float],
    seconds: float,
    flow_group: int,
    decode_group: int,
    seed: int,
    n_replicas: int = 1,
) -> list[dict[str, Any]]:
    """A row for each share of what a replica could serve at most: figures of both kinds, and how far they are apart."""
    rows = []
    voices = [f"voice {k}" for k in range(habits.n_voices)]
    for share in shares:
        n_speaking = share * listeners_in_time(prices, habits.sentence_s) * n_replicas
        n_live = max(1.0, n_speaking / habits.speaking_share)
        n_calls = max(2, round(n_live * seconds / habits.call_s))
        plans = calls(habits, Rush(seconds, base=1.0).arrivals_ns(n_calls, seed), seed)
        settings = FleetSettings(prices, n_replicas, n_fronts=1, calls_per_front=100_000)
        found = {}
        for kind, make in (("core", core_replicas(voices)), ("light", light_replicas(flow_group, decode_group))):
            fleet = Fleet(settings, plans, make_replica=make)
            fleet.run()
            found[kind] = short(figures(fleet, _FREE))
        rows.append({"share": share, "calls": n_calls, **found, "apart": apart(found["core"], found["light"])})
    return rows


def short(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that are compared."""
    flat = {f"first_audio_ms_{name}": row["first_audio_ms"][name] for name in ("p50", "p99")}
    return {name: {**row, **flat}[name] for name in COMPARED}


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float | None]:
    """For each figure: how far `other` is from `one`; shares of calls and turns by their difference, others relative
    to `one`."""
    found: dict[str, float | None] = {}
    for name in COMPARED:
        a, b = one[name], other[name]
        if a is None or b is None:
            found[name] = None
        elif name.endswith("_share"):
            found[name] = round(b - a, 4)
        else:
            found[name] = round((b - a) / a, 4) if a else None
    return found
