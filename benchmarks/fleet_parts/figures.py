"""The figures of a simulated run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet_parts.simulation import Fleet, Node
from telephony_tts.bench.measures import NS_PER_S, percentile

S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for an hour: of a node with one replica, and of a node with the fronts' processes."""

    replica_hour: float
    front_hour: float
    fronts_per_node: int = 8


@dataclass(frozen=True, slots=True)
class Targets:
    """What a fleet must reach: shares of the calls refused and of the turns with a gap, and first audio at p99."""

    refused: float = 0.001
    with_gap: float = 0.005
    first_audio_p99_ms: float = 500.0

    def missed_by(self, row: dict[str, Any]) -> list[str]:
        """The names of the figures of a run that miss their target."""
        found = {
            "refused_share": row["refused_share"] <= self.refused,
            "turns_with_gap_share": row["turns_with_gap_share"] <= self.with_gap,
            "first_audio_ms.p99": (row["first_audio_ms"]["p99"] or 0) <= self.first_audio_p99_ms,
            "turns_failed": not row["turns_failed"],
        }
        return [name for name, is_met in found.items() if not is_met]


def figures(fleet: Fleet, prices: Prices) -> dict[str, Any]:
    """Of a run that is over. Utilisation: time of computing ÷ time since the replica was ready."""
    record, now_ns = fleet.record, fleet.events.now_ns
    used = [(node, _utilisation(node, now_ns)) for node in fleet.nodes]
    whole = [share for node, share in used if _lived_through(node) and not node.is_canary and share is not None]
    replica_h = sum((node.gone_ns or now_ns) - node.ordered_ns for node in fleet.nodes) / NS_PER_S / S_PER_HOUR
    n_front_nodes = -(-fleet.settings.n_fronts // prices.fronts_per_node)
    front_h = n_front_nodes * now_ns / NS_PER_S / S_PER_HOUR
    call_h = record.call_ns / NS_PER_S / S_PER_HOUR
    money = replica_h * prices.replica_hour + front_h * prices.front_hour
    busy_s = sum(node.replica.busy_ns for node in fleet.nodes) / NS_PER_S
    ready_s = sum(_ready_ns(node, now_ns) for node in fleet.nodes) / NS_PER_S
    row: dict[str, Any] = {
        "calls": record.n_calls,
        "refused": len(record.refused),
        "refused_share": _share(len(record.refused), record.n_calls),
        "sentences_begun_overloaded": record.n_overloaded,
        "refused_why": dict(Counter(_reason(why) for _, why in record.refused)),
        "live_calls_peak": max(sample[1] for sample in record.samples),
        "sentences_under_way_peak": max(sample[2] for sample in record.samples),
        "turns": record.n_turns,
        "turns_failed": record.n_turns_failed,
        "turns_interrupted": record.n_turns_interrupted,
        "turns_with_gap_share": _share(record.n_turns_with_gap, record.n_turns),
        "gaps": len(record.gaps),
        "gap_ms_max": round(max((ms for _, ms in record.gaps), default=0.0), 1),
        "sentences": record.n_sentences,
        "speech_s": round(record.speech_ns / NS_PER_S, 1),
        "first_audio_ms": spread([ms for _, ms, _ in record.first_audio]),
        "moved": record.n_moves,
        "moved_silence_ms": spread([ms for _, ms in record.moved]),
        "timeouts": record.n_timeouts,
        "repeated_s": round(record.repeated_ns / NS_PER_S, 2),
        "replicas_at_start": fleet.settings.n_replicas,
        "replicas_peak": max(sample[3] for sample in record.samples),
        "replica_hours": round(replica_h, 3),
        "front_hours": round(front_h, 3),
        "call_hours": round(call_h, 3),
        "cost": round(money, 2),
        "cost_per_call_hour": _ratio(money, call_h),
        "utilisation": _ratio(busy_s, ready_s),
        "utilisation_of_whole_lives": {
            "n": len(whole),
            "least": min(whole, default=None),
            "most": max(whole, default=None),
        },
        "simulated_s": round(now_ns / NS_PER_S, 1),
        "events": fleet.events.n_done,
    }
    if fleet.settings.canary is not None:
        row["canary"] = {
            name: spread([ms for _, ms, of_canary in record.first_audio if of_canary == is_canary])
            for name, is_canary in (("canary", True), ("others", False))
        }
    return row


def spread(values: Sequence[float]) -> dict[str, Any]:
    """n, p50, p95, p99 and max by nearest rank; None without values."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    found = {name: percentile(values, share) for name, share in shares.items()}
    return {"n": len(values), **{name: None if value is None else round(value, 1) for name, value in found.items()}}


def _lived_through(node: Node) -> bool:
    """Whether the replica was ready from the beginning to the end."""
    return node.ready_ns == 0 and node.gone_ns is None and node.died_ns is None


def _ready_ns(node: Node, now_ns: int) -> int:
    if node.ready_ns is None:
        return 0
    end_ns = node.died_ns or node.gone_ns or now_ns
    return max(0, end_ns - node.ready_ns)


def _utilisation(node: Node, now_ns: int) -> float | None:
    ready_ns = _ready_ns(node, now_ns)
    return round(node.replica.busy_ns / ready_ns, 4) if ready_ns else None


def _reason(why: str) -> str:
    """The kind of a refusal, without its numbers."""
    if "no engine" in why:
        return "no replica ready"
    if "calls are live" in why:
        return "limit of calls"
    return "engine overloaded" if "as much to say" in why else "queue"


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
