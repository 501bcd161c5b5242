"""All calls' utterances in one engine. A step plans, computes batches and hands out their results.

    step():  _find (scheduler.plan)  →  _compute (batches: prefill, decode, flow, vocode)  →  _settle

Any number of lanes may step at once. The lock is held while a lane decides and never while it computes. No two lanes
work on the same stage of a stream, but for two blocks of the flow (`OpenBlock`). Cancelled utterances are skipped from
the next step on, and after it their slot is free. A failure ends only the utterances that fail alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2.core.batches import Batches, piece_of, voicing_track_of
from telephony_tts.engines.cosyvoice2.core.counters import Counters, InFlight
from telephony_tts.engines.cosyvoice2.core.jobs import Job, vocoded_size
from telephony_tts.engines.cosyvoice2.core.orders import (
    AudioTaken,
    CancelOrder,
    EventSink,
    Order,
    PushText,
    SubmitUtterance,
    UtteranceBegan,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.core.ready_voices import ReadyVoices, VoiceBuild
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    Lane,
    Need,
    OwedWork,
    PendingWork,
    Slots,
    Stage,
    new_stream_delay_ns,
    plan,
)
from telephony_tts.engines.cosyvoice2.core.stream import NON_FINITE, OpenBlock, Stream
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
    from telephony_tts.engines.cosyvoice2.device.runner import Runner, Sound
    from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
    from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _LaneStep:
    """What one lane computes now. The stages of these jobs belong to it until `Core._settle`."""

    releasing: list[Job] = field(default_factory=list)
    """Jobs that give their slot back."""
    batches: dict[Stage, list[Job]] = field(default_factory=dict)
    """All stages but the flow."""
    blocks: dict[Job, OpenBlock] = field(default_factory=dict)
    """The batch of the flow: each job with the block that it claimed."""
    builds: list[VoiceBuild] = field(default_factory=list)
    """Voices that get a step of the flow."""
    vocoded_size: float = 1.0
    """Of the vocoder's batch. Found with the lock held: other lanes change what it is computed from."""

    def __bool__(self) -> bool:
        return bool(self.releasing or self.batches or self.blocks or self.builds)


