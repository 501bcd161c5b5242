"""Chunks become pieces: no sample and no timing is lost, and nothing is kept back that a listener may need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.api import Chunk, Timing
from telephony_tts.engines.remote.pieces import MOMENT_NS, MOST_NS, PIECE_NS, SPARE_NS, PieceGatherer, duration_ns
from telephony_tts.runtime.clock import NS_PER_MS

RATE_HZ = 8_000


def chunk(ms: int, first_sample: int = 0, rate_hz: int = RATE_HZ, *, estimates: bool = False) -> Chunk:
    n_samples = ms * rate_hz // 1000
    pcm = np.arange(first_sample, first_sample + n_samples).astype(np.int16)
    return Chunk(pcm, rate_hz, (Timing(0, 1, first_sample, first_sample + 1),), estimates=estimates)


def test_the_first_chunk_goes_at_once_and_later_ones_while_the_listener_has_little() -> None:
    gatherer = PieceGatherer()
    assert [duration_ns(piece) for piece in gatherer.add(chunk(60), 0)] == [60 * NS_PER_MS]
    assert gatherer.add(chunk(60), 0) == [] and gatherer.deadline_ns() == MOMENT_NS, "60 ms are enough for a moment"
    assert len(gatherer.add(chunk(60), MOMENT_NS)) == 1, "and not for more"
    late = PieceGatherer()
    late.add(chunk(60), 0)
    assert len(late.add(chunk(60), 60 * NS_PER_MS)) == 1, "the listener has nothing"


def test_a_fast_engines_chunks_are_joined() -> None:
    gatherer = PieceGatherer()
    pieces = [piece for _ in range(31) for piece in gatherer.add(chunk(100), 0)]
    lengths = [duration_ns(piece) // NS_PER_MS for piece in pieces]
    assert lengths == [100] + [400] * 7
    rest = gatherer.flush(0)
    assert rest is not None and duration_ns(rest) == 200 * NS_PER_MS and gatherer.flush(0) is None


def test_what_is_kept_is_due_before_the_listener_needs_it() -> None:
    gatherer = PieceGatherer()
    gatherer.add(chunk(1_000), 5)
    assert gatherer.add(chunk(100), 10) == []
    assert gatherer.deadline_ns() == 5 + 1_000 * NS_PER_MS - SPARE_NS


def test_chunks_that_differ_are_not_joined_and_long_ones_stay() -> None:
    gatherer = PieceGatherer()
    gatherer.add(chunk(2_000), 0)
    assert gatherer.add(chunk(100), 0) == []
    (kept,) = gatherer.add(chunk(100, estimates=True), 0)
    assert not kept.estimates and duration_ns(kept) == 100 * NS_PER_MS
    (kept,) = gatherer.add(chunk(100, rate_hz=16_000), 0)
    assert kept.estimates
    first, long = gatherer.add(chunk(900), 0)
    assert (first.sample_rate_hz, duration_ns(long)) == (16_000, 900 * NS_PER_MS)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 400)), max_size=40))
def test_every_sample_and_timing_comes_once_in_order_and_in_time(chunks: list[tuple[int, int]]) -> None:
    """(length of a chunk, wait before it), in milliseconds. The caller flushes at the deadline."""
    gatherer, given_out, n_samples, now_ns = PieceGatherer(), [], 0, 0
    first_ns, sent_ns = None, 0
    for ms, wait_ms in chunks:
        now_ns += wait_ms * NS_PER_MS
        due_ns = gatherer.deadline_ns()
        if due_ns is not None and due_ns <= now_ns:
            piece = gatherer.flush(due_ns)
            assert piece is not None
            given_out.append(piece)
            sent_ns += duration_ns(piece)
        for piece in gatherer.add(chunk(ms, n_samples), now_ns):
            first_ns = now_ns if first_ns is None else first_ns
            given_out.append(piece)
            sent_ns += duration_ns(piece)
            assert duration_ns(piece) <= max(MOST_NS, 700 * NS_PER_MS)
        n_samples += ms * RATE_HZ // 1000
        if gatherer.deadline_ns() is not None:
            assert first_ns is not None and first_ns + sent_ns > now_ns, "the listener has nothing, and audio is kept"
    assert PIECE_NS < MOST_NS
    if (rest := gatherer.flush(now_ns)) is not None:
        given_out.append(rest)
    heard = np.concatenate([piece.pcm for piece in given_out]) if given_out else np.zeros(0, np.int16)
    assert heard.tolist() == np.arange(n_samples).astype(np.int16).tolist()
    assert len([timing for piece in given_out for timing in piece.timings]) == len(chunks)
