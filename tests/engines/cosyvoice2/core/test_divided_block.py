"""The second block becomes audio in two parts on a CPU: the same samples, and the first of them sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from speaking import Rig, Stepped, Watched

from telephony_tts.engines.cosyvoice2.core.stream import UNSIZED_SHARE, Piece, Stream
from telephony_tts.engines.cosyvoice2.device.runner import Sound, Track
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.profile import CPU
from telephony_tts.engines.cosyvoice2.text.prompting import Request

pytestmark = pytest.mark.slow

LONG = "It left on Tuesday."
"""With seed 0 of four blocks. One that ends the piece is not divided, so there must be three at least."""
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
    """A border between two chunks would change them: the tiny vocoder sees further than it holds back."""
    sounds, n_chunks = [], []
    for profile in (CPU, UNDIVIDED):
        runner = Vocoding(rig)
        it = Stepped(rig, profile, runner=runner).have_voices("prompted")
        it.say(Request(LONG, seed=0, speed=speed))
        it.run()
        sounds.append(it.pcm(0).astype(int))
        n_chunks.append(sum(n > 0 for n in runner.n_frames))
    assert len(sounds[0]) == len(sounds[1]) and np.abs(sounds[1]).max() > 1000
    # Fast speech may have too few frames for two exact parts.
    assert speed > 3 or n_chunks[0] == n_chunks[1] + 1
    # Sums of float32 over chunks of another length differ in their last bits.
    assert np.abs(sounds[0] - sounds[1]).max() <= 1


@pytest.mark.parametrize("profile", [CPU, UNDIVIDED])
def test_the_second_block_is_heard_in_two_parts(rig: Rig, profile: object) -> None:
    runner = Vocoding(rig)
    it = Stepped(rig, profile, runner=runner)  # type: ignore[arg-type]
    it.say(Request(LONG, seed=0))
    it.run()
    assert runner.n_frames[0] == 36 and sum(runner.n_frames) * 480 == len(it.pcm(0))
    expected = [14, 36, 50] if profile is CPU else [50, 50]
    assert runner.n_frames[1 : 1 + len(expected)] == expected


def test_a_block_that_ends_the_piece_is_not_divided(rig: Rig) -> None:
    runner = Vocoding(rig)
    for text in ("Yes.", "It left on Tuesday."):
        it = Stepped(rig, CPU, runner=runner).have_voices("prompted")
        it.say(Request(text, seed=1))
        it.run()
        assert it.ended[0].error is None and it.is_empty()
        piece_frames, runner.n_frames = runner.n_frames, []
        assert 14 not in piece_frames and sum(piece_frames) * 480 == len(it.pcm(0))


def piece_of(rig: Rig, n_tokens: int) -> Piece:
    """A piece with so many ids, outside of a core."""
    stream = Stream(Request(LONG), CPU, rig.model.tokenizer, rig.model.lm.config, rig.runner.n_positions)
    stream.voice = rig.prompt("prompted", CPU)
    assert stream.wants_slot
    piece = stream.begin(0)
    piece.tokens = [0] * n_tokens
    return piece


def test_parts_belong_to_the_oldest_block_without_mel(rig: Rig) -> None:
    """The third block is in the flow when the second one is done: 7 of the second's 25 tokens are its first part."""
    piece = piece_of(rig, 100)
    n_tokens = [len(piece.begin_block().new) for _ in range(3)]
    seen = []
    for parts in ([2 * n_tokens[0]], [14, 36], [50]):
        piece.take_mel(parts)
        for _ in parts:
            piece.take_audio(np.zeros(0, np.int16), 0, is_last=False)
            seen.append((piece.n_unvoiced_tokens, piece.n_unvoiced_blocks, piece.n_voiced_blocks, piece.n_mel_parts))
    left = [sum(n_tokens[1:]), sum(n_tokens[1:]) - 7, n_tokens[2], 0]
    assert [n for n, *_ in seen] == left
    assert [rest for _, *rest in seen] == [[2, 1, 0], [2, 1, 1], [1, 2, 0], [0, 3, 0]]
    # Mel of two blocks may wait at once.
    piece.tokens = [0] * 200
    begun = [len(piece.begin_block().new) for _ in range(2)]
    piece.take_mel([50])
    piece.take_mel([14, 36])
    for n_left in (begun[1], begun[1] - 7, 0):
        piece.take_audio(np.zeros(0, np.int16), 0, is_last=False)
        assert piece.n_unvoiced_tokens == n_left


def test_the_end_of_a_piece_is_priced_by_its_own_length(rig: Rig) -> None:
    """Pinned: behind two blocks it had the price of the second one's first part."""
    piece = piece_of(rig, 100)
    n_tokens = [len(piece.begin_block().new) for _ in range(2)]
    for n in n_tokens:
        piece.take_mel([2 * n])
        piece.take_audio(np.zeros(0, np.int16), 0, is_last=False)
    del piece.tokens[sum(n_tokens) + 20 :]
    piece.decoding._done = True  # type: ignore[union-attr]
    assert piece.has_block() and len(piece.begin_block().new) == 20 and piece.all_begun
    assert piece.next_size == pytest.approx(UNSIZED_SHARE + (1 - UNSIZED_SHARE) * 40 / 50)


def test_the_next_audio_is_priced_by_its_length(rig: Rig) -> None:
    """36 of the second block's 50 frames come after the 14 that the first audio waits for."""
    it = Stepped(rig, CPU)
    key = it.say(Request(LONG, seed=0))
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
