"""When each frame is sent, with a late engine, a stalled loop or a full socket too."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from world import RATE_HZ, World

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.session.effects import Synthesize
from telephony_tts.session.playout import Playout
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

MS = 1_000_000
LONG = "one two three four five six seven eight nine ten eleven twelve."


def test_playout_is_one_schedule_without_drift() -> None:
    playout = Playout(20 * MS, 60 * MS)
    playout.start(1000 * MS)
    due = []
    for _ in range(5):
        due.append((playout.send_ns() // MS, playout.due_ns() // MS))
        playout.n_sent += 1
    assert due == [(940, 1000), (960, 1020), (980, 1040), (1000, 1060), (1020, 1080)]


def test_playout_moves_by_exactly_the_gap() -> None:
    playout = Playout(20 * MS, 0)
    playout.start(0)
    playout.n_sent = 3
    assert playout.resume_at(60 * MS) == 0, "a frame is not late at its due time"
    assert playout.resume_at(95 * MS) == 35 * MS
    assert playout.due_ns() == 95 * MS
    assert playout.played_ns(95 * MS) == 60 * MS
    assert playout.played_ns(105 * MS) == 60 * MS, "only sent audio can have been heard"


def test_what_was_played_stays_played_while_a_gap_lasts() -> None:
    """Pinned: speech behind a gap is sent ahead. Until it was heard, too little of the turn counted as played, by the
    length of the gap. Genesys has no marks, so `heard_ms` was too small."""
    playout = Playout(20 * MS, 100 * MS)
    playout.start(0)
    playout.n_sent = 20
    assert playout.resume_at(700 * MS) == 300 * MS
    playout.n_sent = 25
    played = [playout.played_ns(at * MS) // MS for at in (380, 410, 600, 700, 740, 900)]
    assert played == [380, 400, 400, 400, 440, 500]


def test_first_frame_at_once_and_never_further_ahead_than_the_lead() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=100))
    world.say(LONG)
    world.run(0.5)
    assert [at for at, _, _ in world.frames] == [0] * 6
    world.run(2000)
    assert [at for at, _, _ in world.frames] == [max(0, n * 20 - 100) for n in range(len(world.frames))]
    assert len(world.frames) == 106


def test_frames_sent_together_are_ahead_by_at_most_the_lead() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=100, bulk_ms=60))
    world.say(LONG)
    world.run(0.5)
    assert [at for at, _, _ in world.frames] == [0] * 6, "frames within the lead are sent at once"
    world.run(2000)
    assert [at for at, _, _ in world.frames] == [max(0, n // 3 * 60 - 60) for n in range(len(world.frames))]
    late = [effect.late_ns for effect in world.log if isinstance(effect, m.Frame)]
    assert set(late) == {0}


def test_a_turn_after_another_starts_with_its_first_frames() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=100, bulk_ms=60))
    world.say("one two three.", "a")
    world.say("four five six.", "b")
    world.run(4000)
    begun = next(i for i, event in enumerate(world.log) if event == m.Started("b", 0.0))
    assert isinstance(world.log[begun + 1], m.Frame)
    n_before = sum(isinstance(event, m.Frame) for event in world.log[:begun])
    sent_ms = [at for at, _, _ in world.frames[n_before : n_before + 4]]
    assert sent_ms == [n_before * 20 - 60] * 3 + [n_before * 20]


def test_a_minute_of_speech_ends_on_the_schedule() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=40))
    world.say(" ".join([LONG] * 20))
    world.run(90_000)
    (done,) = world.of(m.Done)
    assert done.audio_ms >= 60_000 and done.underruns == 0
    ended = [at for at, _, _ in world.frames][-1]
    assert ended == (len(world.frames) - 1) * 20 - 40


def test_after_a_stall_all_due_frames_go_at_once_and_the_schedule_stays() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=60))
    world.say(LONG)
    world.run(500)
    n_before = len(world.frames)
    world.jump(300)
    world.pump()
    assert len(world.frames) == n_before + 15
    late_ms = [effect.late_ns / MS for effect in world.log if isinstance(effect, m.Frame)][-15:]
    assert late_ms == [280 - 20 * n for n in range(15)], "each frame has its lateness"
    world.run(3000)
    assert world.frames[-1][0] == (len(world.frames) - 1) * 20 - 60
    assert world.of(m.Done)[0].underruns == 0


def test_an_engine_gap_counts_once_and_moves_the_schedule() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=40), chunk_interval_ms=150)
    world.say("one two three four")
    world.run(5000)
    (done,) = world.of(m.Done)
    assert done.underruns >= 3
    times = [at for at, _, _ in world.frames]
    gaps = [later - at for at, later in pairwise(times) if later - at > 100]
    assert len(gaps) >= 3, "the gaps are where the engine was late"
    late = [effect.late_ns for effect in world.log if isinstance(effect, m.Frame)]
    assert set(late) == {0}, "no frame was late: the engine had not made it yet"
    n_speech = sum(turn == 1 for _, turn, _ in world.frames)
    assert abs(n_speech - 45) <= 2, "nothing was dropped or doubled to make up for them"


def test_slow_writing_is_not_an_underrun_and_the_last_word_is_not_held_back() -> None:
    world = World()
    world.send(m.Text("One two three.", "a"))
    world.send(m.Flush("a"))
    world.run(1500)
    n_speech = sum(turn == 1 for _, turn, _ in world.frames)
    assert n_speech >= 35, "all 700 ms were sent, also what a resampler would hold back"
    assert not world.of(m.Done)
    world.send(m.Text(" Four.", "a", last=True))
    world.run(3000)
    (done,) = world.of(m.Done)
    assert done.underruns == 0
    assert sum(turn == 1 for _, turn, _ in world.frames) >= n_speech + 12


def test_two_turns_follow_without_gap_or_overlap() -> None:
    world = World()
    world.say("one two three.", "a")
    world.say("four five six.", "b")
    world.run(4000)
    assert [done.turn for done in world.of(m.Done)] == ["a", "b"]
    heard = [turn for _, turn, _ in world.frames if turn]
    assert heard == sorted(heard) and set(heard) == {1, 2}
    gaps = {round(b[0] - a[0]) for a, b in pairwise(world.frames[11:])}
    assert gaps == {20}


def test_a_turn_after_a_pause_starts_at_once() -> None:
    world = World()
    world.say("one.", "a")
    world.run(3000)
    n = len(world.frames)
    world.say("two.", "b")
    assert world.frames[n:] == []  # the engine's answer is an event of its own
    world.run(0)
    assert world.frames[n][0] == 3000


def test_burst_sends_all_at_once_and_reports_when_it_is_heard() -> None:
    world = World(SessionSettings(first_clause_chars=0, pace="burst"))
    world.say(LONG)
    world.run(1)
    assert len(world.frames) >= 155
    assert not world.of(m.Done)
    world.run(1000)
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_text == "one two three four"


class SecondSentenceLate(World):
    """The engine begins with the first utterance at once, and with the others so much later."""

    later_ms = 0.0

    def _synthesize(self, utterance: Utterance) -> None:
        self.first_audio_ms = self.later_ms if self.submitted else 0
        super()._synthesize(utterance)


@pytest.mark.parametrize("patience_ms", [0, 10_000])
def test_late_audio_puts_silence_into_a_call_and_not_into_a_file(patience_ms: int) -> None:
    def spoken(later_ms: float) -> bytes:
        world = SecondSentenceLate(
            SessionSettings(first_clause_chars=0, pace="burst", patience_ms=patience_ms), ms_per_char=47
        )
        world.later_ms = later_ms
        world.say("One two. Three four.", "a")
        world.run(5000)
        assert len(world.submitted) == 2 and world.terminals("a") and set(world.of(m.ErrorEvent)) == set()
        return b"".join(payload for _, _, payload in world.frames)

    in_time, late = spoken(0), spoken(2000)
    assert (late == in_time) is (patience_ms > 0)
    assert 0 <= len(late) - len(in_time) <= 3 * 160


def test_a_burst_is_sent_in_slices_between_which_a_clear_takes_effect() -> None:
    world = World(SessionSettings(first_clause_chars=0, pace="burst"))
    session, now_ns = world.session, world.now_ns
    session.receive(m.Say(" ".join([LONG] * 5), "a"), now_ns)
    (work,) = [effect for effect in session.poll(now_ns) if isinstance(effect, Synthesize)]
    minute = Chunk(np.full(60 * RATE_HZ, 1500, np.int16), RATE_HZ)
    session.audio(work.utterance.id, minute, now_ns)
    first = [effect for effect in session.poll(now_ns) if isinstance(effect, m.Frame)]
    assert len(first) == 32 and session.deadline_ns() == now_ns
    session.receive(m.Clear(), now_ns)
    kinds = [type(effect).__name__ for effect in session.poll(now_ns)]
    assert kinds.count("Frame") <= 1 and "Cleared" in kinds


def test_a_full_socket_holds_frames_and_a_clear_drops_them() -> None:
    world = World()
    world.say(LONG)
    world.run(200)
    world.session.writable(False)
    n = len(world.frames)
    world.run(400)
    assert len(world.frames) == n
    world.send(m.Clear())
    world.session.writable(True)
    world.pump()
    world.run(1000)
    assert len(world.frames) == n, "frames of the cleared turn did not come out when the socket had room again"


def test_a_socket_that_has_room_again_gets_all_that_is_due() -> None:
    world = World()
    world.say(LONG)
    world.run(200)
    world.session.writable(False)
    world.run(400)
    world.session.writable(True)
    world.pump()
    assert len(world.frames) == 600 // 20 + 11


def test_frames_wait_for_the_media_leg() -> None:
    world = World(media=False)
    world.say(LONG)
    world.run(1000)
    assert world.frames == [] and world.submitted, "speech is prepared, not sent"
    world.session.attach_media(world.now_ns, marks=False, clears=False)
    world.pump()
    assert world.frames[0][0] == 1000
    world.run(5000)
    assert world.of(m.Done)[0].audio_ms == 3160


def test_synthesis_stays_within_ahead_of_the_listener() -> None:
    world = World(SessionSettings(first_clause_chars=0, ahead_ms=1000))
    world.say(" ".join(["one two three four."] * 12))
    world.run(100)
    assert len(world.submitted) <= 3, "2 sentences of 950 ms are enough for one second"
    world.run(30_000)
    (done,) = world.of(m.Done)
    assert done.underruns == 0 and len(world.submitted) == 12
    starts = [event.start_ms for event in world.of(m.SentenceSpoken)]
    for (at_ms, _), start_ms in zip(world.submitted[2:], starts[2:], strict=True):
        assert start_ms - at_ms <= 1000 + 200, "never earlier than ahead_ms before it is needed"


def test_one_long_sentence_is_not_synthesised_far_ahead_either() -> None:
    world = World(SessionSettings(first_clause_chars=0, ahead_ms=1000))
    world.say("one two three four five six seven eight nine ten " * 4 + "end.")
    world.run(500)
    turn = world.session.turns[0]
    given_ms = turn.encoder.position_samples / 8
    assert 1000 <= given_ms <= 1500 + 100, "the heard speech and at most one second more, rounded up to a chunk"
    world.run(30_000)
    assert world.of(m.Done)[0].underruns == 0


@pytest.mark.parametrize("pace", ["realtime", "burst"])
def test_the_engine_is_asked_for_the_most_urgent_first(pace: str) -> None:
    world = World(SessionSettings(first_clause_chars=0, pace=pace))
    world.say("one two three four. five six seven eight.")
    world.run(5000)
    first, second = (utterance for _, utterance in world.submitted)
    assert first.deadline_ns <= world.start_ns, "the caller hears nothing yet, so the deadline is now"
    assert second.deadline_ns > world.start_ns + 500 * MS
