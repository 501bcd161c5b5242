"""Which replica of an engine speaks the next sentence. Pure.

The measure is our own: the utterances that a replica has, and one more, times what one costs it (`EngineStats.load`).
A replica that has the voice ready is preferred while that costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AFFINITY_MARGIN = 0.15
"""A replica that has the voice ready may have so much more load than the least loaded one."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as one front sees it.

    `n_utterances`: those of all fronts. `cost`: the load of one utterance, 0 if unknown. `recent_voices`: those that it
    has ready. `given_s`: how much speech this front gave it lately, in seconds.
    """

    name: str
    is_ready: bool = True
    n_utterances: int = 0
    cost: float = 0.0
    recent_voices: tuple[str, ...] = ()
    given_s: float = 0.0


def load(replica: ReplicaState, typical_cost: float) -> float:
    """The load with one utterance more. `typical_cost` stands for a cost that is unknown."""
    return (replica.n_utterances + 1) * (replica.cost or typical_cost)


def choose(replicas: Sequence[ReplicaState], voice: str | None) -> ReplicaState | None:
    """The replica that speaks a sentence with `voice`. None if no replica is ready.

    Among equal loads it is the one that was given the least speech lately, so that all are used alike.
    """
    ready = [replica for replica in replicas if replica.is_ready]
    if not ready:
        return None
    typical = _typical_cost(ready)
    least = min(load(replica, typical) for replica in ready)
    if voice is not None:
        near = [r for r in ready if voice in r.recent_voices and load(r, typical) <= least + AFFINITY_MARGIN]
        if near:
            return min(near, key=lambda replica: (load(replica, typical), replica.given_s))
    return min(ready, key=lambda replica: (load(replica, typical), replica.given_s))


def total_load(replicas: Sequence[ReplicaState]) -> float:
    """The load of all ready replicas together with one utterance more: see `EngineStats.load`."""
    ready = [replica for replica in replicas if replica.is_ready]
    n_utterances = sum(replica.n_utterances for replica in ready)
    if not n_utterances:
        return 0.0
    typical = _known_cost(ready)
    if not typical:
        return 0.0
    return (n_utterances + 1) / sum(1 / (replica.cost or typical) for replica in ready)


def _known_cost(ready: Sequence[ReplicaState]) -> float:
    known = [replica.cost for replica in ready if replica.cost]
    return sum(known) / len(known) if known else 0.0


def _typical_cost(ready: Sequence[ReplicaState]) -> float:
    """Above 0. Small where no cost is known, so that affinity may prefer a replica with a few utterances more."""
    return _known_cost(ready) or AFFINITY_MARGIN / 2
