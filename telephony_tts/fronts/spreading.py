"""Which front should take a new connection. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from telephony_tts.transport.fronts import FrontLoad

MARGIN = 2
"""A new connection is moved if another front has so many connections less. A smaller margin would move many for
nothing."""


def better_front(own: FrontLoad, others: Mapping[str, FrontLoad], under_way: Mapping[str, int]) -> str | None:
    """The front that should take a connection in place of this one; None if this one should.

    `under_way`: how many connections this front is moving to each other one, which does not count them yet. A front
    that cannot begin calls gives every connection to one that can.
    """
    able = {name: _weight(load) + under_way.get(name, 0) for name, load in others.items() if load.is_able}
    if not able:
        return None
    name = min(able, key=lambda each: (able[each], each))
    return name if not own.is_able or able[name] + MARGIN <= _weight(own) else None


def _weight(load: FrontLoad) -> int:
    return load.n_sockets + load.n_requests
