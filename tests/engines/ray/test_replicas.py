"""The table of replicas, the choice of a model, and the number of replicas for a load. All pure."""

from __future__ import annotations

import pytest

from telephony_tts.engines.ray.autoscaling import replica_load, wanted_replicas
from telephony_tts.engines.ray.replicas import EXPIRY_NS, SETTLE_NS, ReplicaEntry, ReplicaTable, usable
from telephony_tts.runtime.clock import NS_PER_S


def entry(name: str, model: str = "m1") -> ReplicaEntry:
    return ReplicaEntry(name, f"10.0.0.1:{len(name)}", "secret", "fake", model)


def test_a_new_table_says_nothing_until_the_replicas_had_time_to_announce_themselves() -> None:
    table = ReplicaTable(0)
    table.announce(entry("a"), 1)
    assert table.current(SETTLE_NS - 1) is None
    assert table.current(SETTLE_NS) == [entry("a")]


def test_a_replica_that_is_silent_is_forgotten_and_the_version_says_so() -> None:
    table = ReplicaTable(-SETTLE_NS)
    table.announce(entry("a"), 0)
    table.announce(entry("b"), 0)
    version = table.version
    table.announce(entry("a"), NS_PER_S)
    assert table.version == version, "nothing new"
    assert table.current(EXPIRY_NS) == [entry("a"), entry("b")]
    assert table.current(EXPIRY_NS + 1) == [entry("a")] and table.version > version
    version = table.version
    table.leave("a")
    table.leave("a")
    assert table.current(EXPIRY_NS + 1) == [] and table.version == version + 1


def test_a_replica_that_moved_is_news() -> None:
    table = ReplicaTable(-SETTLE_NS)
    table.announce(entry("a"), 0)
    version = table.version
    table.announce(ReplicaEntry("a", "10.0.0.2:1", "other", "fake", "m1"), 1)
    assert table.version == version + 1


def test_only_replicas_with_one_model_are_used() -> None:
    old, new = [entry("a"), entry("b")], [entry("c", "m2")]
    assert usable(old + new, None) == (old, new)
    assert usable(old + new, "m2") == (new, old)
    assert usable(old + new, "m3") == ([], old + new)
    assert usable([old[0], new[0]], None) == ([old[0]], [new[0]]), "the first of equals"
    assert usable([], None) == ([], [])


@pytest.mark.parametrize("plain", [None, [], {}, {**entry("a").plain(), "token": 7}])
def test_an_entry_that_is_none_is_refused(plain: object) -> None:
    with pytest.raises(ValueError):
        ReplicaEntry.of(plain)
    assert ReplicaEntry.of(entry("a").plain()) == entry("a")


def test_the_number_of_replicas_brings_the_mean_load_to_the_target() -> None:
    assert wanted_replicas([], 3, 0.7) == 3, "nothing is known yet"
    assert wanted_replicas([0.0, 0.0], 2, 0.7) == 1
    assert wanted_replicas([0.7, 0.7], 2, 0.7) == 2, "the target itself is no reason for more"
    assert wanted_replicas([0.71, 0.7], 2, 0.7) == 3
    assert wanted_replicas([2.0], 1, 0.5) == 4


def test_without_a_load_of_its_own_the_utterances_count() -> None:
    assert replica_load(0.0, 8, 16) == 0.5
    assert replica_load(0.9, 8, 16) == 0.9
