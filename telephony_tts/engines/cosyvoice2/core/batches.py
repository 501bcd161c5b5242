"""What a step computes: utterances' needs put before the runner, and whose fault it is when that fails.

Nothing here is under the core's lock: the stages that are computed belong to the lane that computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.stream import Piece, UnderWay
from telephony_tts.engines.cosyvoice2.device.runner import Drawn, Row, Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock
from telephony_tts.engines.cosyvoice2.text.generation import Feed
from telephony_tts.errors import EngineError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Batches:
    """`fail` is told of utterances that cannot be computed."""

    def __init__(self, runner: Runner, fail: Callable[[Job, Exception], None]) -> None:
        self._runner = runner
        self._fail = fail

    def prefill(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        """Utterances, what is drawn for them, and which row of it is whose."""
        if not self._runner.together:
            return [drawn for job in jobs for drawn in self._tried([job], self._prefill)]
        able = [job for job in jobs if self._tried([job], self._open)]
        return self._tried(able, self._prefill_together)

    def decode(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        """The same, of one batch."""
        return self._tried(jobs, self._decode)

    def flow(self, jobs: Sequence[Job], blocks: Mapping[int, UnderWay]) -> None:
        """A step of the blocks that were claimed for them, by key."""
        new = [job for job in jobs if blocks[job.key].solve is None]
        self._tried(new, partial(self._begin, blocks))
        begun = [job for job in jobs if blocks[job.key].solve is not None]
        self._tried(begun, partial(self._flow, blocks))

    def vocode(self, jobs: Sequence[Job]) -> list[tuple[Job, Sound]]:
        """Vocoder state cannot be rolled back; failures are reported per stream."""
        try:
            sounds = self._runner.vocode(
                [track_of(job) for job in jobs], lambda i, error: self._blame(jobs[i], error)
            )
        except Exception as error:
            for job in jobs:
                self._blame(job, error)
            return []
        return [(job, sound) for job, sound in zip(jobs, sounds, strict=True) if sound is not None]

    def read(self, job: Job, computed: Drawn | Sound) -> list[Any]:
        """What was computed, once the device is through: ids by row, or one stretch of samples. Empty if it fails."""
        return self._tried([job], partial(_read, computed))

    def _tried(self, jobs: Sequence[Job], work: Callable[[Sequence[Job]], list[T]]) -> list[T]:
        """The work's results. If it fails for several, it is done for each: one's failure is not its neighbours'. Only
        work of which nothing is left where it fails may be given several."""
        if not jobs:
            return []
        try:
            return work(jobs)
        except Exception as error:
            if len(jobs) == 1:
                self._blame(jobs[0], error)
                return []
            log.warning("a batch of %d could not be computed; each is tried alone", len(jobs), exc_info=True)
        # Not while the error is handled, which holds what the batch had taken of the device's memory.
        return [result for job in jobs for result in self._tried([job], work)]

    def _blame(self, job: Job, error: Exception) -> None:
        """Called while the error is being handled."""
        if not isinstance(error, EngineError):
            log.exception("an utterance could not be computed")
        self._fail(job, error)

    def _prefill(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        (job,) = jobs
        drawn = self._runner.prefill(self._opened(job), feed_of(job))
        return [] if drawn is None else [(job, drawn, 0)]

    def _open(self, jobs: Sequence[Job]) -> list[Job]:
        """Of one, whether it can be fed: so that who cannot does not keep a batch from being one."""
        (job,) = jobs
        self._runner.check_room(self._opened(job), feed_of(job))
        return [job]

    def _prefill_together(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        drawn = self._runner.prefill_together([track_of(job) for job in jobs], [feed_of(job) for job in jobs])
        return [(job, *each) for job, each in zip(jobs, drawn, strict=True) if each is not None]

    def _opened(self, job: Job) -> Track:
        if job.track is None:
            stream, piece = job.stream, piece_of(job)
            assert job.prompt is not None and stream.slot is not None
            job.track = self._runner.open(stream.slot, piece.seed, job.prompt, stream.request.speed, stream.profile)
        return job.track

    def _decode(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        n_steps = min(self._runner.n_run_ahead, *(piece_of(job).n_sure for job in jobs))
        rows = []
        for job in jobs:
            piece, feed = piece_of(job), feed_of(job)
            assert feed.speech_id is not None
            banned = (feed.banned, *(piece.banned_after(n) for n in range(1, n_steps)))
            rows.append(Row(feed.speech_id, banned, feed.forced))
        drawn = self._runner.decode([track_of(job) for job in jobs], rows)
        return [(job, drawn, i) for i, job in enumerate(jobs)]

    def _begin(self, blocks: Mapping[int, UnderWay], jobs: Sequence[Job]) -> list[Job]:
        under_way = [blocks[job.key] for job in jobs]
        solves = self._runner.begin([track_of(job) for job in jobs], [each.block for each in under_way])
        for each, solve in zip(under_way, solves, strict=True):
            each.solve = solve
        return []

    def _flow(self, blocks: Mapping[int, UnderWay], jobs: Sequence[Job]) -> list[Job]:
        solves = [cast(FlowBlock, blocks[job.key].solve) for job in jobs]
        # One without tokens is done before its first step.
        self._runner.flow([solve for solve in solves if not solve.done])
        return []


def _read(computed: Drawn | Sound, _: Sequence[Job]) -> list[Any]:
    return computed.read() if isinstance(computed, Drawn) else [computed.read()]


def piece_of(job: Job) -> Piece:
    """Of an utterance that has one."""
    assert job.stream.piece is not None
    return job.stream.piece


def feed_of(job: Job) -> Feed:
    """Of an utterance whose piece has something to be fed."""
    feed = piece_of(job).feed()
    assert feed is not None
    return feed


def track_of(job: Job) -> Track:
    """Of an utterance whose piece was fed."""
    assert job.track is not None
    return job.track
