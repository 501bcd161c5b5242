"""When frames of sound came: where speech begins, and the gaps without frames. Pure; nanoseconds of one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from telephony_tts.audio.g711 import ULAW_SILENCE, decode_ulaw
from telephony_tts.bench.measures import NS_PER_MS

if TYPE_CHECKING:
    from harness.pbx_peers import Standstills

LOUD_DBFS = -45.0
"""A window above this RMS level is heard as speech."""
_WINDOW = 40
"""Samples of a window: 5 ms."""


class Packet(Protocol):
    """A frame of μ-law with the time at which it came."""

    @property
    def arrival_ns(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing came to one telephone."""

    phone: int
    begin_ns: int
    end_ns: int

    @property
    def ms(self) -> float:
        return (self.end_ns - self.begin_ns) / NS_PER_MS


def loud_windows(codes: bytes) -> NDArray[np.bool_]:
    """For each whole 5 ms of these μ-law bytes: whether its RMS level is above `LOUD_DBFS`."""
    samples = decode_ulaw(codes[: len(codes) // _WINDOW * _WINDOW]).astype(np.float64).reshape(-1, _WINDOW)
    levels = np.sqrt((samples**2).mean(axis=1)) / 32768
    loud: NDArray[np.bool_] = levels > 10 ** (LOUD_DBFS / 20)
    return loud


def is_speech(codes: bytes) -> bool:
    """Whether any 5 ms of these μ-law bytes are loud enough to be heard."""
    return bool(loud_windows(codes).any())


def is_sound(codes: bytes) -> bool:
    """Whether these μ-law bytes are anything but the silence that fills pauses."""
    return codes.strip(ULAW_SILENCE) != b""


def first_ns(packets: Iterable[Packet], since_ns: int, wanted: Callable[[bytes], bool]) -> int | None:
    """The earliest arrival from `since_ns` on of a packet whose payload is wanted; None if there is no such packet."""
    came = (one.arrival_ns for one in packets if one.arrival_ns >= since_ns and wanted(one.payload))
    return min(came, default=None)


def gaps(phone: int, arrivals_ns: Sequence[int], begin_ns: int, end_ns: int) -> list[Gap]:
    """The gaps between arrivals within a time. Its ends count as arrivals, so no arrival at all is one long gap."""
    inside = sorted(at_ns for at_ns in arrivals_ns if begin_ns < at_ns < end_ns)
    return [Gap(phone, one_ns, next_ns) for one_ns, next_ns in pairwise([begin_ns, *inside, end_ns])]


def n_moments(found: Iterable[Gap]) -> int:
    """The number of moments with a gap: overlapping gaps of several telephones are one moment."""
    n = 0
    until_ns: int | None = None
    for gap in sorted(found, key=lambda gap: gap.begin_ns):
        if until_ns is None or gap.begin_ns >= until_ns:
            n += 1
        until_ns = max(gap.end_ns, until_ns or gap.end_ns)
    return n


# -------------------------------------------------------------------- standstills of the machine


def standstills(machine: Standstills, begin_ns: int, end_ns: int) -> dict[str, Any]:
    """The standstills that touch a time, each counted with its whole length. Only `exact` is given if the witnesses
    run without real-time priority, for then their figures mean nothing."""
    if not machine.is_exact:
        return {"exact": False}
    seen_ms = [
        (one.end_ns - one.begin_ns) / NS_PER_MS
        for one in machine.list()
        if one.end_ns > begin_ns and one.begin_ns < end_ns
    ]
    return {
        "exact": True,
        **{f"over_{least_ms}_ms": sum(ms > least_ms for ms in seen_ms) for least_ms in (5, 10, 20, 40)},
        "longest_ms": round(max(seen_ms, default=0.0), 1),
        "share": round(machine.within(begin_ns, end_ns) / (end_ns - begin_ns), 5),
    }


def due_to_standstills(times_ns: Sequence[tuple[int, int]], limit_ms: float, machine: Standstills) -> dict[str, Any]:
    """How many of these times, which are all longer than the limit, are due to standstills of the machine.

    `overlapping_...`: the machine stood still for a part of the time. `over_without_...`: the time is longer than the
    limit even without its standstills. Both are None if the witnesses could not tell.
    """
    if not machine.is_exact:
        return {"overlapping_a_standstill": None, "over_without_the_standstill": None}
    still_ns = [machine.within(begin_ns, end_ns) for begin_ns, end_ns in times_ns]
    limit_ns = limit_ms * NS_PER_MS
    return {
        "overlapping_a_standstill": sum(ns > 0 for ns in still_ns),
        "over_without_the_standstill": sum(
            end_ns - begin_ns - ns > limit_ns for (begin_ns, end_ns), ns in zip(times_ns, still_ns, strict=True)
        ),
    }
