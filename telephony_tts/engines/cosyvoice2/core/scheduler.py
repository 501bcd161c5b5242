"""Who is served next: pure decisions about what streams need, whose listener runs dry first, and which slot is whose.

Earliest deadline first. A stream's deadline is the moment at which its listener hears silence if nothing more comes:
for one not heard yet that is when its text was wanted, so first audio comes before all that is merely ahead; for the
others the end of the audio they were given. Where somebody who is being heard would run dry before he could be served
again, newcomers are due later, by `PATIENCE_NS` (`newcomers_due_later_ns`). Nobody works further ahead than `Ahead`
allows, so a deadline that is not met grows older than all others and is the next one served: no stream starves.

    lanes    threads that make steps. One lane does everything; of two, one draws speech ids and the other makes sound,
             and either does the other's work when it has none. A step of a lane is one batch of one stage, or of every
             stage where a device computes all of them for about the price of one (`Widths.all_stages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from telephony_tts.clock import NS_PER_MS

PATIENCE_NS = 1000 * NS_PER_MS
"""How much later newcomers are due while others would run dry."""
MARGIN_NS = 200 * NS_PER_MS
"""Served again so long before running dry: a batch that is under way is not broken off, and may be a slow one."""


class Stage(IntEnum):
    """What a stream can need, in the order in which text becomes sound."""

    PREFILL = 0
    DECODE = 1
    FLOW = 2
    VOCODE = 3


class Lane(Enum):
    """What a lane prefers to do."""

    ALL = (Stage.VOCODE, Stage.FLOW, Stage.DECODE, Stage.PREFILL)
    WORDS = (Stage.DECODE, Stage.PREFILL)
    SOUND = (Stage.VOCODE, Stage.FLOW)


def lanes(n: int) -> list[Lane]:
    """The work of `n` lanes, shared out. Raises ValueError for none."""
    if n < 1:
        raise ValueError("a lane is needed")
    return [Lane.ALL] if n == 1 else [Lane.WORDS, *[Lane.SOUND] * (n - 1)]


@dataclass(frozen=True, slots=True)
class Need:
    """Something that could be done for stream `key` now. `due_ns`: when its listener hears silence. `can_wait`: its
    next audio comes as soon without it. `is_new`: whoever asked for it hears nothing yet."""

    key: int
    stage: Stage
    due_ns: int
    can_wait: bool = False
    is_new: bool = False


class Price(NamedTuple):
    """What a batch of a stage takes, lately, and what that is for each of its rows."""

    batch_ns: float = 0.0
    row_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Owed:
    """What is to be done until a listener, who hears silence from `due_ns`, gets more: batches by stage."""

    due_ns: int
    n_batches: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Widths:
    """Rows of a batch, by stage, and whether a step takes all stages at once."""

    prefill: int = 1
    decode: int = 4
    flow: int = 1
    vocode: int = 1
    all_stages: bool = False

    def of(self, stage: Stage) -> int:
        return (self.prefill, self.decode, self.flow, self.vocode)[stage]


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far a stream may work ahead of its listener, who may turn away at any moment.

    `audio_ms`: made and not taken, beyond the blocks that were begun before it was as much; `n_tokens`: drawn and not
    yet on their way through the flow, beyond the block that is next."""

    audio_ms: int = 2000
    n_tokens: int = 25

    def __post_init__(self) -> None:
        """Raises ValueError where nothing could ever be begun."""
        if self.audio_ms < 1 or self.n_tokens < 0:
            raise ValueError("a stream that may not work ahead at all never begins: at least 1 ms and 0 tokens")


Plan = Mapping[Stage, tuple[int, ...]]
"""Keys of the streams to serve, most urgent first."""


def newcomers_due_later_ns(owed: Iterable[Owed], prices: Mapping[Stage, Price], now_ns: int) -> int:
    """How much later than they asked those are due whom nobody hears yet.

    Nothing, while all who are heard could be served in time one after the other, earliest deadline first, even if it
    were begun only `MARGIN_NS` from now. Else they wait for those who run dry less than `PATIENCE_NS` after they asked:
    otherwise one who asks again and again would take all he can use, and more than there is."""
    price = [prices.get(stage, Price()) for stage in Stage]
    free_ns = float(now_ns + MARGIN_NS)
    served_ns = free_ns
    for each in sorted(owed, key=lambda each: each.due_ns):
        # Rows of others may share its batches; itself it goes through one batch after the other.
        served_ns += sum(n * price[stage].row_ns for stage, n in enumerate(each.n_batches))
        alone_ns = sum(n * price[stage].batch_ns for stage, n in enumerate(each.n_batches))
        if max(served_ns, free_ns + alone_ns) > each.due_ns:
            return PATIENCE_NS
    return 0


def plan(needs: Iterable[Need], lane: Lane, widths: Widths, n_drawing: int = 0, newcomers_wait_ns: int = 0) -> Plan:
    """The next step of a lane; empty where nothing is needed. `n_drawing`: streams whose ids are not all drawn;
    `newcomers_wait_ns`: so much later are those due who are not heard yet.

    Of one stream what is furthest on its way comes first: it is heard soonest. Ids of which all can wait are drawn when
    as many streams as possible are together, or the lane has nothing else to do: a batch costs little more than a row.
    """
    later_ns = (0, newcomers_wait_ns)
    queue = sorted(needs, key=lambda need: (need.due_ns + later_ns[need.is_new], need.key, -need.stage))
    if widths.all_stages:
        batches = {stage: _keys(queue, stage, widths) for stage in Stage}
        return {stage: keys for stage, keys in batches.items() if keys}
    words = [need for need in queue if need.stage is Stage.DECODE]
    if all(need.can_wait for need in words) and len({need.key for need in words}) < min(n_drawing, widths.decode):
        queue = [need for need in queue if need.stage is not Stage.DECODE] or queue
    own = [need for need in queue if need.stage in lane.value]
    for need in own or queue:
        return {need.stage: _keys(queue, need.stage, widths)}
    return {}


def _keys(queue: Sequence[Need], stage: Stage, widths: Widths) -> tuple[int, ...]:
    keys = dict.fromkeys(need.key for need in queue if need.stage == stage)
    return tuple(keys)[: widths.of(stage)]


class Slots:
    """The language model's slots, each had by one stream at a time, lowest first.

    Text that is still being written may have only half of them: it holds its slot while its bot thinks, and whole
    sentences of other calls must not wait for that.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError("a slot is needed")
        self.n = n
        self._free = set(range(n))
        self._growing: set[int] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    def acquire(self, growing: bool = False) -> int | None:
        """A free slot, or None."""
        if not self._free or (growing and len(self._growing) >= self.n // 2):
            return None
        slot = min(self._free)
        self._free.remove(slot)
        if growing:
            self._growing.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give it back. Raises ValueError for one that is not taken."""
        if not 0 <= slot < self.n or slot in self._free:
            raise ValueError(f"slot {slot} is not taken")
        self._growing.discard(slot)
        self._free.add(slot)


def due_after_ns(first_ns: int, n_samples: int, sample_rate_hz: int) -> int:
    """When audio that began to be heard at `first_ns` is over."""
    return first_ns + n_samples * 1000 * NS_PER_MS // sample_rate_hz
