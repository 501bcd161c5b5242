"""What a step computes: utterances' needs put before the runner, and whose fault it is when that fails.

Nothing here is under the core's lock: the stages that are computed belong to the lane that computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from telephony_tts.engines.cosyvoice2.jobs import Job
from telephony_tts.engines.cosyvoice2.model.flow_stream import Solve
from telephony_tts.engines.cosyvoice2.runner import Drawn, Row, Runner, Sound, Track
from telephony_tts.engines.cosyvoice2.stream import Piece, UnderWay
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
        return [drawn for job in jobs for drawn in self._tried([job], self._prefill)]

    def decode(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        """The same, of one batch."""
        return self._tried(jobs, self._decode)

    def flow(self, jobs: Sequence[Job], blocks: Mapping[int, UnderWay]) -> None:
        """A step of the blocks that were claimed for them, by key."""
        for job in jobs:
            self._tried([job], partial(self._begin, blocks))
        begun = [job for job in jobs if blocks[job.key].solve is not None]
        self._tried(begun, partial(self._flow, blocks))

    def vocode(self, jobs: Sequence[Job]) -> list[tuple[Job, Sound]]:
        """One by one: a joint that has gone on cannot go back where the batch fails."""
        return [sound for job in jobs for sound in self._tried([job], self._vocode)]

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
            if len(jobs) > 1:
                log.warning("a batch of %d could not be computed; each is tried alone", len(jobs), exc_info=True)
                return [result for job in jobs for result in self._tried([job], work)]
            if not isinstance(error, EngineError):
                log.exception("an utterance could not be computed")
            self._fail(jobs[0], error)
            return []

    def _prefill(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        (job,) = jobs
        piece = piece_of(job)
        feed = piece.feed()
        assert feed is not None and job.prompt is not None and job.stream.slot is not None
        if job.track is None:
            stream = job.stream
            job.track = self._runner.open(job.stream.slot, piece.seed, job.prompt, stream.request.speed, stream.profile)
        drawn = self._runner.prefill(job.track, feed)
        return [] if drawn is None else [(job, drawn, 0)]

    def _decode(self, jobs: Sequence[Job]) -> list[tuple[Job, Drawn, int]]:
        n_steps = min(self._runner.n_run_ahead, *(piece_of(job).n_sure for job in jobs))
        rows = []
        for job in jobs:
            piece = piece_of(job)
            feed = piece.feed()
            assert feed is not None and feed.speech_id is not None
            banned = (feed.banned, *(piece.banned_after(n) for n in range(1, n_steps)))
            rows.append(Row(feed.speech_id, banned, feed.forced))
        drawn = self._runner.decode([track_of(job) for job in jobs], rows)
        return [(job, drawn, i) for i, job in enumerate(jobs)]

    def _begin(self, blocks: Mapping[int, UnderWay], jobs: Sequence[Job]) -> list[Job]:
        (job,) = jobs
        under_way = blocks[job.key]
        if under_way.solve is None:
            under_way.solve = self._runner.begin(track_of(job), under_way.block)
        return []

    def _flow(self, blocks: Mapping[int, UnderWay], jobs: Sequence[Job]) -> list[Job]:
        solves = [cast(Solve, blocks[job.key].solve) for job in jobs]
        # One without tokens is done before its first step.
        self._runner.flow([solve for solve in solves if not solve.done])
        return []

    def _vocode(self, jobs: Sequence[Job]) -> list[tuple[Job, Sound]]:
        return list(zip(jobs, self._runner.vocode([track_of(job) for job in jobs]), strict=True))


def _read(computed: Drawn | Sound, _: Sequence[Job]) -> list[Any]:
    return computed.read() if isinstance(computed, Drawn) else [computed.read()]


def piece_of(job: Job) -> Piece:
    """Of an utterance that has one."""
    assert job.stream.piece is not None
    return job.stream.piece


def track_of(job: Job) -> Track:
    """Of an utterance whose piece was fed."""
    assert job.track is not None
    return job.track
