"""Which replica speaks: the least loaded, the one that has the voice ready if that costs little, and all alike."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from telephony_tts.engines.remote.routing import AFFINITY_MARGIN, ReplicaState, choose, total_load


def name(chosen: ReplicaState | None) -> str | None:
    return None if chosen is None else chosen.name


def test_the_least_loaded_replica_speaks() -> None:
    a, b = ReplicaState("a", True, 3, 0.2), ReplicaState("b", True, 5, 0.1)
    assert name(choose([a, b], None)) == "b", "(5 + 1) * 0.1 is less than (3 + 1) * 0.2"
    assert name(choose([a, replace(b, is_ready=False)], None)) == "a"
    assert choose([replace(a, is_ready=False)], None) is None and choose([], None) is None


def test_an_unknown_cost_is_taken_for_a_typical_one() -> None:
    known, unknown = ReplicaState("known", True, 2, 0.3), ReplicaState("new", True, 0, 0.0)
    assert name(choose([known, unknown], None)) == "new"
    assert name(choose([replace(known, n_utterances=0), replace(unknown, n_utterances=1)], None)) == "known"


def test_a_replica_that_has_the_voice_ready_is_preferred_within_a_margin() -> None:
    idle = ReplicaState("idle", True, 0, 0.1)
    near = ReplicaState("near", True, 1, 0.1, ("anna",))
    assert name(choose([idle, near], "anna")) == "near"
    assert name(choose([idle, near], "ben")) == "idle"
    n_far = 1 + round(AFFINITY_MARGIN / 0.1)
    assert name(choose([idle, replace(near, n_utterances=n_far + 1)], "anna")) == "idle"


def test_the_load_of_all_is_that_of_one_listener_more() -> None:
    a, b = ReplicaState("a", True, 3, 0.25), ReplicaState("b", True, 0, 0.25)
    assert total_load([a, b]) == pytest.approx((3 + 1) * 0.25 / 2)
    assert total_load([replace(a, n_utterances=0), b]) == 0.0, "idle"
    assert total_load([a, replace(b, is_ready=False)]) == pytest.approx(1.0)
    assert total_load([replace(a, cost=0.0)]) == 0.0, "unknown"


@dataclass
class Replica:
    """A replica that speaks `rate` seconds of speech a second, shared by the sentences it has."""

    name: str
    rate: float
    left_s: list[float] = field(default_factory=list)
    given_s: float = 0.0
    busy_s: float = 0.0
    voices: tuple[str, ...] = ()

    def run(self, seconds: float) -> None:
        """Every listener takes a second of speech a second; that uses 1 / rate of the replica."""
        step_s = 0.05
        for _ in range(round(seconds / step_s)):
            share = min(1.0, self.rate / len(self.left_s)) if self.left_s else 0.0
            self.busy_s += step_s * share * len(self.left_s) / self.rate
            self.left_s = [left - step_s * share for left in self.left_s if left > step_s * share]

    def state(self) -> ReplicaState:
        return ReplicaState(self.name, True, len(self.left_s), 1 / self.rate, self.voices, self.given_s)


@pytest.mark.parametrize("rates", [(10.0, 10.0, 10.0), (20.0, 10.0, 5.0)])
@pytest.mark.parametrize("arrivals_per_s", [0.3, 1.0, 4.0])
def test_a_thousand_sentences_of_mixed_length_use_all_replicas_alike(
    rates: tuple[float, ...], arrivals_per_s: float
) -> None:
    """The utilisation is the share of a replica's work that is done. Unequal replicas are used alike under load."""
    dice = random.Random(7)
    replicas = [Replica(f"r{n}", rate) for n, rate in enumerate(rates)]
    for _ in range(1_000):
        wait_s = dice.expovariate(arrivals_per_s)
        for replica in replicas:
            replica.run(min(wait_s, 30.0))
        length_s = min(20.0, dice.lognormvariate(0.9, 0.7))
        chosen = choose([replica.state() for replica in replicas], f"voice {dice.randrange(6)}")
        (replica,) = [each for each in replicas if chosen is not None and each.name == chosen.name]
        replica.left_s.append(length_s)
        replica.given_s += length_s
    used = [replica.busy_s for replica in replicas]
    is_alike_by_design = len(set(rates)) == 1 or arrivals_per_s >= 4.0
    if is_alike_by_design:
        assert max(used) / min(used) <= (1.1 if len(set(rates)) == 1 else 1.35), used
