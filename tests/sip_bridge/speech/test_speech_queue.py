"""Samples in order, marks at their samples, and none of them after a clear, with and without resampling."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.speech.speech_queue import SpeechQueue

PAIRS = [(16_000, 12_000), (48_000, 32_000), (48_000, 44_100), (48_000, 96_000), (48_000, 192_000), (16_000, 8_000)]


def tone(n: int, rate_hz: int, hz: float = 440.0) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hz * np.arange(n) / rate_hz)).round().astype("<i2")


def drained(queue: SpeechQueue, n: int) -> np.ndarray:
    pieces = []
    while piece := queue.take(n):
        pieces.append(piece)
    return np.frombuffer(b"".join(pieces), "<i2")


@pytest.mark.slow
@given(st.lists(st.binary(min_size=1, max_size=200).map(lambda b: b + b), max_size=10), st.integers(1, 90))
def test_speech_comes_out_as_it_went_in(pieces: list[bytes], n: int) -> None:
    queue = SpeechQueue(8000, 8000)
    for piece in pieces:
        queue.add(piece)
    whole = b"".join(pieces)
    assert queue.n_queued == len(whole) // 2
    assert drained(queue, n).tobytes() == whole
    assert queue.n_queued == 0


@given(st.lists(st.one_of(st.just("mark"), st.integers(1, 50)), max_size=25), st.integers(1, 40))
def test_a_mark_is_reached_with_the_last_sample_before_it_and_not_earlier(events: list[str | int], n: int) -> None:
    queue, place, places = SpeechQueue(8000, 8000), 0, []
    for event in events:
        if isinstance(event, int):
            queue.add(bytes(2 * event))
            place += event
        else:
            queue.mark(f"m{len(places)}")
            places.append(place)
    taken, seen = 0, list(queue.reached())
    assert seen == [f"m{i}" for i, at in enumerate(places) if at == 0]
    while piece := queue.take(n):
        taken += len(piece) // 2
        seen += queue.reached()
        assert seen == [f"m{i}" for i, at in enumerate(places) if at <= taken]
    assert len(seen) == len(places) and queue.n_marks == 0


def test_clear_drops_speech_and_marks_and_new_ones_count_from_there() -> None:
    queue = SpeechQueue(8000, 8000)
    queue.add(bytes(640))
    queue.mark("old")
    queue.take(160)
    queue.clear()
    assert (queue.n_queued, queue.n_marks, queue.take(160), queue.reached()) == (0, 0, b"", [])
    queue.add(b"\1\0" * 160)
    queue.mark("new")
    assert queue.reached() == []
    assert queue.take(160) == b"\1\0" * 160 and queue.reached() == ["new"]


@pytest.mark.parametrize(("in_hz", "out_hz"), PAIRS)
def test_resampled_speech_is_complete_to_its_last_sample(in_hz: int, out_hz: int) -> None:
    queue, speech = SpeechQueue(in_hz, out_hz), tone(in_hz // 2, in_hz)
    for at in range(0, len(speech), in_hz // 50):
        queue.add(speech[at : at + in_hz // 50].tobytes())
    queue.mark("end")
    heard = drained(queue, out_hz // 50)
    assert queue.reached() == ["end"]
    wanted = soxr.resample(speech.astype(np.float32), in_hz, out_hz, "HQ")
    assert len(heard) == len(wanted) == out_hz // 2
    assert np.abs(heard - wanted).max() <= 1


def test_clear_also_drops_what_the_resampler_holds_back() -> None:
    queue = SpeechQueue(16_000, 12_000)
    queue.add(tone(1600, 16_000).tobytes())
    queue.clear()
    queue.add(bytes(2 * 3200))
    assert not drained(queue, 240).any(), "the old tone leaked into the new silence"


def test_speech_after_a_pause_is_complete() -> None:
    queue = SpeechQueue(16_000, 12_000)
    for _ in range(3):
        queue.add(tone(1600, 16_000).tobytes())
        assert len(drained(queue, 240)) == 1200


def test_a_change_of_rate_keeps_what_is_queued_and_its_marks() -> None:
    queue = SpeechQueue(8000, 8000)
    queue.add(tone(800, 8000).tobytes())
    queue.take(160)
    queue.mark("end")
    queue.change_rate(16_000)
    assert queue.n_queued == 1280
    heard = queue.take(1279)
    assert queue.reached() == []
    heard += queue.take(320)
    assert queue.reached() == ["end"]
    wanted = soxr.resample(tone(800, 8000)[160:].astype(np.float32), 8000, 16_000, "HQ")
    assert np.abs(np.frombuffer(heard, "<i2") - wanted).max() <= 1
    queue.add(tone(160, 8000).tobytes())
    assert len(drained(queue, 320)) == 320