class Core:
    """See the module. `features`: the voices by name; `n_ready_voices`: how many are kept ready. Any lane calls `tell`
    with the lock held, so `tell` must only hand the event on."""

    def __init__(
        self,
        runner: Runner,
        features: Mapping[str, PromptFeatures],
        profile: Profile,
        tell: EventSink,
        *,
        n_ready_voices: int = 4,
        ahead: AheadLimits | None = None,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.runner = runner
        self.voices = ReadyVoices(features, n_ready_voices)
        self.slots = Slots(runner.n_slots)
        self.counters = Counters()
        self._in_flight = InFlight(self.counters)
        self._idle = runner.idle_lanes
        self.ahead = ahead or AheadLimits()
        self._profile = profile
        self.tell = tell
        self._now_ns = now_ns
        self._lock = threading.RLock()
        self._batches = Batches(runner, self._fail)
        self._jobs: dict[int, Job] = {}
        self._is_decoding = False
        """Whether a lane draws ids. No other decode batch begins meanwhile, so that all rows share one batch."""
        self._is_closed = False
        self._n_lanes = 0
        """Threads in `serve`."""
        self._steps_ns: dict[int, int] = {}
        """When the current step of each thread began."""

    # ------------------------------------------------------------------------- orders

    def receive(self, order: Order) -> None:
        """From any thread. An order for an utterance that is over has no effect."""
        if isinstance(order, SubmitUtterance):
            self._submit(order)
            return
        with self._lock:
            job = self._jobs.get(order.key)
            if job is None or job.is_over:
                return
            match order:
                case AudioTaken():
                    was_full = job.held_ms >= self.ahead.audio_ms
                    job.n_taken += order.n_samples
                    if not was_full:
                        return  # nothing new can begin
                case PushText():
                    try:
                        job.stream.push(order.text, order.last)
                    except Exception as error:
                        job.fail(error)
                case CancelOrder():
                    job.is_over = True
                    self.counters.add("cancelled")
            self._idle.call()

    def receive_all(self, orders: Iterable[Order]) -> None:
        """From any thread. No lane decides before all of them are received, so that turns that begin together share
        their batches."""
        with self._lock:
            for order in orders:
                self.receive(order)

    def _submit(self, order: SubmitUtterance) -> None:
        # The stream cuts and tokenises its text later, with the lock held. That takes a small part of a step:
        # 0.1 ms for a piece of text; 4 ms for 2,000 characters in the upstream profile, which cuts all text at once.
        model = self.runner.model
        n_positions = self.runner.n_positions
        stream = Stream(order.request, self._profile, model.tokenizer, model.lm.config, n_positions, model.family)
        with self._lock:
            if self._is_closed:
                self.tell(order.key, UtteranceEnded(EngineError("cosyvoice2 is closed")))
                return
            now_ns = self._now_ns()
            due_ns = order.deadline_ns or now_ns
            self._jobs[order.key] = Job(
                order.key, order.voice, stream, due_ns, order.follows or due_ns > now_ns, order.can_wait
            )
            self._idle.call()

    def replace_voices(self, features: Mapping[str, PromptFeatures]) -> None:
        """Speak with these voices from now on. An utterance that has begun keeps its voice. From any thread."""
        with self._lock:
            self.voices.replace(features)
            self._idle.call()

    def close(self) -> None:
        """Begin no further step; `serve` returns. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._idle.call()

    def end_all(self) -> None:
        """End every utterance with an error. Call it after `close`, when no lane steps any more."""
        with self._lock:
            for job in self._jobs.values():
                job.fail(EngineError("cosyvoice2 was closed"))
                job.busy.clear()
                job.blocks.clear()
            releasing = list(self._jobs.values())
        self._compute(_LaneStep(releasing))

    def oldest_step_ns(self) -> int | None:
        """When the step began that has been computed for longest; None if no lane steps. From any thread."""
        return min(self._steps_ns.copy().values(), default=None)

    # --------------------------------------------------------------------------- lanes

    def serve(self, lane: Lane) -> None:
        """Step until closed: the body of a thread."""
        self.runner.enter()
        with self._lock:
            self._n_lanes += 1
        while True:
            n_calls = self._idle.n_calls()
            with self._lock:
                if self._is_closed:
                    self._n_lanes -= 1
                    return
                step = self._find(lane)
            if step:
                self._compute(step)
                del step  # an idle lane must not keep the last utterance alive
            else:
                self._idle.wait(n_calls)

    def step(self, lane: Lane = Lane.ALL) -> bool:
        """Make one step. False if nothing can be done now."""
        with self._lock:
            step = self._find(lane)
        if step:
            self._compute(step)
        return bool(step)

    # -------------------------------------------------------------- with the lock held

    def _find(self, lane: Lane) -> _LaneStep:
        """The next step of a lane, marked as busy."""
        step = _LaneStep()
        if self._is_closed:
            return step
        self._admit()
        jobs = self._jobs.values()
        lanes_help = self._idle.can_help and sum(not job.is_over for job in jobs) == 1
        needs = [need for job in jobs for need in job.needs(self.ahead, not self._is_decoding, lanes_help)]
        needs += self._needs_of_voices()
        n_drawing = sum(job.is_drawing for job in jobs)
        delay_ns = 0
        if any(need.is_new for need in needs):
            per = self.ahead, self.runner.n_flow_steps
            pending = [work for job in jobs if (work := job.pending_work(*per)) is not None]
            delay_ns = new_stream_delay_ns(pending, self.counters.costs, self._now_ns())
        # A job may fail in `needs` and in `is_drawing`.
        step.releasing = [job for job in jobs if job.can_release]
        needs = [need for need in needs if need.key < 0 or not self._jobs[need.key].is_over]
        for job in step.releasing:
            job.is_releasing = True
        for stage, keys in plan(needs, lane, self.runner.batch_sizes, n_drawing, delay_ns).items():
            step.builds += [build for build in self.voices.builds if build.key in keys]
            batch = [self._jobs[key] for key in keys if key >= 0]
            if stage is Stage.FLOW:
                step.blocks = {job: job.claim_block() for job in batch}
            elif batch:
                self._is_decoding |= stage is Stage.DECODE
                step.batches[stage] = batch
                if stage is Stage.VOCODE:
                    step.vocoded_size = vocoded_size(batch)
                for job in batch:
                    job.busy.add(stage)
        for build in step.builds:
            build.is_busy = True
        return step

    def _admit(self) -> None:
        """Give slots to the jobs that wait for one, the most urgent first. A job whose text has been spoken ends."""
        waiting = [job for job in self._jobs.values() if not job.is_over and job.stream.slot is None]
        for job in sorted(waiting, key=lambda job: (job.due_ns, job.key)):
            try:
                job.prompt = job.prompt or self.voices.get(job.voice)
                if job.prompt is None:
                    continue
                if job.stream.is_done:
                    job.is_over = True
                elif job.stream.wants_slot:
                    slot = self.slots.acquire(job.stream.grows, job.can_wait)
                    if slot is None:
                        job.stream.note_refusal()
                    else:
                        self._begin(job, slot)
            except Exception as error:
                job.fail(error)

    def _begin(self, job: Job, slot: int) -> None:
        assert job.prompt is not None
        job.stream.voice = job.prompt
        job.stream.begin(slot)
        if not job.has_begun:
            job.has_begun = True
            self.tell(job.key, UtteranceBegan(self._now_ns()))

    def _needs_of_voices(self) -> list[Need]:
        """The next step of each voice that jobs wait for, as urgent as these jobs. Other builds are abandoned."""
        needs = []
        for build in self.voices.builds:
            if build.is_busy:
                continue
            waiting = [
                job for job in self._jobs.values() if job.voice == build.name and not (job.prompt or job.is_over)
            ]
            needs += [Need(build.key, Stage.FLOW, job.due_ns, is_new=job.is_new) for job in waiting]
            if not waiting:
                self.voices.abandon(build)
        return needs

    # ------------------------------------------------------------------ without the lock

    def _compute(self, step: _LaneStep) -> None:
        """Compute a step. On a device all work of the step is queued before the host reads any result."""
        drawn: list[tuple[Job, DrawnIds]] = []
        sounds: list[tuple[Job, Sound]] = []
        lane = threading.get_ident()
        self._steps_ns[lane] = self._now_ns()
        is_alone = self._n_lanes > 1 and len(self._steps_ns) == 1
        try:
            for job in step.releasing:
                self._release(job)
            for stage in Stage:
                jobs = list(step.blocks) if stage is Stage.FLOW else step.batches.get(stage, [])
                n_rows = len(jobs) + (len(step.builds) if stage is Stage.FLOW else 0)
                if not n_rows:
                    continue
                size = step.vocoded_size if stage is Stage.VOCODE else 1.0
                begin = self.runner.moment(self._now_ns)
                match stage:
                    case Stage.PREFILL:
                        drawn += self._batches.prefill(jobs)
                    case Stage.DECODE:
                        decoded = self._batches.decode(jobs)
                        drawn += decoded
                        size = sum(ids.n for _, ids in decoded) / max(1, len(decoded)) or 1.0
                    case Stage.FLOW:
                        self._batches.flow(step.blocks)
                        for build in step.builds:
                            self._build_voice(build)
                    case Stage.VOCODE:
                        sounds += self._batches.vocode(jobs)
                end = self.runner.moment(self._now_ns)
                with self._lock:
                    # A voice's prompt costs far more than a block, so its time says nothing about blocks.
                    is_alone &= len(self._steps_ns) == 1
                    self._in_flight.add(
                        stage, n_rows, begin, end, is_usual=not step.builds, is_alone=is_alone, size=size
                    )
            self._in_flight.wait()
        finally:
            self._settle(step, drawn, sounds)
            del self._steps_ns[lane]

    def _build_voice(self, build: VoiceBuild) -> None:
        """One step of a voice."""
        error: Exception | None = None
        try:
            if build.work is None:
                build.work = self.runner.model.begin_prompt(build.features, self._profile)
            if not build.work.flow_block.done:
                self.runner.step_blocks([build.work.flow_block])
            if build.work.flow_block.done:
                prompt = build.work.finished()
                with self._lock:
                    self.voices.finish(build, prompt)
        except Exception as raised:
            log.exception("voice %s could not be made ready", build.name)
            error = raised
        with self._lock:
            build.is_busy = False
            if error is not None and self.voices.is_wanted(build):
                self.voices.abandon(build)
                for job in self._jobs.values():
                    if job.voice == build.name and job.prompt is None:
                        job.fail(error)

    def _release(self, job: Job) -> None:
        """Free what a piece held, or only its slot if its audio is still to be made. The utterance ends if it is
        over."""
        if job.track is not None:
            try:
                self.runner.close(job.track)
            except Exception:
                log.exception("a slot could not be emptied")
        with self._lock:
            if not job.is_over and job.stream.can_hand_over:
                job.earlier_track = job.track
                self.slots.release(job.stream.hand_over())
            elif job.stream.slot is not None:
                self.slots.release(job.stream.end_piece())
            job.track = None
            job.is_releasing = False
            if job.is_over:
                if job.error is not None:
                    self._give_out(job, [], self._now_ns())
                job.earlier_track = None
                job.blocks.clear()
                del self._jobs[job.key]
                self.tell(job.key, UtteranceEnded(job.error))
            self._idle.call()

    def _settle(
        self, step: _LaneStep, drawn: Sequence[tuple[Job, DrawnIds]], sounds: Sequence[tuple[Job, Sound]]
    ) -> None:
        """Take in the results of a step. It waits for the device before it takes the lock."""
        ids = [(job, self._batches.read(job, each.read)) for job, each in drawn]
        # Audio comes back in several transfers if there is much: the first is taken in while a device makes the next.
        transfers: dict[int, list[tuple[Job, Sound]]] = {}
        for job, sound in sounds:
            transfers.setdefault(id(sound.audio), []).append((job, sound))
        *early, last = transfers.values() or [[]]
        unread = {job for job, _ in sounds}
        for transfer in early:
            audio = self._read(transfer)
            now_ns = self._now_ns()
            unread.difference_update(job for job, _ in transfer)
            with self._lock:
                self._take_audio(audio, now_ns)
                self._give_out_first(now_ns, unread)
        audio = self._read(last)
        now_ns = self._now_ns()
        with self._lock:
            for stage, jobs in step.batches.items():
                self._is_decoding &= stage is not Stage.DECODE
                for job in jobs:
                    job.busy.discard(stage)
            for job, block in step.blocks.items():
                block.is_busy = False
                self._queue_mels(job)
            for job, read in ids:
                if read and not job.is_over:
                    try:
                        piece_of(job).take_ids(read[0])
                    except Exception as error:
                        job.fail(error)
            self._take_audio(audio, now_ns)
            self._give_out_first(now_ns)
            self.counters.add("steps")
            self._idle.call()

    def _read(self, sounds: Sequence[tuple[Job, Sound]]) -> list[tuple[Job, Sound, list[Pcm | None]]]:
        """Sounds with their samples. Waits for the device."""
        return [(job, sound, self._batches.read(job, sound.read)) for job, sound in sounds]

    def _take_audio(self, audio: Sequence[tuple[Job, Sound, list[Pcm | None]]], now_ns: int) -> None:
        """Take in what `_read` returned, and give it out unless it is the first audio of a turn."""
        for job, sound, pcms in audio:
            if job.is_over or not pcms:
                continue
            if pcms[0] is None:
                job.fail(EngineError(NON_FINITE))
                continue
            is_first = job.is_new and not job.first_audio
            chunks = job.stream.take_audio(pcms[0], sound.n_frames, sound.is_last)
            job.n_made += len(pcms[0])
            self.counters.count_audio(len(pcms[0]) / job.stream.family.sample_rate_hz)
            if is_first:
                job.first_audio = chunks
            else:
                self._give_out(job, chunks, now_ns)
            if job.stream.earlier is None:
                job.earlier_track = None

    def _give_out_first(self, now_ns: int, unread: Collection[Job] = ()) -> None:
        """Give out first audio that was held back and now lasts until the next audio. `unread`: jobs whose output of
        the vocoder this step has not read yet."""
        if not any(job.first_audio and not job.is_over for job in self._jobs.values()):
            return
        per = self.ahead, self.runner.n_flow_steps
        works = {job: job.pending_work(*per, job in unread) for job in self._jobs.values() if not job.is_over}
        costs = self.counters.costs
        if self._idle.can_help and len(works) == 1:
            costs = self.counters.alone_prices(next(iter(works)).is_drawing)
        in_vocoder = (PendingWork(job.due_ns, (0, 0, 0, 1)) for job in unread)
        owed = OwedWork((*(work for work in works.values() if work is not None), *in_vocoder), costs)
        for job, work in works.items():
            if job.first_audio and job.may_be_heard(work, owed, max(1, self._n_lanes), now_ns):
                self._give_out(job, [], now_ns)

    def _give_out(self, job: Job, chunks: Sequence[Chunk], now_ns: int) -> None:
        """Tell of audio, first of that which was held back."""
        held, job.first_audio = job.first_audio, []
        for chunk in (*held, *chunks):
            job.record_audio(len(chunk.pcm), now_ns)
            self.tell(job.key, chunk)

    def _queue_mels(self, job: Job) -> None:
        """Keep the mel of the blocks that are done. Blocks stay in order, whichever lane made the last step."""
        while (done := job.done_block()) is not None:
            if job.is_over:
                continue
            try:
                voicing = job.stream.voicing
                assert voicing is not None
                track = voicing_track_of(job)
                voicing.take_mel(self.runner.queue_mel(track, done.block, cast("FlowBlock", done.flow_block)))
            except Exception as error:
                log.exception("an utterance failed")
                job.fail(error)

    def _fail(self, job: Job, error: Exception) -> None:
        with self._lock:
            job.fail(error)
