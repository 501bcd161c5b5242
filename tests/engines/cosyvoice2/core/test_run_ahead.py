"""A CPU draws several ids of a stream in one batch: no more than the next block needs, and not for long."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from speaking import Rig, Stepped, Watched, spoken

from telephony_tts.engines.cosyvoice2.device import lm_steps
from telephony_tts.engines.cosyvoice2.device.lm_steps import DrawnIds
from telephony_tts.engines.cosyvoice2.device.requests import DecodeRow
from telephony_tts.engines.cosyvoice2.device.runner import CPU_RUN_AHEAD, Track
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.runtime.clock import NS_PER_MS

pytestmark = pytest.mark.slow

REQUEST = Request("It left on Tuesday.")
"""88 ids in the voice with a prompt: of four blocks, which do not all need a multiple of `CPU_RUN_AHEAD`."""


class Drawing(Watched):
    """Records how many ids each batch was asked for, and how many it drew."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.asked: list[int] = []
        self.drawn: list[int] = []

    def decode(self, tracks: Sequence[Track], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        drawn = super().decode(tracks, rows)
        self.asked.append(len(rows[0].banned))
        self.drawn += [ids.n for ids in drawn]
        return drawn


def test_a_batch_draws_what_the_next_block_needs_and_no_more(rig: Rig) -> None:
    it = Stepped(rig, runner=(runner := Drawing(rig))).have_voices("prompted")
    it.say(REQUEST)
    n_batches = 0
    while 0 not in it.ended:
        job = it.core._jobs[0]
        piece = job.stream.piece
        n_missing = max(1, piece.n_missing) if piece is not None and job.track is not None else None
        assert it.core.step()
        for n in runner.asked[n_batches:]:
            assert n_missing is not None and n == min(CPU_RUN_AHEAD, n_missing)
        n_batches = len(runner.asked)
    assert set(runner.asked) >= {1, CPU_RUN_AHEAD}
    np.testing.assert_array_equal(it.pcm(0), spoken(rig, REQUEST))


def test_nothing_is_drawn_after_the_end_of_speech(rig: Rig) -> None:
    n_stopped = 0
    for seed in range(6):
        it = Stepped(rig, runner=(runner := Drawing(rig))).have_voices("prompted")
        it.say(Request("Thank you for calling.", seed))
        decoding = None
        while 0 not in it.ended:
            piece = it.core._jobs[0].stream.piece
            decoding = piece.decoding if piece is not None else decoding
            assert it.core.step()
        assert isinstance(decoding, SentenceDecoding)
        # The prefill draws the first id. A stop id is drawn, and is no speech.
        is_stopped = decoding.n_out < decoding.max_len
        assert sum(runner.drawn) == decoding.n_out - (not is_stopped)
        n_stopped += is_stopped and runner.drawn[-1] < runner.asked[-1]
    assert n_stopped, "no end of speech lies within a batch"


def test_a_batch_ends_soon_where_an_id_takes_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a stream that is cancelled or more urgent does not wait for several slow ids."""
    whole = spoken(rig, REQUEST)
    ticks = itertools.count(0, 30 * NS_PER_MS)
    monkeypatch.setattr(lm_steps, "monotonic_ns", lambda: next(ticks))
    monkeypatch.setattr(lm_steps, "MOST_AHEAD_NS", 50 * NS_PER_MS)
    it = Stepped(rig, runner=(runner := Drawing(rig))).have_voices("prompted")
    it.say(REQUEST)
    it.run()
    assert max(runner.asked) == CPU_RUN_AHEAD and max(runner.drawn) == 2
    np.testing.assert_array_equal(it.pcm(0), whole)
