"""What a recording says was heard is what a player, which gets the same frames and clears, really plays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from world import MS, World

from telephony_tts.audio.g711 import Pcm, decode_ulaw
from telephony_tts.recording.recorder import CallRecorder
from telephony_tts.recording.stereo import Mixer
from telephony_tts.recording.tracks import SAMPLE_NS, HeardTrack
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

TAIL_NS = 3_000 * MS


class Player(World):
    """A peer that plays what it gets, one frame after the other, and a recording of the same call."""

    def __init__(self, **how: Any) -> None:
        self.ear: list[tuple[int, Pcm]] = []
        """(when its first sample is heard, samples)"""
        self.delay_ns = 0
        self._player_end_ns = 0
        self.blocks: list[bytes] = []
        self.rows: list[Any] = []
        self.recorder: CallRecorder | None = None
        self._mixer = Mixer()
        super().__init__(**how)
        self.recorder = CallRecorder(self.session, self.now_ns)
        self.session.listeners.append(self.recorder)

    def send(self, message: Any) -> None:
        if self.recorder is not None:
            self.recorder.received(message, self.now_ns)
        super().send(message)

    def pump(self) -> None:
        seen = len(self.log)
        super().pump()
        for effect in self.log[seen:]:
            if isinstance(effect, m.Frame) and effect.turn:
                begin_ns = max(self._player_end_ns, self.now_ns + self.delay_ns)
                self.ear.append((begin_ns, decode_ulaw(effect.payload)))
                self._player_end_ns = begin_ns + len(effect.payload) * SAMPLE_NS
            elif isinstance(effect, m.MediaClear) or (
                isinstance(effect, m.Cleared | m.Paused) and not self.peer
            ):
                self._clear()
            if self.recorder is not None and not isinstance(effect, m.Frame):
                self.recorder.told(effect, self.now_ns)

    def _echo(self, name: str) -> None:
        if self.recorder is not None:
            self.recorder.received(m.MediaMark(name), self.now_ns)
        super()._echo(name)

    def _clear(self) -> None:
        heard = [(at_ns, pcm[: max(0, (self.now_ns - at_ns) // SAMPLE_NS)]) for at_ns, pcm in self.ear]
        self.ear = [(at_ns, pcm) for at_ns, pcm in heard if len(pcm)]
        self._player_end_ns = min(self._player_end_ns, self.now_ns)

    def take(self, *, all_of_it: bool = False) -> None:
        assert self.recorder is not None
        until = self.recorder.position(self.now_ns if all_of_it else self.now_ns - TAIL_NS)
        if all_of_it:
            self.recorder.finish(until)
        block = self.recorder.take(until)
        self.rows += block.rows
        self.blocks.append(self._mixer.mix(block))

    @property
    def recorded(self) -> Pcm:
        """Shape [n_samples, 2]."""
        return np.frombuffer(b"".join(self.blocks), "<i2").reshape(-1, 2)

    def played(self, n_samples: int) -> Pcm:
        whole = np.zeros(n_samples, np.int16)
        for at_ns, pcm in self.ear:
            at = (at_ns - self.start_ns + SAMPLE_NS // 2) // SAMPLE_NS
            whole[at : at + len(pcm)] = pcm[: max(0, n_samples - at)]
        return whole


TEXTS = ["Hello. ", "Your balance is fine", " today. Thank you", "One two three four five six.", "wait", "A. B. C. "]
say = st.tuples(st.just("say"), st.sampled_from(TEXTS))
piece = st.tuples(st.just("text"), st.sampled_from(TEXTS), st.sampled_from(["a", "b"]))
clear = st.tuples(st.just("clear"), st.sampled_from([None, None, "a", "b"]))
hold = st.tuples(st.sampled_from(["pause", "resume"]))
run = st.tuples(st.just("run"), st.sampled_from([1, 19.99, 20, 137.3, 400, 1501, 4000]))
take = st.tuples(st.just("take"))
worlds = st.fixed_dictionaries(
    {
        "first_audio_ms": st.sampled_from([0, 33.3]),
        "chunk_interval_ms": st.sampled_from([0, 130]),
        "ms_per_char": st.sampled_from([7, 20]),
        "peer": st.booleans(),
    }
)


@pytest.mark.slow
@given(worlds, st.lists(st.one_of(say, piece, clear, hold, hold, run, run, take), max_size=25))
@example({"peer": True}, [("say", "One two three four five six."), ("run", 137.3), ("clear", None), ("take",)])
@example({"peer": False}, [("say", "One two."), ("run", 137.3), ("pause",), ("run", 400), ("resume",), ("run", 1501)])
@example({"peer": True}, [("text", "Hello. ", "a"), ("text", "wait. ", "b"), ("run", 137.3), ("clear", "a")])
def test_the_right_channel_is_what_a_player_plays(how: dict[str, Any], actions: list[tuple[Any, ...]]) -> None:
    world = Player(settings=SessionSettings(first_clause_chars=0), **how)
    for action in actions:
        match action:
            case ("say", words):
                world.say(words)
            case ("text", words, turn):
                world.send(m.Text(words, turn))
            case ("clear", turn):
                world.send(m.Clear(turn))
            case ("pause",):
                world.send(m.PauseSpeech())
            case ("resume",):
                world.send(m.ResumeSpeech())
            case ("run", ms):
                world.run(ms)
            case ("take",):
                world.take()
    world.run(500)
    world.take(all_of_it=True)
    recorded = world.recorded
    assert len(recorded) == (world.now_ns - world.start_ns) // SAMPLE_NS
    assert not recorded[:, 0].any(), "no speech yet"
    # The last sample may be heard only in part.
    np.testing.assert_array_equal(recorded[:-1, 1], world.played(len(recorded))[:-1])


def test_cleared_speech_is_not_in_it_and_the_next_turn_is_where_it_was_heard() -> None:
    world = Player(peer=True)
    world.say("One two three four five six.")
    world.run(310)
    world.send(m.Clear())
    world.run(1000)
    world.say("A. B. C. ")
    world.run(2000)
    world.take(all_of_it=True)
    right = world.recorded[:, 1]
    loud = np.flatnonzero(np.abs(right) > 700)
    assert loud[0] < 160 and not right[310 * 8 : 1310 * 8].any()
    assert np.abs(right[300 * 8 : 310 * 8]).min() > 700, "up to the clear it was heard"
    assert np.abs(right[1310 * 8 + 160 : 1310 * 8 + 320]).min() > 700


def test_a_peer_that_reports_when_it_begins_is_recorded_at_that_time() -> None:
    """A peer without marks plays from an empty buffer 240 ms after it got the first frame, and tells us then."""
    world = Player()
    world.session.attach_media(world.now_ns, marks=False, clears=True)
    world.delay_ns = 240 * MS
    world.run(100)
    world.say("One two three four five six.")
    world.run(240)
    world.send(m.MediaPlayback("playing"))
    world.delay_ns = 0
    world.run(3000)
    world.take(all_of_it=True)
    recorded = world.recorded[:, 1]
    np.testing.assert_array_equal(recorded, world.played(len(recorded)))
    assert np.flatnonzero(np.abs(recorded) > 700)[0] >= 340 * 8


def test_rows_of_the_timeline_tell_the_call() -> None:
    world = Player(peer=True)
    world.send(m.Say("One two three. Four five.", "t1"))
    world.run(400)
    world.send(m.Clear())
    world.run(100)
    world.take(all_of_it=True)
    told = [(row.ms, row.by, row.what if isinstance(row.what, str) else type(row.what).__name__) for row in world.rows]
    assert told[0] == (0, "bot", "Say")
    assert (400, "bot", "Clear") in told and (400, "server", "Cleared") in told
    assert (0, "server", "heard") in told
    (heard,) = (row for row in world.rows if row.what == "heard")
    assert heard.more == {"end_ms": 400}


def test_a_peer_that_plays_late_by_its_marks_is_recorded_as_it_plays() -> None:
    """The marks come back 80 ms late, so 80 ms less were heard at the clear than the schedule says."""
    world = Player(peer=True, peer_delay_ms=80)
    world.delay_ns = 80 * MS
    for n, text in enumerate(["One two three four five six.", "A. B. C. ", "One two three four five six."]):
        world.say(text)
        world.run(410)
        if n != 1:
            world.send(m.Clear() if n else m.PauseSpeech())
            world.run(700)
            world.send(m.ResumeSpeech())
        world.run(2500)
        world.take()
    world.take(all_of_it=True)
    recorded = world.recorded[:, 1]
    np.testing.assert_array_equal(recorded[:-1], world.played(len(recorded))[:-1])
    assert not recorded[: 80 * 8].any() and np.abs(recorded).max() > 700


def test_what_a_client_that_keeps_turns_apart_drops_was_not_heard() -> None:
    """Clients of other vendors get audio far ahead and drop it themselves."""
    settings = SessionSettings(first_clause_chars=0, separate_turns=True, lead_ms=2000)
    world = Player(settings=settings)
    world.say("One two three four five six.")
    world.run(310)
    world.send(m.Clear())
    world.run(1000)
    world.take(all_of_it=True)
    right = world.recorded[:, 1]
    assert np.abs(right[300 * 8 : 310 * 8]).min() > 700 and not right[310 * 8 :].any()


def test_a_report_that_was_read_late_leaves_no_gap_in_what_was_heard() -> None:
    """Our process stood still for 400 ms, and read then what a peer had reported that played on."""
    track, frame_ns = HeardTrack(0), 20 * MS
    sound = bytes(range(1, 161))
    for n in range(100):
        track.playing(sound, n * frame_ns, "ulaw", 8000)
    track.peer_is_late(40 * MS, 140 * MS)
    track.peer_is_late(440 * MS, 1_440 * MS)
    assert [run.at for run in track.runs] == [320, 1000 * 8 + 440 * 8]
    track.peer_is_late(50 * MS, 1_550 * MS)
    pieces = track.take(3000 * 8)
    assert [(piece.start, piece.end) for piece in pieces] == [(320, 8320), (8320 + 10 * 8, 16400)]
    assert b"".join(piece.payload for piece in pieces) == 100 * sound


def test_what_was_written_is_not_moved_back() -> None:
    track = HeardTrack(0)
    for n in range(100):
        track.playing(bytes(160), n * 20 * MS, "ulaw", 8000)
    track.peer_is_late(0, 100 * MS)
    track.peer_is_late(400 * MS, 1_400 * MS)
    assert [(piece.start, piece.end) for piece in track.take(1_300 * 8)] == [(0, 8000)]
    track.peer_is_late(0, 1_100 * MS)
    assert [(piece.start, piece.end) for piece in track.take(3_000 * 8)] == [(1_300 * 8, 2_300 * 8)]


def test_each_file_that_begins_late_moves_itself_and_not_the_one_before() -> None:
    """Sentences of 1, 3 and 1 s, each a file that the peer begins late. The second one is being written meanwhile.
    Pinned: the last frame of each file was moved with the next one, so that a file had a gap before its last 20 ms."""
    track, frame_ns = HeardTrack(0), 20 * MS
    for n in range(250):
        track.playing(bytes([n] * 160), n * frame_ns, "ulaw", 8000)
    track.moved(60 * MS, 1_060 * MS)  # the second file, due at 1000 ms
    pieces = track.take(2_000 * 8)
    track.moved(40 * MS, 4_100 * MS)  # the third, due at 4060 ms
    pieces += track.take(6_000 * 8)
    places = [(piece.start, piece.end, len(piece.payload)) for piece in pieces]
    assert places == [
        (0, 1_000 * 8, 1_000 * 8),
        (1_060 * 8, 2_000 * 8, 940 * 8),
        (2_000 * 8, 4_060 * 8, 2_060 * 8),
        (4_100 * 8, 5_100 * 8, 1_000 * 8),
    ]
