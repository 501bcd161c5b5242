"""The engine without its model: the real planner, slots, jobs and streams in virtual time, from event to event.

A price stands for the computing of each batch (`Cost`). It is an input, not a measurement. Every decision is made by
the engine's own code: `scheduler.plan` and `Slots`, `Job.needs`, the prices that `Counters` derive, and `Stream` and
`Piece` with the block lengths of a real profile. Admission and the handling of results repeat what `core.Core` does.
Voices are ready from the start. Lanes do not slow each other, unless they can help each other (`HelpingLanes`): then a
lane is faster while the others have no work, and first audio is held back as in the engine.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from harness.cost import Cost, HelpingLanes
from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S, Listener
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.core.counters import Counters
from telephony_tts.engines.cosyvoice2.core.jobs import Job, vocoded_size
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    Lane,
    Need,
    OwedWork,
    Plan,
    Slots,
    Stage,
    lanes,
    new_stream_delay_ns,
    plan,
)
from telephony_tts.engines.cosyvoice2.core.stream import OpenBlock, Piece, Stream
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes
from telephony_tts.engines.cosyvoice2.model.config import (
    EOS,
    FRAMES_PER_TOKEN,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    LmConfig,
)
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.engines.cosyvoice2.text.prompting import Request

N_EULER = 10
TOKENS_PER_WORD = 10
"""Speech tokens of a word of the text, which are 0.4 s."""
ROW_TOKENS = 25
"""Speech tokens of a flow or vocoder row that cost one row's price; a block of 100 costs four."""
LISTEN_NS = 2 * NS_PER_S
"""Audio that a listener buffers."""
REFILL_NS = 500 * NS_PER_MS
"""A listener with a full buffer takes nothing until it has heard so much, as in `session.supply`."""

Planner = Callable[[Sequence[Need], Lane, BatchSizes, int, int], Plan]
PlanObserver = Callable[["Simulation", Lane, Sequence[Need], Plan], None]

_COST, _WIDTHS, _AHEAD = Cost(), BatchSizes(), AheadLimits()


class WordTokenizer:
    """A tokenizer with one id for each word."""

    def encode(self, text: str, control: frozenset[str] = frozenset()) -> list[int]:
        return [0] * len(text.split())


@dataclass(frozen=True, slots=True)
class _Voice:
    """A voice, as far as the model's input and the ends of blocks depend on it."""

    transcript_ids: tuple[int, ...] = (0,) * 8
    speech_tokens: tuple[int, ...] = (0,) * 75
    n_flow_tokens: int = 53


@dataclass(slots=True, eq=False)
class _Solve:
    job: Job
    k: int = 0
    n_steps: int = N_EULER

    @property
    def done(self) -> bool:
        return self.k == self.n_steps

    @property
    def may_step(self) -> bool:
        """Whether the block before it is at least one step ahead."""
        before = None
        for each in self.job.blocks:
            if each.flow_block is self:
                break
            before = each.flow_block
        return not self.done and (before is None or before.k > self.k)


@dataclass(slots=True)
class _Track:
    """What the device would hold for a piece."""

    mels: deque[tuple[int, int, bool]] = field(default_factory=deque)
    """For each part that waits: its frames, those of them that become audio with the next part only, and whether it is
    the last."""
    n_queued: int = 0
    """Blocks of which there is mel."""
    n_frames: int = 0
    n_emitted: int = 0
    """Frames that have become audio."""


@dataclass(slots=True)
class _RunningStep:
    """What a lane computes now."""

    batches: dict[Stage, list[Job]]
    begun_ns: int
    left_ns: float
    """Of its price, at `at_ns`."""
    at_ns: int
    rate: float = 0.0
    """How many nanoseconds of the price pass in one; 0 before the end is scheduled."""
    n_paced: int = 0
    """How often its end was scheduled. Only the last one counts."""
    is_alone: bool = True
    """No other lane has computed meanwhile."""
    size: float = 1.0
    """See `Counters.count_batch`."""


@dataclass(slots=True, eq=False)
class SimulatedUtterance:
    """An utterance and what its listener has heard of it. Times in nanoseconds."""

    key: int
    asked_ns: int
    deadline_ns: int
    job: Job
    then: Callable[[int], None] | None = None
    """Called once, when all audio was taken, with the time at which it will have been heard."""
    waiting: deque[int] = field(default_factory=deque)
    """Samples of each chunk that was made and not taken."""
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    """(when a chunk was taken, its length)"""
    listener: Listener = field(default_factory=Listener)
    is_filling: bool = True
    cancelled_ns: int | None = None
    ended_ns: int | None = None

    @property
    def underruns_ns(self) -> list[int]:
        """The silences that the listener heard within the utterance."""
        return self.listener.underruns_ns


