"""All calls' utterances in one engine: each step plans, computes a batch, and hands out what came of it.

    step(): plan = scheduler.plan(needs); then runner.prefill, decode, flow, vocode as planned

Any number of lanes may step at once; the lock is held while deciding and never while computing, and no two lanes work
on the same stage of the same stream. Whoever is cancelled is left out of the next step, and what it held is free after
it. Whatever fails, fails the utterances it was computed for and no others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from telephony_tts.clock import monotonic_ns
from telephony_tts.engines.cosyvoice2.core.batches import Batches, piece_of, track_of
from telephony_tts.engines.cosyvoice2.core.counters import Counters, InFlight
from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.orders import Began, Cancel, Ended, Order, Push, Submit, Told, Took
from telephony_tts.engines.cosyvoice2.core.ready_voices import Making, ReadyVoices
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    Ahead,
    Lane,
    Need,
    Slots,
    Stage,
    newcomers_due_later_ns,
    plan,
)
from telephony_tts.engines.cosyvoice2.core.stream import BROKEN, Stream, UnderWay
from telephony_tts.engines.cosyvoice2.device.runner import Drawn, Runner, Sound
from telephony_tts.engines.cosyvoice2.model.config import SAMPLE_RATE_HZ
from telephony_tts.engines.cosyvoice2.model.flow.stream import Solve
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.errors import EngineError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """What one lane does now. The stages of these belong to it until `Core._settle`."""

    leaving: list[Job] = field(default_factory=list)
    """Whose slot is to be given back."""
    batches: dict[Stage, list[Job]] = field(default_factory=dict)
    blocks: dict[int, UnderWay] = field(default_factory=dict)
    """Of the batch of the flow, by the key of their jobs."""
    makings: list[Making] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.leaving or self.batches or self.makings)


class Core:
    """See the module. `features`: the voices by name; `n_prompts`: how many are kept ready. `tell` is called by any
    lane, with the lock held: it hands on and does not call back."""

    def __init__(
        self,
        runner: Runner,
        features: Mapping[str, PromptFeatures],
        profile: Profile,
        tell: Told,
        *,
        n_prompts: int = 4,
        ahead: Ahead | None = None,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.runner = runner
        self.voices = ReadyVoices(features, n_prompts)
        self.slots = Slots(runner.n_slots)
        self.counters = Counters()
        self._in_flight = InFlight(self.counters)
        self.ahead = ahead or Ahead()
        self._profile = profile
        self.tell = tell
        self._now_ns = now_ns
        self._changed = threading.Condition()
        self._batches = Batches(runner, self._fail)
        self._jobs: dict[int, Job] = {}
        self._is_decoding = False
        """A lane draws ids: the next batch waits for it, so that all rows are in one."""
        self._is_closed = False
        self._steps_ns: dict[int, int] = {}
        """By thread: when the step it is at began."""

    # -------------------------------------------------------------------- from outside

    def receive(self, order: Order) -> None:
        """From any thread; orders for utterances that are over are nothing."""
        # Made outside the lock: a stream reads its text.
        new = self._stream(order) if isinstance(order, Submit) else None
        with self._changed:
            job = self._jobs.get(order.key)
            if isinstance(order, Submit) and new is not None:
                if self._is_closed or isinstance(new, EngineError):
                    error = new if isinstance(new, EngineError) else EngineError("cosyvoice2 is closed")
                    self.tell(order.key, Ended(error))
                    return
                now_ns = self._now_ns()
                deadline_ns = order.deadline_ns or now_ns
                self._jobs[order.key] = Job(
                    order.key, order.voice, new, deadline_ns, follows=order.follows or deadline_ns > now_ns
                )
            elif job is None or job.is_over:
                return
            elif isinstance(order, Took):
                was_full = job.held_ms >= self.ahead.audio_ms
                job.n_taken += order.n_samples
                if not was_full:
                    return
            elif isinstance(order, Push):
                try:
                    job.stream.push(order.text, order.last)
                except Exception as error:
                    job.fail(error)
            elif isinstance(order, Cancel):
                job.is_over = True
                self.counters.add("cancelled")
            self._changed.notify_all()

    def _stream(self, order: Submit) -> Stream | EngineError:
        try:
            model = self.runner.model
            return Stream(order.request, self._profile, model.tokenizer, model.lm.config, self.runner.n_positions)
        except EngineError as error:
            return error
        except Exception as error:
            log.exception("an utterance could not be read")
            return EngineError(f"cosyvoice2 failed: {error}")

    def close(self) -> None:
        """No step is begun any more; `serve` returns. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def end_all(self) -> None:
        """After `close`, when no lane steps any more: every utterance ends with an error."""
        with self._changed:
            for job in self._jobs.values():
                job.fail(EngineError("cosyvoice2 was closed"))
                job.busy.clear()
                job.blocks.clear()
            leaving = list(self._jobs.values())
        self._do(_Step(leaving))

    def oldest_step_ns(self) -> int | None:
        """When the step began that has been computed for longest; None at rest. From any thread."""
        return min(self._steps_ns.copy().values(), default=None)

    # --------------------------------------------------------------------------- lanes

    def serve(self, lane: Lane) -> None:
        """Step until closed: the body of a thread."""
        self.runner.enter()
        while True:
            with self._changed:
                while not (step := self._find(lane)):
                    if self._is_closed:
                        return
                    self._changed.wait()
            self._do(step)
            del step  # a lane at rest must not keep the last utterance alive

    def step(self, lane: Lane = Lane.ALL) -> bool:
        """One step; False where nothing could be done now."""
        with self._changed:
            step = self._find(lane)
        if step:
            self._do(step)
        return bool(step)

    # -------------------------------------------------------------- with the lock held

    def _find(self, lane: Lane) -> _Step:
        """What to do next, marked as being done."""
        step = _Step()
        if self._is_closed:
            return step
        self._admit()
        needs = [need for job in self._jobs.values() for need in job.needs(self.ahead, not self._is_decoding)]
        needs += self._needs_of_voices()
        n_drawing = sum(job.is_drawing for job in self._jobs.values())
        step.leaving = [job for job in self._jobs.values() if job.lets_go]
        wait_ns = 0
        if any(need.is_new for need in needs):
            per = self.ahead, self.runner.n_flow_steps, self.runner.n_run_ahead
            owed = [each for job in self._jobs.values() if (each := job.owed(*per)) is not None]
            wait_ns = newcomers_due_later_ns(owed, self.counters.prices, self._now_ns())
        for stage, keys in plan(needs, lane, self.runner.widths, n_drawing, wait_ns).items():
            step.makings += [making for making in self.voices.making if making.key in keys]
            jobs = [self._jobs[key] for key in keys if key >= 0]
            if jobs:
                step.batches[stage] = jobs
        for job in step.leaving:
            job.busy.add(Stage.VOCODE)
        for making in step.makings:
            making.is_busy = True
        for stage, jobs in step.batches.items():
            self._is_decoding |= stage is Stage.DECODE
            for job in jobs:
                if stage is Stage.FLOW:
                    step.blocks[job.key] = job.claim_block()
                else:
                    job.busy.add(stage)
        return step

    def _admit(self) -> None:
        """Slots for those who want one, the most urgent first. Text that was said to its end leaves."""
        waiting = [job for job in self._jobs.values() if not job.is_over and job.stream.slot is None]
        for job in sorted(waiting, key=lambda job: (job.due_ns, job.key)):
            try:
                job.prompt = job.prompt or self.voices.get(job.voice)
                if job.prompt is None:
                    continue
                if job.stream.is_done:
                    job.is_over = True
                elif job.stream.wants_slot:
                    slot = self.slots.acquire(job.stream.grows)
                    if slot is None:
                        job.stream.refused()
                    else:
                        self._begin(job, slot)
            except Exception as error:
                job.fail(error)

    def _begin(self, job: Job, slot: int) -> None:
        assert job.prompt is not None
        job.stream.spoken = job.prompt
        job.stream.begin(slot)
        if not job.has_begun:
            job.has_begun = True
            self.tell(job.key, Began(self._now_ns()))

    def _needs_of_voices(self) -> list[Need]:
        """Steps of voices that are waited for, as urgent as the most urgent who waits; others are given up."""
        needs = []
        for making in self.voices.making:
            if making.is_busy:
                continue
            waiting = [job for job in self._jobs.values() if not (job.prompt or job.is_over)]
            for_them = [
                Need(making.key, Stage.FLOW, job.due_ns, is_new=job.is_new)
                for job in waiting
                if job.voice == making.name
            ]
            needs += for_them
            if not for_them:
                self.voices.give_up(making)
        return needs

    # ------------------------------------------------------------------ without the lock

    def _do(self, step: _Step) -> None:
        """Compute. On a device all of it is on its way before anything is read."""
        drawn: list[tuple[Job, Drawn, int]] = []
        voiced: list[tuple[Job, Sound]] = []
        lane = threading.get_ident()
        self._steps_ns[lane] = self._now_ns()
        try:
            for job in step.leaving:
                self._leave(job)
            for stage in Stage:
                jobs = step.batches.get(stage, [])
                n_rows = len(jobs) + (len(step.makings) if stage is Stage.FLOW else 0)
                if not n_rows:
                    continue
                begin = self.runner.moment(self._now_ns)
                if stage is Stage.PREFILL:
                    drawn += self._batches.prefill(jobs)
                elif stage is Stage.DECODE:
                    drawn += self._batches.decode(jobs)
                elif stage is Stage.FLOW:
                    self._batches.flow(jobs, step.blocks)
                    for making in step.makings:
                        self._make(making)
                else:
                    voiced += self._batches.vocode(jobs)
                end = self.runner.moment(self._now_ns)
                with self._changed:
                    # A whole prompt is far dearer than a block, and says nothing about one.
                    self._in_flight.add(stage, n_rows, begin, end, is_usual=not step.makings)
            self._in_flight.wait()
        finally:
            self._settle(step, drawn, voiced)
            del self._steps_ns[lane]

    def _make(self, making: Making) -> None:
        """A step of a voice's."""
        error: Exception | None = None
        try:
            if making.work is None:
                making.work = self.runner.begin_prompt(self.voices.features[making.name], self._profile)
            if not making.work.solve.done:
                self.runner.flow([making.work.solve])
            if making.work.solve.done:
                prompt = making.work.prompt()
                with self._changed:
                    self.voices.made(making, prompt)
        except Exception as raised:
            log.exception("voice %s could not be made ready", making.name)
            error = raised
        with self._changed:
            making.is_busy = False
            if error is not None:
                self.voices.give_up(making)
                for job in self._jobs.values():
                    if job.voice == making.name and job.prompt is None:
                        job.fail(error)

    def _leave(self, job: Job) -> None:
        """Give back what a piece held; the utterance ends if it is over."""
        if job.track is not None:
            try:
                self.runner.close(job.track)
            except Exception:
                log.exception("a slot could not be emptied")
        with self._changed:
            job.track = None
            job.blocks.clear()
            if job.stream.slot is not None:
                self.slots.release(job.stream.end_piece())
            job.busy.discard(Stage.VOCODE)
            if job.is_over:
                del self._jobs[job.key]
                self.tell(job.key, Ended(job.error))
            self._changed.notify_all()

    def _settle(
        self, step: _Step, drawn: Sequence[tuple[Job, Drawn, int]], voiced: Sequence[tuple[Job, Sound]]
    ) -> None:
        """Take in what was computed. The device is waited for here, and the lock is not held meanwhile."""
        ids = [(job, self._batches.read(job, batch), row) for job, batch, row in drawn]
        audio = [(job, sound, self._batches.read(job, sound)) for job, sound in voiced]
        now_ns = self._now_ns()
        with self._changed:
            for stage, jobs in step.batches.items():
                for job in jobs:
                    job.busy.discard(stage)
                if stage is Stage.DECODE:
                    self._is_decoding = False
                elif stage is Stage.FLOW:
                    self._take_in(jobs, step.blocks)
            for job, rows, row in ids:
                if rows and not job.is_over:
                    try:
                        piece_of(job).drew(rows[row])
                    except Exception as error:
                        job.fail(error)
            for job, sound, pcms in audio:
                if job.is_over or not pcms:
                    continue
                if pcms[0] is None:
                    job.fail(EngineError(BROKEN))
                    continue
                for chunk in job.stream.voiced(pcms[0], sound.n_frames, sound.is_last):
                    job.made(len(chunk.pcm), now_ns)
                    self.counters.made(len(chunk.pcm) / SAMPLE_RATE_HZ)
                    self.tell(job.key, chunk)
            self.counters.add("steps")
            self._changed.notify_all()

    def _take_in(self, jobs: Sequence[Job], blocks: Mapping[int, UnderWay]) -> None:
        """Mel of blocks that are done, in their order whichever lane was the last."""
        for job in jobs:
            blocks[job.key].is_busy = False
            while (done := job.done_block()) is not None:
                if not job.is_over:
                    self.runner.keep(track_of(job), done.block, cast(Solve, done.solve))
                    piece_of(job).n_mels += 1

    def _fail(self, job: Job, error: Exception) -> None:
        with self._changed:
            job.fail(error)
