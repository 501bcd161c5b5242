"""What fronts know of each other, which of them takes a connection, and when one is started again."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from telephony_tts.fronts.loads import SILENT_NS, Loads, name_of, parts_of
from telephony_tts.fronts.restarts import PAUSES_S, STEADY_NS, RestartPauses
from telephony_tts.fronts.spreading import MARGIN, better_front
from telephony_tts.runtime.clock import NS_PER_S
from telephony_tts.transport.fronts import FrontLoad

FULL = FrontLoad(1, 2, 3, 4, True, True, True)


def test_a_slot_is_read_by_all_and_has_every_field(tmp_path: Path) -> None:
    assert len(fields(FrontLoad)) == 7 and all(getattr(FULL, field.name) for field in fields(FrontLoad))
    one, other = Loads(tmp_path / "loads", 3, create=True), Loads(tmp_path / "loads", 3)
    one.begin(2, 7)
    one.write(2, FULL, 1000)
    assert other.read(2, 1000) == FULL and list(other.names()) == ["2.7"] and other.generation(2) == 7
    assert other.read(1, 1000) == FrontLoad(is_draining=True), "no front runs there"
    one.clear(2)
    assert other.generation(2) == 0 and list(other.names()) == [] and other.read(2, 1000).n_calls == 0
    one.close()
    other.close()


def test_a_front_that_hangs_is_not_able(tmp_path: Path) -> None:
    loads = Loads(tmp_path / "loads", 1, create=True)
    loads.begin(0, 1)
    loads.write(0, FULL, 5)
    assert NS_PER_S // 5 < SILENT_NS < NS_PER_S // 2, "more than two of its writes, and not long to a caller"
    assert loads.read(0, 5 + SILENT_NS).is_able and not loads.read(0, 6 + SILENT_NS).is_able
    assert loads.read(0, 6 + SILENT_NS).n_calls == 1, "its calls still count"
    loads.close()


def test_names_have_their_parts() -> None:
    assert name_of(3, 14) == "3.14" and parts_of("3.14") == (3, 14)
    for bad in ("", "3", "3.", ".1", "3.-1", "x.1", "3.1.2", "../x"):
        with pytest.raises(ValueError, match="names no front"):
            parts_of(bad)


def able(n_sockets: int, n_requests: int = 0) -> FrontLoad:
    return FrontLoad(n_sockets=n_sockets, n_requests=n_requests, is_able=True)


def test_a_connection_stays_unless_another_front_has_clearly_less() -> None:
    assert better_front(able(5), {}, {}) is None
    assert better_front(able(5), {"1.1": able(5 - MARGIN + 1)}, {}) is None
    assert better_front(able(5), {"1.1": able(5 - MARGIN)}, {}) == "1.1"
    assert better_front(able(5), {"1.1": able(2), "2.1": able(1), "3.1": able(4)}, {}) == "2.1"
    assert better_front(able(2, 3), {"1.1": able(0, 3)}, {}) == "1.1", "HTTP requests count as well"


def test_connections_that_are_on_their_way_count() -> None:
    assert better_front(able(5), {"1.1": able(2), "2.1": able(3)}, {"1.1": 1}) == "1.1"
    assert better_front(able(5), {"1.1": able(2), "2.1": able(3)}, {"1.1": 2}) == "2.1"
    assert better_front(able(5), {"1.1": able(2)}, {"1.1": 2}) is None


def test_a_front_that_cannot_begin_calls_gets_none_and_keeps_none() -> None:
    unable = FrontLoad(n_sockets=0)
    assert better_front(able(9), {"1.1": unable}, {}) is None
    assert better_front(unable, {"1.1": able(50), "2.1": able(40)}, {}) == "2.1"
    assert better_front(unable, {"1.1": unable}, {}) is None, "then it refuses by itself"


def test_spreading_a_burst_that_one_front_accepts() -> None:
    """One front accepts everything, as it can happen: the fronts end up even."""
    own, others, under_way = 0, {"1.1": 0, "2.1": 0}, {"1.1": 0, "2.1": 0}
    for _ in range(300):
        to = better_front(able(own), {name: able(n) for name, n in others.items()}, under_way)
        if to is None:
            own += 1
        else:
            under_way[to] += 1
            if under_way[to] == 5:  # they arrive, and are counted there
                others[to] += under_way[to]
                under_way[to] = 0
    counts = [own, *(others[name] + under_way[name] for name in others)]
    assert sum(counts) == 300 and max(counts) - min(counts) <= MARGIN


def test_a_front_that_ends_again_and_again_is_started_after_longer_pauses() -> None:
    pauses = RestartPauses()
    assert [pauses.after(NS_PER_S) for _ in range(8)] == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert pauses.after(STEADY_NS) == PAUSES_S[0] and pauses.after(0) == PAUSES_S[1]
