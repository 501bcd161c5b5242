"""Who is served next: pure decisions about what streams need, whose listener runs dry first, and which slot is whose.

Earliest deadline first. A stream's deadline is the moment at which its listener hears silence if nothing more comes:
for one not heard yet that is when its text was wanted, so first audio comes before all that is merely ahead; for the
others the end of the audio they were given. Nobody works further ahead than `Ahead` allows, so a deadline that is not
met grows older than all others and is the next one served: no stream starves.

    lanes    threads that make steps. One lane does everything; of two, one draws speech ids and the other makes sound,
             and either does the other's work when it has none. A step of a lane is one batch of one stage, or of every
             stage where a device computes all of them for about the price of one (`Widths.all_stages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from telephony_tts.clock import NS_PER_MS


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
    """Something that could be done for stream `key` now. `due_ns`: when its listener hears silence."""

    key: int
    stage: Stage
    due_ns: int


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


def plan(needs: Iterable[Need], lane: Lane, widths: Widths) -> Plan:
    """The next step of a lane; empty where nothing is needed.

    Of one stream what is furthest on its way comes first: it is heard soonest.
    """
    queue = sorted(needs, key=lambda need: (need.due_ns, need.key, -need.stage))
    if widths.all_stages:
        batches = {stage: _keys(queue, stage, widths) for stage in Stage}
        return {stage: keys for stage, keys in batches.items() if keys}
    own = [need for need in queue if need.stage in lane.value]
    for need in own or queue:
        return {need.stage: _keys(queue, need.stage, widths)}
    return {}


def _keys(queue: Sequence[Need], stage: Stage, widths: Widths) -> tuple[int, ...]:
    keys = dict.fromkeys(need.key for need in queue if need.stage == stage)
    return tuple(keys)[: widths.of(stage)]


def expected_late_ns(due_ns: Iterable[int], cost_ns: int, now_ns: int) -> int:
    """How late the latest of these streams would be heard if each takes the engine `cost_ns`, earliest deadline first.

    The last of the queue waits for all before it; where no order keeps every deadline, this one keeps the worst delay
    least (Jackson 1955)."""
    late, at = 0, now_ns
    for due in sorted(due_ns):
        at += cost_ns
        late = max(late, at - due)
    return late


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
