"""Runs the batches of a step on the runner, and confines each failure to the jobs that caused it.

Nothing here is under the core's lock. The stages that are computed belong to the lane that computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.core.stream import OpenBlock, Piece
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.model.failures import isolated
from telephony_tts.engines.cosyvoice2.text.generation import LmFeed
from telephony_tts.runtime.errors import EngineError

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
    from telephony_tts.engines.cosyvoice2.device.runner import Runner, Sound, Track
    from telephony_tts.engines.cosyvoice2.model.flow.stream import FlowBlock

log = logging.getLogger(__name__)

T = TypeVar("T")


class Batches:
    """`fail` receives each job that cannot be computed, with the error."""

    def __init__(self, runner: Runner, fail: Callable[[Job, Exception], None]) -> None:
        self._runner = runner
        self._fail = fail

    def prefill(self, jobs: Sequence[Job]) -> list[tuple[Job, DrawnIds]]:
        """The ids drawn, for each job whose feed ended with this step."""
        drawn: list[tuple[Job, DrawnIds]] = []
        n_most = self._runner.n_pass_rows
        for begin in range(0, len(jobs), n_most):
            # A job that cannot be fed must not make the batch of the others fail. Those of a later run are opened while
            # a device computes the run before.
            able = [job for job in jobs[begin : begin + n_most] if self._isolated([job], self._open)]
            drawn += self._isolated(able, self._prefill)
        return drawn

    def decode(self, jobs: Sequence[Job]) -> list[tuple[Job, DrawnIds]]:
        """The ids drawn for each job."""
        return self._isolated(jobs, self._decode)

    def flow(self, blocks: Mapping[Job, OpenBlock]) -> None:
        """One Euler step of the block that each job claimed. The flow reports failures per block, and nothing is tried
        again: the other blocks have taken their step."""
        new = [job for job, block in blocks.items() if block.flow_block is None]
        self._isolated(new, partial(self._begin, blocks))
        # A block without tokens is done before its first step.
        jobs = [job for job, block in blocks.items() if block.flow_block is not None and not block.flow_block.done]
        if not jobs:
            return
        try:
            self._runner.step_blocks(
                [cast("FlowBlock", blocks[job].flow_block) for job in jobs],
                lambda i, error: self._report(jobs[i], error),
            )
        except Exception as error:
            for job in jobs:
                self._report(job, error)

    def vocode(self, jobs: Sequence[Job]) -> list[tuple[Job, Sound]]:
        """Vocoder state cannot be rolled back. The runner reports failures per track, and nothing is tried again."""
        try:
            sounds = self._runner.vocode(
                [voicing_track_of(job) for job in jobs], lambda i, error: self._report(jobs[i], error)
            )
        except Exception as error:
            for job in jobs:
                self._report(job, error)
            return []
        return [(job, sound) for job, sound in zip(jobs, sounds, strict=True) if sound is not None]

    def read(self, job: Job, read: Callable[[], T]) -> list[T]:
        """What was computed for a job, in a list; empty if reading it fails. Waits for the device."""
        return self._isolated([job], lambda _: [read()])

    def _isolated(self, jobs: Sequence[Job], work: Callable[[Sequence[Job]], list[T]]) -> list[T]:
        """The results of `work`, which must change nothing when it fails for several jobs."""
        return isolated(jobs, work, self._report)

    def _report(self, job: Job, error: Exception) -> None:
        """Call it while the error is handled: the log shows its traceback."""
        if not isinstance(error, EngineError):
            log.exception("an utterance failed")
        self._fail(job, error)

    def _open(self, jobs: Sequence[Job]) -> list[Job]:
        """Give one job its track and check that its feed fits."""
        (job,) = jobs
        if job.track is None:
            stream, piece = job.stream, piece_of(job)
            assert job.prompt is not None and stream.slot is not None
            job.track = self._runner.open(stream.slot, piece.seed, job.prompt, stream.request.speed, stream.profile)
        self._runner.check_room(job.track, feed_of(job))
        return [job]

    def _prefill(self, jobs: Sequence[Job]) -> list[tuple[Job, DrawnIds]]:
        drawn = self._runner.prefill([track_of(job) for job in jobs], [feed_of(job) for job in jobs])
        return [(job, ids) for job, ids in zip(jobs, drawn, strict=True) if ids is not None]

    def _decode(self, jobs: Sequence[Job]) -> list[tuple[Job, DrawnIds]]:
        pieces = [piece_of(job) for job in jobs]
        n_steps = min(self._runner.n_run_ahead, *(piece.n_drawable_unread for piece in pieces))
        if not self._runner.draws_past_blocks:
            n_steps = min(n_steps, *(max(1, piece.n_missing) for piece in pieces))
        rows = []
        for job in jobs:
            piece, feed = piece_of(job), feed_of(job)
            assert feed.speech_id is not None
            rows.append(DecodeRow(feed.speech_id, (feed.banned, *piece.banned_later(n_steps - 1)), feed.forced))
        return list(zip(jobs, self._runner.decode([track_of(job) for job in jobs], rows), strict=True))

    def _begin(self, blocks: Mapping[Job, OpenBlock], jobs: Sequence[Job]) -> list[Job]:
        begun = self._runner.begin([voicing_track_of(job) for job in jobs], [blocks[job].block for job in jobs])
        for job, flow_block in zip(jobs, begun, strict=True):
            blocks[job].flow_block = flow_block
        return []


def piece_of(job: Job) -> Piece:
    """The piece of a job that has one."""
    assert job.stream.piece is not None
    return job.stream.piece


def feed_of(job: Job) -> LmFeed:
    """The feed of a job whose piece has one."""
    feed = piece_of(job).feed()
    assert feed is not None
    return feed


def track_of(job: Job) -> Track:
    """The track of a job whose piece was fed."""
    assert job.track is not None
    return job.track


def voicing_track_of(job: Job) -> Track:
    """The track of the piece whose audio is made."""
    track = job.voicing_track
    assert track is not None
    return track
