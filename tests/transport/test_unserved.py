"""Who loses its connection when too many have no request that is served."""

from __future__ import annotations

import asyncio

import pytest

from telephony_tts.transport.unserved import UnservedConnections


class Door:
    """`most` places. A connection is named by its host and a number. `dropped` has those that were dropped."""

    def __init__(self, most: int) -> None:
        self.places = UnservedConnections(most)
        self.dropped: list[str] = []

    def come(self, host: str, *numbers: int) -> None:
        for number in numbers:
            name = f"{host} {number}"
            self.places.add(name, host, lambda name=name: self.dropped.append(name))


def test_one_more_drops_the_oldest() -> None:
    door = Door(3)
    door.come("10.0.0.1", 1, 2, 3)
    assert door.dropped == []
    door.come("10.0.0.1", 4, 5)
    assert door.dropped == ["10.0.0.1 1", "10.0.0.1 2"]


def test_a_crowd_from_one_address_drops_only_its_own() -> None:
    door = Door(4)
    door.come("10.0.0.9", 0)
    door.come("10.0.0.1", *range(100))
    door.come("10.0.0.8", 0)
    assert not [name for name in door.dropped if not name.startswith("10.0.0.1 ")]
    assert len(door.dropped) == 98


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    door = Door(4)
    door.come("2001:db8:0:2::7", 0)
    for n in range(100):
        door.come(f"2001:db8:0:1::{n:x}", n)
    assert len(door.dropped) == 97 and not any("0:2::" in name for name in door.dropped)
    door.come("fe80::1%eth0", 0)
    assert door.dropped[-1].startswith("2001:db8:0:1::")


def test_one_that_has_left_is_not_dropped_and_leaves_its_place() -> None:
    door = Door(2)
    door.come("10.0.0.1", 1, 2)
    door.places.remove("10.0.0.1 1")
    door.places.remove("10.0.0.1 1")
    door.come("10.0.0.1", 3)
    assert door.dropped == []
    door.come("", 4)
    assert door.dropped == ["10.0.0.1 2"]


def test_one_that_leaves_while_it_is_dropped() -> None:
    places = UnservedConnections(1)
    places.add("first", "10.0.0.1", lambda: places.remove("first"))
    places.add("second", "10.0.0.1", lambda: places.remove("second"))
    places.drop_all()
    places.add("third", "10.0.0.1", lambda: pytest.fail("it has a place"))


def test_all_are_dropped_at_the_end() -> None:
    door = Door(9)
    door.come("10.0.0.1", 1, 2)
    door.come("10.0.0.2", 1)
    door.places.drop_all()
    door.places.drop_all()
    assert door.dropped == ["10.0.0.1 1", "10.0.0.1 2", "10.0.0.2 1"]


def test_refused_clients_wait_for_each_other() -> None:
    async def use() -> None:
        places = UnservedConnections(9)
        waits_s = [places.until_piece_s() for _ in range(10)]
        assert waits_s[0] == pytest.approx(0.001) and waits_s[-1] == pytest.approx(0.010, abs=0.002)

    asyncio.run(use())
