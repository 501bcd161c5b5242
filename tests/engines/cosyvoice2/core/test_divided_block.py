"""The second block becomes audio in two parts on a CPU: the same samples, and the first of them sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from speaking import SENTENCE, Rig, Stepped, Watched, spoken

from telephony_tts.engines.cosyvoice2.core.stream import UNSIZED_SHARE
from telephony_tts.engines.cosyvoice2.device.runner import Sound, Track
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.profile import CPU
from telephony_tts.engines.cosyvoice2.text.prompting import Request

pytestmark = pytest.mark.slow

UNDIVIDED = replace(CPU, second_frames=None)


class Vocoding(Watched):
    """Records the samples of each sound."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.n_frames: list[int] = []

    def vocode(self, tracks: Sequence[Track], on_failure: OnFailure) -> list[Sound | None]:
        sounds = super().vocode(tracks, on_failure)
        self.n_frames += [(sound.end - sound.begin) // 480 for sound in sounds if sound is not None]
        return sounds


@pytest.mark.parametrize("speed", [1.0, 0.8, 1.3, 2.5, 5.0])
def test_the_samples_are_those_of_the_undivided_block(rig: Rig, speed: float) -> None:
    """A border between two chunks would be audible here: the tiny vocoder sees further than it holds back."""
    request = Request(SENTENCE, seed=7, speed=speed)
    ours, whole = spoken(rig, request, profile=CPU), spoken(rig, request, profile=UNDIVIDED)
    assert len(ours) == len(whole) and np.abs(whole).max() > 1000
    # Sums of float32 over chunks of another length differ in their last bits.
    assert np.abs(ours.astype(int) - whole).max() <= 1


@pytest.mark.parametrize("profile", [CPU, UNDIVIDED])
def test_the_second_block_is_heard_in_two_parts(rig: Rig, profile: object) -> None:
    runner = Vocoding(rig)
    it = Stepped(rig, profile, runner=runner)  # type: ignore[arg-type]
    it.say(Request(f"{SENTENCE} {SENTENCE}", seed=7))
    it.run()
    assert runner.n_frames[0] == 36 and sum(runner.n_frames) * 480 == len(it.pcm(0))
    expected = [14, 36, 50] if profile is CPU else [50, 50]
    assert runner.n_frames[1 : 1 + len(expected)] == expected


def test_a_block_that_ends_the_piece_is_not_divided(rig: Rig) -> None:
    runner = Vocoding(rig)
    for text in ("Yes.", "It left on Tuesday."):
        it = Stepped(rig, CPU, runner=runner)
        it.say(Request(text, seed=1))
        it.run()
        assert it.ended[0].error is None and it.is_empty()
        piece_frames, runner.n_frames = runner.n_frames, []
        assert 14 not in piece_frames and sum(piece_frames) * 480 == len(it.pcm(0))


def test_the_next_audio_is_priced_by_its_length(rig: Rig) -> None:
    """36 of the second block's 50 frames come after the 14 that the first audio waits for."""
    it = Stepped(rig, CPU)
    key = it.say(Request(f"{SENTENCE} {SENTENCE}", seed=7))
    sizes: list[float] = []
    while (job := it.core._jobs.get(key)) is not None and len(sizes) < 12:
        work = job.pending_work(it.core.ahead, it.core.runner.n_flow_steps)
        if work is not None and (not sizes or work.n_batches[3] != sizes[-1]):
            sizes.append(work.n_batches[3])
        if not it.core.step():
            break
    of = {n: UNSIZED_SHARE + (1 - UNSIZED_SHARE) * n / 50 for n in (14, 36, 50)}
    assert sizes[:3] == [pytest.approx(of[n]) for n in (14, 36, 50)]
    it.cancel(key)
    it.run()
