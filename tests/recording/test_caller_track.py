"""The caller's side of a recording: audio that comes with gaps, jitter, in bursts, and with or without a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.recording.recorder import Block
from telephony_tts.recording.stereo import Mixer
from telephony_tts.recording.tracks import CallerTrack, HeardTrack

MS = 1_000_000
ORIGIN_NS = 5_000 * MS


class Line:
    """A track, and what it hands out in the end. Every sample that is said is a number of its own."""

    def __init__(self) -> None:
        self.track = CallerTrack(ORIGIN_NS)
        self.n_said = 0
        self._mixer = Mixer()
        self._whole: list[bytes] = []

    def says(self, at_ms: float, clock_ms: int | None = None, length_ms: int = 20) -> None:
        """20 ms of the caller come at this moment."""
        n = length_ms * 8
        said = np.arange(self.n_said + 1, self.n_said + n + 1, dtype="<i2")
        self.n_said += n
        self.track.feed(said.tobytes(), clock_ms, ORIGIN_NS + round(at_ms * MS), "pcm", 8000)

    def take(self, until_ms: int) -> None:
        first = self.track.done
        pieces = self.track.take(until_ms * 8)
        self._whole.append(self._mixer.mix(Block(first, until_ms * 8 - first, pieces, [])))

    def heard(self, until_ms: int) -> list[tuple[int, int, int]]:
        """(where it begins, its first sample, its last sample) of each stretch without a gap."""
        self.take(until_ms)
        left = np.frombuffer(b"".join(self._whole), "<i2").reshape(-1, 2)[:, 0].astype(int)
        assert len(left) == until_ms * 8
        at = np.flatnonzero(left)
        cuts = np.flatnonzero((np.diff(at) != 1) | (np.diff(left[at]) != 1))
        starts, ends = np.r_[at[:1], at[cuts + 1]], np.r_[at[cuts], at[-1:]]
        return [(int(a), int(left[a]), int(left[b])) for a, b in zip(starts, ends, strict=True)]


def test_audio_is_placed_where_it_was_said() -> None:
    line = Line()
    for n in range(10):
        line.says(120 + 20 * n)
    assert line.heard(1000) == [(100 * 8, 1, 1600)]


def test_jitter_makes_no_gap_and_moves_nothing() -> None:
    line = Line()
    for n, late_ms in enumerate([35, 0, 60, 3, 80, 0, 11, 0, 100, 90]):
        line.says(120 + 20 * n + late_ms)
    assert line.heard(1000) == [(100 * 8, 1, 1600)], "the packet that was quickest tells when it was said"


@pytest.mark.parametrize("clock", [False, True])
def test_audio_that_comes_at_once_behind_a_stall_is_where_it_was_said(clock: bool) -> None:
    line = Line()
    for n in range(5):
        line.says(20 + 20 * n, 20 * n if clock else None)
    for n in range(5, 55):
        line.says(1100, 20 * n if clock else None)
    assert line.heard(2000) == [(0, 1, 55 * 160)]


def test_silence_of_the_peer_is_a_gap_as_long_as_it_was() -> None:
    line = Line()
    for n in range(5):
        line.says(20 + 20 * n)
    for n in range(5):
        line.says(1020 + 20 * n)
    assert line.heard(2000) == [(0, 1, 800), (8000, 801, 1600)]


def test_the_peers_clock_says_how_long_a_gap_is() -> None:
    """60 ms are missing: too little for a gap by the time of arrival alone."""
    line = Line()
    for n in range(5):
        line.says(20 + 20 * n, 20 * n)
    for n in range(8, 13):
        line.says(20 + 20 * n, 20 * n)
    assert line.heard(1000) == [(0, 1, 800), (160 * 8, 801, 1600)]


@pytest.mark.parametrize("clock_ms", [0, 4_000_000_000, -5])
def test_a_clock_that_is_nonsense_is_ignored(clock_ms: int) -> None:
    line = Line()
    for n in range(10):
        line.says(20 + 20 * n, 20 * n if n < 5 else clock_ms)
    assert line.heard(1000) == [(0, 1, 1600)]


def test_a_packet_that_comes_much_too_late_is_placed_when_it_came() -> None:
    line = Line()
    line.says(20, 0)
    line.take(1000)
    line.says(5020, 20)
    assert line.heard(6000) == [(0, 1, 160), (5000 * 8, 161, 320)]


def test_seconds_at_once_take_no_more_than_half_a_second() -> None:
    line = Line()
    for _ in range(200):
        line.says(20)
    assert line.track.n_dropped == (200 - 26) * 160
    assert sum(run.n_bytes for run in line.track.runs) == 26 * 320
    assert line.heard(600)[0][:2] == (0, 1)


def test_what_was_handed_out_never_changes() -> None:
    line = Line()
    for n in range(200):
        line.says(20 + 20 * n + (n % 7) * 9)
        if n > 150:
            line.take(20 * (n - 149))
    stretches = line.heard(5000)
    assert stretches == [(0, 1, 200 * 160)]


@pytest.mark.parametrize(("codec", "rate_hz", "width"), [("pcm", 16000, 2), ("pcm", 48000, 2), ("ulaw", 8000, 1)])
def test_other_formats_have_the_same_length(codec: str, rate_hz: int, width: int) -> None:
    track = CallerTrack(ORIGIN_NS)
    mixer = Mixer()
    n = rate_hz // 50
    wave = np.rint(8000 * np.sin(2 * np.pi * 500 * np.arange(n * 100) / rate_hz)).astype("<i2")
    got = []
    for i in range(100):
        frame = wave[i * n : i * n + n].tobytes() if width == 2 else bytes([40]) * n
        track.feed(frame, None, ORIGIN_NS + (120 + 20 * i) * MS, codec, rate_hz)
        if i in (30, 70):
            first, until = track.done, 20 * i * 8
            got.append(mixer.mix(Block(first, until - first, track.take(until), [])))
    first = track.done
    got.append(mixer.mix(Block(first, 3000 * 8 - first, track.take(3000 * 8), [])))
    left = np.frombuffer(b"".join(got), "<i2").reshape(-1, 2)[:, 0].astype(float)
    loud = np.flatnonzero(np.abs(left) > 200)
    assert abs(loud[0] - 800) <= 24 and abs(loud[-1] - (800 + 16000)) <= 24
    if width == 2:
        inside = left[900:16700]
        wanted = np.exp(2j * np.pi * 500 * np.arange(len(inside)) / 8000)
        assert abs(np.dot(inside, wanted)) / len(inside) > 3900, "no click and no loss where blocks meet"


def test_a_clear_cuts_a_frame_of_our_speech_in_its_middle() -> None:
    """A frame of our speech is cut in its middle by a clear, in samples."""
    track = HeardTrack(ORIGIN_NS)
    for n in range(3):
        track.playing(bytes([n]) * 160, ORIGIN_NS + n * 20 * MS, "ulaw", 8000)
    track.emptied(ORIGIN_NS + 30 * MS)
    (piece,) = track.take(8000)
    assert (piece.start, piece.end, piece.payload) == (0, 240, bytes(160) + bytes([1]) * 80)
    assert track.spans == [(0, 240)]


class PlainTrack(CallerTrack):
    """Always takes the general path."""

    def feed(self, payload: bytes, clock_ms: int | None, now_ns: int, codec: str, rate_hz: int) -> None:
        self._n_bytes = -1
        super().feed(payload, clock_ms, now_ns, codec, rate_hz)


steps = st.tuples(
    st.sampled_from([0, 1, 15, 19, 20, 20, 20, 21, 25, 60, 300, 3000]),
    st.sampled_from([None, 20, 20, 20, 24, 40, 400, -20, 100_000]),
    st.sampled_from([(160, "ulaw", 8000)] * 6 + [(80, "ulaw", 8000), (640, "pcm", 16000), (883, "pcm", 22050)]),
    st.sampled_from([False] * 9 + [True]),
)


@given(st.lists(steps, max_size=60))
def test_the_quick_path_places_audio_as_the_plain_one_does(said: list[tuple[int, int | None, Any, bool]]) -> None:
    quick, plain = CallerTrack(ORIGIN_NS), PlainTrack(ORIGIN_NS)
    at_ms, clock_ms = 20, 0
    for wait_ms, step_ms, (n_bytes, codec, rate_hz), is_taken in said:
        at_ms += wait_ms
        clock_ms += step_ms or 0
        for track in (quick, plain):
            track.feed(bytes(n_bytes), None if step_ms is None else clock_ms, ORIGIN_NS + at_ms * MS, codec, rate_hz)
        places = [[(run.at, run.first, run.end, run.n_bytes) for run in track.runs] for track in (quick, plain)]
        assert places[0] == places[1] and quick.n_dropped == plain.n_dropped
        if is_taken:
            until = max(quick.done, (at_ms - 500) * 8)
            taken = [[piece[1:] for piece in track.take(until)] for track in (quick, plain)]
            assert taken[0] == taken[1]