class Simulation:
    """A run of the engine in virtual time. `watch` gets every plan; `listen_ns` is the audio that a listener buffers.

    Tests replace `job_type` and `planner` to try other rules.
    """

    def __init__(
        self,
        cost: Cost = _COST,
        widths: BatchSizes = _WIDTHS,
        *,
        n_lanes: int = 1,
        n_slots: int = 16,
        ahead: AheadLimits = _AHEAD,
        profile: Profile = DEFAULT,
        listen_ns: int = LISTEN_NS,
        planner: Planner = plan,
        job_type: type[Job] = Job,
        watch: PlanObserver | None = None,
        helping: HelpingLanes | None = None,
    ) -> None:
        self.cost, self.widths, self.ahead = cost, widths, ahead
        self.slots = Slots(n_slots)
        self.now_ns = 0
        self.said: dict[int, SimulatedUtterance] = {}
        self.live: dict[int, SimulatedUtterance] = {}
        """The utterances in the engine, by key."""
        self.counters = Counters()
        self.new_delay_ns = 0
        """The value for the last plan."""
        self.busy_ns = dict.fromkeys(Stage, 0)
        self.n_rows = dict.fromkeys(Stage, 0)
        self.n_batches = dict.fromkeys(Stage, 0)
        self.lanes = lanes(n_lanes)
        self.idle = list(range(n_lanes))
        self._profile, self._listen_ns, self._planner = profile, listen_ns, planner
        self._job_type, self._watch = job_type, watch
        self._helping = helping
        self._running: dict[int, _RunningStep] = {}
        """By lane."""
        self._is_decoding = False
        self._claimed: dict[tuple[int, int], OpenBlock] = {}
        """By lane and key: the blocks whose step is running."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    # -------------------------------------------------------------------- from outside

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Call `what` at that time."""
        heapq.heappush(self._events, (when_ns, next(self._order), what))

    def say(
        self,
        n_words: int,
        *,
        at_ns: int = 0,
        silence_ns: int = 0,
        grows: bool = False,
        then: Callable[[int], None] | None = None,
    ) -> int:
        """Start an utterance at `at_ns`, whose listener hears silence from `silence_ns` later on; returns its key."""
        key = len(self.said)
        request = Request(" ".join(["a"] * n_words), grows=grows)
        tokenizer: Any = WordTokenizer()
        stream = Stream(request, self._profile, tokenizer, LmConfig(), 4000)
        job = self._job_type(key, "", stream, at_ns + silence_ns, follows=silence_ns > 0)
        said = self.said[key] = SimulatedUtterance(key, at_ns, at_ns + silence_ns, job, then)
        voice: Any = _Voice()
        job.prompt = voice
        self.at(at_ns, lambda: self.live.update({key: said}))
        return key

    def push(self, key: int, n_words: int, last: bool, *, at_ns: int) -> None:
        """Push more text to an utterance that grows."""
        self.at(at_ns, lambda: self.said[key].job.stream.push(" a" * n_words, last))

    def cancel(self, key: int, *, at_ns: int) -> None:
        """Cancel an utterance at that time."""

        def do() -> None:
            said = self.said[key]
            if key in self.live and not said.job.is_over:
                said.job.is_over = True
                said.cancelled_ns = self.now_ns

        self.at(at_ns, do)

    def run(self, until_ns: int | None = None) -> None:
        """Run until no event is left, or until that time."""
        while self._events and (until_ns is None or self._events[0][0] <= until_ns):
            self.now_ns = self._events[0][0]
            while self._events and self._events[0][0] == self.now_ns:
                heapq.heappop(self._events)[2]()
            self._begin_steps()

    # -------------------------------------------------------------- as core.Core does it

    def _begin_steps(self) -> None:
        """Begin a step on every idle lane that has work."""
        self._release()
        self._admit()
        for i in list(self.idle):
            lane = self.lanes[i]
            jobs = [said.job for said in self.live.values()]
            lanes_help = self._helping is not None and len(jobs) == 1
            needs = [need for job in jobs for need in job.needs(self.ahead, not self._is_decoding, lanes_help)]
            per = self.ahead, N_EULER
            owed = [each for job in jobs if (each := job.pending_work(*per)) is not None]
            self.new_delay_ns = new_stream_delay_ns(owed, self.counters.costs, self.now_ns)
            n_drawing = sum(job.is_drawing for job in jobs)
            made = self._planner(needs, lane, self.widths, n_drawing, self.new_delay_ns)
            if self._watch is not None:
                self._watch(self, lane, needs, made)
            if made:
                self._begin(i, {stage: [self.live[key].job for key in keys] for stage, keys in made.items()})
        self._pace()

    def _begin(self, lane: int, batches: dict[Stage, list[Job]]) -> None:
        self.idle.remove(lane)
        spent_ns = 0
        for stage, jobs in batches.items():
            self._is_decoding |= stage is Stage.DECODE
            for job in jobs:
                if stage is Stage.FLOW:
                    under_way = self._claimed[lane, job.key] = job.claim_block()
                    under_way.flow_block = under_way.flow_block or _Solve(job)
                else:
                    job.busy.add(stage)
            price_ns = self.cost.of(stage, sum(self._rows(lane, job, stage) for job in jobs))
            self.n_rows[stage] += len(jobs)
            self.n_batches[stage] += 1
            spent_ns += price_ns
            if self._helping is None:
                self.busy_ns[stage] += price_ns
                n_ids = self.cost.run_ahead if stage is Stage.DECODE else 1
                self.counters.count_batch(stage, len(jobs), price_ns, size=n_ids)
        size = vocoded_size(batches.get(Stage.VOCODE, []))
        self._running[lane] = _RunningStep(batches, self.now_ns, max(1, spent_ns), self.now_ns, size=size)

    def _pace(self) -> None:
        """Schedule the end of each running step anew if its speed changes."""
        for lane, step in self._running.items():
            step.is_alone &= len(self._running) == 1
            rate = self._helping.rate(min(step.batches), len(self._running)) if self._helping is not None else 1.0
            if rate != step.rate:
                step.left_ns -= step.rate * (self.now_ns - step.at_ns)
                step.at_ns, step.rate, step.n_paced = self.now_ns, rate, step.n_paced + 1
                end_ns = self.now_ns + max(1, round(step.left_ns / rate))
                self.at(end_ns, lambda lane=lane, step=step, n=step.n_paced: self._settle(lane, step, n))

    def _settle(self, lane: int, step: _RunningStep, n_paced: int) -> None:
        if n_paced != step.n_paced:
            return  # its speed has changed since
        del self._running[lane]
        batches = step.batches
        if self._helping is not None:
            (stage,) = batches
            spent_ns = self.now_ns - step.begun_ns
            self.busy_ns[stage] += spent_ns
            self.counters.count_batch(stage, len(batches[stage]), spent_ns, is_alone=step.is_alone, size=step.size)
        self.idle = sorted([*self.idle, lane])
        for stage in sorted(batches):
            jobs = batches[stage]
            n_ids = 1
            if stage is Stage.DECODE:
                n_ids = min([self.cost.run_ahead, *(_piece(job).n_drawable_unread for job in jobs)])
            for job in jobs:
                job.busy.discard(stage)
                if stage is Stage.FLOW:
                    self._stepped(job, self._claimed.pop((lane, job.key)))
                elif not job.is_over:
                    self._computed(job, stage, n_ids)
            if stage is Stage.DECODE:
                self._is_decoding = False
        if self._helping is not None:
            self._give_out_first()

    def _computed(self, job: Job, stage: Stage, n_ids: int) -> None:
        piece, track = _piece(job), _track(job)
        if stage in (Stage.PREFILL, Stage.DECODE):
            for _ in range(n_ids):
                feed = piece.feed()
                if feed is not None:
                    piece.take_ids([_drawn(piece, feed)])
        else:
            n_emitted = self._n_ready(track)
            n_frames, _, is_last = track.mels.popleft()
            track.n_frames += n_frames
            track.n_emitted += n_emitted
            pcm = np.zeros(n_emitted * SAMPLES_PER_FRAME, np.int16)
            is_first = self._helping is not None and job.is_new and not job.first_audio
            chunks = job.stream.take_audio(pcm, track.n_frames, is_last)
            job.n_made += len(pcm)
            if is_first:
                job.first_audio = chunks
            else:
                self._give_out(job, chunks)

    def _give_out(self, job: Job, chunks: Sequence[Chunk]) -> None:
        held, job.first_audio = job.first_audio, []
        said = self.live[job.key]
        for chunk in (*held, *chunks):
            job.record_audio(len(chunk.pcm), self.now_ns)
            said.waiting.append(len(chunk.pcm))
        self._take(said)

    def _give_out_first(self) -> None:
        """Give out first audio that lasts long enough now."""
        jobs = [said.job for said in self.live.values() if not said.job.is_over]
        works = {job: job.pending_work(self.ahead, N_EULER) for job in jobs}
        costs = self.counters.costs if len(jobs) != 1 else self.counters.alone_prices(jobs[0].is_drawing)
        owed = OwedWork((work for work in works.values() if work is not None), costs)
        for job, work in works.items():
            if job.first_audio and job.may_be_heard(work, owed, len(self.lanes), self.now_ns):
                self._give_out(job, [])

    def _stepped(self, job: Job, under_way: OpenBlock) -> None:
        solve = under_way.flow_block
        assert isinstance(solve, _Solve)
        solve.k += 1
        under_way.is_busy = False
        while (done := job.done_block()) is not None:
            block = done.block
            if not job.is_over:
                self._queue_mel(job, len(block.new) * FRAMES_PER_TOKEN, block.ahead is None)

    def _queue_mel(self, job: Job, n_frames: int, is_last: bool) -> None:
        """As `Runner.queue_mel` does it."""
        track, n_soon = _track(job), self._profile.second_frames
        if n_soon is None or is_last or track.n_queued != 1:
            parts = [n_frames]
            track.mels.append((n_frames, 0, is_last))
        else:
            parts = [n_soon, n_frames - n_soon]
            track.mels += (n_frames, parts[1], False), (0, 0, False)
        track.n_queued += 1
        _piece(job).take_mel(parts)

    def _rows(self, lane: int, job: Job, stage: Stage) -> float:
        """The rows that the job adds to a batch, as far as the price goes."""
        if stage is Stage.FLOW:
            block = self._claimed[lane, job.key].block
            return max(1.0, len(block.all_ids or block.new)) / ROW_TOKENS
        if stage is Stage.VOCODE:
            return max(2.0, self._n_ready(_track(job))) / (FRAMES_PER_TOKEN * ROW_TOKENS)
        return 1.0

    def _n_ready(self, track: _Track) -> int:
        """Frames that become audio when the oldest mel is vocoded. Some are held back, if the profile says how many."""
        n_frames, n_later, is_last = track.mels[0]
        n_held = 0 if is_last else n_later + (self._profile.hold_frames or 0)
        return max(0, track.n_frames + n_frames - n_held - track.n_emitted)

    def _release(self) -> None:
        """Release the slots of pieces that have ended."""
        for said in [said for said in self.live.values() if said.job.can_release]:
            job = said.job
            job.track = None
            job.blocks.clear()
            if job.stream.slot is not None:
                self.slots.release(job.stream.end_piece())
            if job.is_over:
                self._end(said)

    def _end(self, said: SimulatedUtterance) -> None:
        said.ended_ns = self.now_ns
        del self.live[said.key]
        self._take(said)

    def _admit(self) -> None:
        waiting = [said for said in self.live.values() if not said.job.is_over and said.job.stream.slot is None]
        for said in sorted(waiting, key=lambda said: (said.job.due_ns, said.key)):
            stream = said.job.stream
            if stream.is_done:
                said.job.is_over = True
                self._end(said)
            elif stream.wants_slot:
                slot = self.slots.acquire(stream.grows)
                if slot is not None:
                    assert said.job.prompt is not None
                    stream.voice = said.job.prompt
                    stream.begin(slot)

    # ----------------------------------------------------------------------- listeners

    def _take(self, said: SimulatedUtterance) -> None:
        """The listener takes as much as its buffer holds, and hears it in real time."""
        if said.cancelled_ns is not None:
            return
        listener = said.listener
        while said.waiting:
            until_ns = listener.until_ns
            room_ns = self._listen_ns - (0 if said.is_filling else REFILL_NS)
            if until_ns is not None and until_ns - self.now_ns > room_ns:
                said.is_filling = False
                self.at(until_ns - self._listen_ns + REFILL_NS, lambda: self._refill(said))
                return
            n_samples = said.waiting.popleft()
            sound_ns = n_samples * NS_PER_S // SAMPLE_RATE_HZ
            # The first sound is heard at the deadline if it comes earlier.
            listener.arrive(max(self.now_ns, said.deadline_ns) if until_ns is None else self.now_ns, sound_ns)
            said.arrivals.append((self.now_ns, sound_ns))
            said.job.n_taken += n_samples
        if said.ended_ns is not None and said.then is not None:
            then, said.then = said.then, None
            then(listener.until_ns or self.now_ns)

    def _refill(self, said: SimulatedUtterance) -> None:
        said.is_filling = True
        self._take(said)


def _piece(job: Job) -> Piece:
    assert job.stream.piece is not None
    return job.stream.piece


def _track(job: Job) -> _Track:
    """The job's track, in place of the runner's; made if the job has no track yet."""
    track: Any = job.track
    if track is None:
        track = job.track = cast(Any, _Track())
    return cast(_Track, track)


def _drawn(piece: Piece, feed: LmFeed) -> int:
    """The token that the model draws: speech for half of its limit, which is `TOKENS_PER_WORD` a word, then the end."""
    if feed.forced is not None:
        return feed.forced
    decoding: Any = piece.decoding
    return EOS if EOS not in feed.banned and 2 * decoding.n_out >= decoding.max_len else 0
