"""Which stream is served next, and which stream has which slot: pure decisions.

The order is earliest deadline first. A stream's deadline is when its listener hears silence if nothing more comes:

- for a new stream, which is not heard yet: the deadline of its utterance. So first audio precedes audio made ahead.
- for an active stream, the end of the audio that it was given.

If an active stream would underrun otherwise, the deadlines of new streams move back by `NEW_STREAM_DELAY_NS`. No stream
works further ahead than `AheadLimits`. So a missed deadline becomes the oldest one and is served: no stream starves.

A lane is a thread that makes steps. A single lane does all stages. With several, the first draws speech ids and the
others make audio; each does the other stages when it has no work of its own. A step is one batch of one stage. It is
one batch of every stage if a device computes them all for about the price of one (`BatchSizes.all_stages`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import accumulate
from typing import NamedTuple

from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.runtime.clock import NS_PER_MS

NEW_STREAM_DELAY_NS = 1000 * NS_PER_MS
"""How much later new streams are due while an active stream would underrun."""
UNDERRUN_MARGIN_NS = 200 * NS_PER_MS
"""Active streams are served this long before they underrun: a batch is never interrupted, and may be a slow one."""


class Stage(IntEnum):
    """What can be computed for a stream, in the order from text to audio."""

    PREFILL = 0
    DECODE = 1
    FLOW = 2
    VOCODE = 3


class Lane(Enum):
    """The stages that a lane prefers."""

    ALL = (Stage.VOCODE, Stage.FLOW, Stage.DECODE, Stage.PREFILL)
    TOKENS = (Stage.DECODE, Stage.PREFILL)
    AUDIO = (Stage.VOCODE, Stage.FLOW)


def lanes(n: int) -> list[Lane]:
    """What each of `n` lanes prefers. Raises ValueError if `n` is below 1."""
    if n < 1:
        raise ValueError(f"the engine needs at least one lane, not {n}")
    return [Lane.ALL] if n == 1 else [Lane.TOKENS, *[Lane.AUDIO] * (n - 1)]


@dataclass(frozen=True, slots=True)
class Need:
    """A stage that could be computed for stream `key` now."""

    key: int
    stage: Stage
    due_ns: int
    """When the listener hears silence if it is not computed."""
    can_wait: bool = False
    """The next audio of the stream does not depend on it."""
    is_new: bool = False
    """The stream is not heard yet."""


class BatchCost(NamedTuple):
    """Recent mean time of a stage's batches, and of each of their rows."""

    batch_ns: float = 0.0
    row_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The batches of each stage until an active stream gets more audio. `due_ns`: when it underruns."""

    due_ns: int
    n_batches: tuple[int, int, int, float]
    """A decode batch counts as one for each id that it draws. Of the vocoder it is a part of one, if the next audio is
    less than that of a block."""


Plan = Mapping[Stage, tuple[int, ...]]
"""Keys of the streams to serve in each stage, most urgent first."""


def new_stream_delay_ns(pending: Iterable[PendingWork], costs: Mapping[Stage, BatchCost], now_ns: int) -> int:
    """By how much the deadlines of new streams move back: 0 or `NEW_STREAM_DELAY_NS`.

    It is 0 if all active streams could be served in time, one after the other by deadline, starting
    `UNDERRUN_MARGIN_NS` from now. A limited delay keeps both kinds apart: without one, a caller that asks again and
    again would take all of the engine.
    """
    cost = [costs.get(stage, BatchCost()) for stage in Stage]
    begin_ns = float(now_ns + UNDERRUN_MARGIN_NS)
    served_ns = begin_ns
    for work in sorted(pending, key=lambda work: work.due_ns):
        # Streams share batches, so they cost rows. One stream goes through its own batches one after the other.
        served_ns += sum(n * cost[stage].row_ns for stage, n in enumerate(work.n_batches))
        alone_ns = sum(n * cost[stage].batch_ns for stage, n in enumerate(work.n_batches))
        if max(served_ns, begin_ns + alone_ns) > work.due_ns:
            return NEW_STREAM_DELAY_NS
    return 0


class OwedWork:
    """The pending work of all active streams, to be asked many times."""

    def __init__(self, works: Iterable[PendingWork], costs: Mapping[Stage, BatchCost]) -> None:
        self._cost = [costs.get(stage, BatchCost()) for stage in Stage]
        by_due = sorted(works, key=lambda work: work.due_ns)
        self._due_ns = [work.due_ns for work in by_due]
        self._sums_ns = list(accumulate((self._rows_ns(work) for work in by_due), initial=0.0))

    def time_to_audio_ns(self, own: PendingWork, due_ns: int, n_lanes: int) -> float:
        """The time until a stream gets its next audio, if that is due at `due_ns`. `own` is among the works.

        Its own batches run one after the other. Work of the others that is due before takes its share of the lanes.
        """
        rows_ns = self._sums_ns[bisect_right(self._due_ns, due_ns)]
        if own.due_ns > due_ns:
            rows_ns += self._rows_ns(own)
        alone_ns = sum(n * cost.batch_ns for n, cost in zip(own.n_batches, self._cost, strict=True))
        return max(rows_ns / n_lanes, alone_ns)

    def _rows_ns(self, work: PendingWork) -> float:
        return sum(n * cost.row_ns for n, cost in zip(work.n_batches, self._cost, strict=True))


def plan(needs: Iterable[Need], lane: Lane, sizes: BatchSizes, n_drawing: int = 0, new_delay_ns: int = 0) -> Plan:
    """The next step of a lane; empty if nothing is needed.

    `n_drawing`: streams whose ids are not all drawn. `new_delay_ns`: how much later new streams are due.

    The later stage of a stream comes first, because it is heard sooner. A decode step that can wait for all its streams
    waits until it has as many of them as possible, or the lane has no other work: a row costs little in a batch. Where
    prompts are fed together, those of new streams are fed before the ids of a new stream are drawn: all then share the
    steps that follow, and no listener waits for the ones before.
    """
    delay_ns = (0, new_delay_ns)
    queue = sorted(needs, key=lambda need: (need.due_ns + delay_ns[need.is_new], need.key, -need.stage))
    if sizes.all_stages:
        batches = {stage: _batch(queue, stage, sizes) for stage in Stage}
        return {stage: keys for stage, keys in batches.items() if keys}
    decode = [need for need in queue if need.stage is Stage.DECODE]
    if all(need.can_wait for need in decode) and len({need.key for need in decode}) < min(n_drawing, sizes.decode):
        queue = [need for need in queue if need.stage is not Stage.DECODE] or queue
    preferred = [need for need in queue if need.stage in lane.value] or queue
    if not preferred:
        return {}
    stage = preferred[0].stage
    if stage is Stage.DECODE and preferred[0].is_new and sizes.prefill > 1:
        feeds = any(need.stage is Stage.PREFILL and need.is_new for need in queue)
        stage = Stage.PREFILL if feeds else stage
    return {stage: _batch(queue, stage, sizes)}


def _batch(queue: Sequence[Need], stage: Stage, sizes: BatchSizes) -> tuple[int, ...]:
    """The most urgent keys of a stage, as many as its batch takes."""
    n_most = (sizes.prefill, sizes.decode, sizes.flow, sizes.vocode)[stage]
    return tuple(dict.fromkeys(need.key for need in queue if need.stage == stage))[:n_most]


class Slots:
    """The language model's slots, each held by one stream at a time; the lowest free one is taken first.

    Utterances whose text is still being written may hold half of them at most. They keep a slot while the bot writes,
    and complete sentences of other calls must not wait for that. Nor must they wait for files, which may hold half too.
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"the engine needs at least one slot, not {n}")
        self.n = n
        self._free = set(range(n))
        self._growing: set[int] = set()
        self._of_files: set[int] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    def acquire(self, growing: bool = False, can_wait: bool = False) -> int | None:
        """A free slot; None if all are taken. `growing`: for text that is still being written; `can_wait`: a file's."""
        if not self._free or (growing and len(self._growing) >= self.n // 2):
            return None
        if can_wait and len(self._of_files) >= max(1, self.n // 2):
            return None
        slot = min(self._free)
        self._free.remove(slot)
        if growing:
            self._growing.add(slot)
        if can_wait:
            self._of_files.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back. Raises ValueError if it is not taken."""
        if not 0 <= slot < self.n or slot in self._free:
            raise ValueError(f"slot {slot} is not taken")
        self._growing.discard(slot)
        self._of_files.discard(slot)
        self._free.add(slot)


def due_after_ns(first_ns: int, n_samples: int, sample_rate_hz: int) -> int:
    """When audio that starts to play at `first_ns` ends."""
    return first_ns + n_samples * 1000 * NS_PER_MS // sample_rate_hz
